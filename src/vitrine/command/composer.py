"""Composition of one configuration from overrides, and the checks that need more than the overrides themselves."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vitrine.command.inherit import inherited_base
from vitrine.command.overrides import quote
from vitrine.command.resolvers import SCHEMAS
from vitrine.command.sources import composing, primary_config, sources
from vitrine.command.user_parts import complete_data, for_hydra, keys_of_vits, names_part, untrusted
from vitrine.config import TrainConfig
from vitrine.config.fields import faults
from vitrine.config.keys import kind, optional_section, owner
from vitrine.config.model import missing_weights
from vitrine.config.parts import ANY, is_dotted, is_trusted, refusal
from vitrine.config.predict import PredictConfig, predict_faults
from vitrine.config.schema import OWN_FILES
from vitrine.config.serialize import from_plain
from vitrine.config.sweep import TrainCommand, facts_of, unmeasured
from vitrine.config.validate import resume_faults, train_faults
from vitrine.data.own_files import NEEDED_ROOT, count_classes
from vitrine.errors import ConfigError, DataError, Fault, RunError
from vitrine.runs.provenance import program
from vitrine.runs.record import RunRecord, check_writable

# Keys without a default, and what is reported where they are not given.
NEEDED = {
    "run": "needs a run folder: {} run=outputs/runs/RUN",
    "input": "needs a picture, folder, glob pattern or CSV file: {} input=DIR",
}
# Keys of permissions, and their values that allow nothing.
PERMISSIONS = {"trust": [], "allow_changed_code": False, "accept_changed_data": False, "force": False}


class Composer:
    """Composes configurations of one command that share most of their overrides.

    Hydra spends its time on parsing overrides and on choosing files. So each override is parsed once, each choice of
    files is composed once, and other values are set in copies.
    """

    def __init__(self, command: str, loader: ConfigLoader) -> None:
        self.command = command
        self.schema = SCHEMAS[command]
        self.loader = loader
        self._bases: dict[tuple[str, ...], DictConfig] = {}
        self._records: dict[str, RunRecord] = {}
        self._parsed: dict[str, tuple[Override, bool]] = {}  # and whether it chooses a file
        self._referred: dict[int, set[str]] = {}  # by the identity of a base
        self._plain: dict[str, tuple[str, Any] | None] = {}
        self._checked: dict[tuple[str, ...], Any] = {}  # by the overrides but for independent values
        self._count = cache(count_classes)  # once for all trials of a multirun
        self._check_writable = cache(lambda folder: check_writable(Path(folder)))

    def composed(self, overrides: Sequence[str]) -> tuple[DictConfig, list[Fault]]:
        """Return what would be run with ``overrides``, its limits not checked, and the faults of composition.

        With ``like=RUN`` or ``resume=RUN``, it is that run's configuration with the overrides applied.

        Raises:
            ConfigError: it cannot be composed.
        """
        parsed = [self._parse(override) for override in for_hydra(overrides)]
        choices = tuple(override.input_line or "" for override, chooses_file in parsed if chooses_file)
        values = [override for override, chooses_file in parsed if not chooses_file]
        try:
            config, found = self._with_values(self._base(choices), values)
            if self.command == "train" and (origin := self._origin(config)) is not None:
                parts = tuple(filter(names_part, overrides))
                config, found = self._with_values(self._inherited_base(origin, choices, parts), values)
            _keep_typed_permissions(config, [override for override, _ in parsed])
            if self.command == "train":
                _check_trust(config, overrides)
                if config.resume is None:
                    found += self._count_classes(config.data)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError([composition_fault(error)]) from None
        return config, found

    def checked(self, overrides: Sequence[str]) -> Any:
        """Return the checked configuration as the command's dataclass, or a ConfigError with all of its faults.

        Of configurations that differ only in values from which no other value is computed, such as seeds or learning
        rates, one is composed. The others are copies of it with their values set, and checked as it is.
        """
        own = self._independent_values(overrides)
        shared = (*sorted(own), *(override for override in overrides if override.partition("=")[0] not in own))
        if (sibling := self._checked.get(shared)) is None:
            config = self._check(overrides)
            if own and not isinstance(config, ConfigError):
                self._checked[shared] = config
            return config
        config = sibling
        for key, value in own.items():
            config = _with_value(config, key, value)
        found = train_faults(config)
        return ConfigError(found) if found else config

    def section(self, override: str) -> str:
        """Return the section that ``override`` sets a value in and that can be off; "" if there is none."""
        return optional_section(self.schema, override.partition("=")[0])

    def _independent_values(self, overrides: Sequence[str]) -> dict[str, Any]:
        """Return the keys that ``overrides`` set to a number, string or boolean and that nothing is computed from."""
        if self.command != "train":
            return {}
        try:
            parsed = [self._parse(override) for override in for_hydra(overrides)]
            base = self._base(tuple(override.input_line or "" for override, chooses_file in parsed if chooses_file))
        except (HydraException, OmegaConfBaseException):
            return {}  # reported by composed
        given = [override.partition("=")[0] for override in overrides]
        if {"like", "resume"} & set(given) or base.like is not None or base.resume is not None:
            return {}
        referred = self._references(base) | {
            name for override, _ in parsed for name in _references(str(override.value()))
        }
        plain = [self._plain_value(override) for override in overrides]
        return {
            key: value
            for key, value in filter(None, plain)
            if given.count(key) == 1 and not referred & set(key.split("."))
        }

    def _references(self, base: DictConfig) -> set[str]:
        """Return the last names of the keys that other values of ``base`` are computed from."""
        if id(base) not in self._referred:
            lines = OmegaConf.to_yaml(base).splitlines()
            self._referred[id(base)] = {name for line in lines for name in _references(line)}
        return self._referred[id(base)]

    def _plain_value(self, text: str) -> tuple[str, Any] | None:
        """Return key and value of an override that only sets a number, string or boolean; else ``None``."""
        if text not in self._plain:
            override, chooses_file = self._parse(text)
            key, value = override.key_or_group, override.value()
            section, leaf = owner(self.schema, key)
            self._plain[text] = None
            is_special = chooses_file or names_part(key) or self.section(key) or facts_of(key).path
            is_special = is_special or "${" in str(value)
            if section is not None and isinstance(value, (bool, int, float, str)) and not is_special:
                node = OmegaConf.structured(section)
                node[leaf] = value  # converts it to the key's type
                self._plain[text] = key, node[leaf]
        return self._plain[text]

    def _check(self, overrides: Sequence[str]) -> Any:
        try:
            composed, found = self.composed(overrides)
            if missing := [key for key in NEEDED if OmegaConf.is_missing(composed, key)]:
                start = program(self.command)
                raise ConfigError([Fault(key, "", NEEDED[key].format(start)) for key in missing])
            if self.command == "train" and composed.resume is None:
                found += self._surroundings_faults(composed)
                if is_dotted(composed.model.name):
                    found += keys_of_vits(composed.model.name, overrides)
            config = OmegaConf.to_object(composed)
        except ConfigError as error:
            return error
        except (HydraException, OmegaConfBaseException) as error:
            return ConfigError([composition_fault(error)])
        if isinstance(config, TrainCommand):
            found += [*train_faults(config), *unmeasured(config)]
            if config.resume is not None:
                recorded = from_plain(TrainConfig, self._record("resume", config.resume).config, trust=ANY)
                found += resume_faults(recorded, config.run)
        else:
            found += faults(config)
        if isinstance(config, PredictConfig):
            found += predict_faults(config)
        return ConfigError(found) if found else config

    def _with_values(self, base: DictConfig, values: Sequence[Override]) -> tuple[DictConfig, list[Fault]]:
        """Set values in a copy of ``base``; those inside sections that are off are returned as faults."""
        config, found = deepcopy(base), []
        sections = [self.section(override.input_line or "") for override in values]
        outside = [override for override, section in zip(values, sections, strict=True) if not section]
        self.loader._apply_overrides_to_config(outside, config)  # type: ignore[attr-defined]
        for override, section in zip(values, sections, strict=True):
            if section and OmegaConf.select(config, section) is None:
                found.append(_section_is_off(override.input_line or "", section))
            elif section:
                self.loader._apply_overrides_to_config([override], config)  # type: ignore[attr-defined]
        return config, found

    def _base(self, choices: tuple[str, ...]) -> DictConfig:
        """Return the configuration of these choices from groups."""
        if choices not in self._bases:
            self._bases[choices] = hydra.compose(primary_config(self.command), list(choices))
        return self._bases[choices]

    def _inherited_base(self, origin: str, choices: tuple[str, ...], parts: tuple[str, ...]) -> DictConfig:
        """Return the configuration of the run ``origin``, changed by these choices from groups and of parts."""
        key = (origin, *choices, *parts)
        if key not in self._bases:
            values, name = self._records[origin].config, primary_config(self.command)
            self._bases[key] = inherited_base(name, values, choices, parts, self.loader)
        return self._bases[key]

    def _origin(self, config: DictConfig) -> str | None:
        """Return the run folder that the configuration starts from, if any."""
        if config.like is not None and config.resume is not None:
            problem = "starts a new run, but resume continues an old one; give one of them"
            raise ConfigError([Fault("like", config.like, problem)])
        for key in ("like", "resume"):
            if (folder := config[key]) is not None:
                self._record(key, folder)
                return str(folder)
        return None

    def _record(self, key: str, folder: str) -> RunRecord:
        if folder not in self._records:
            try:
                record = RunRecord.open(folder)
                _ = record.config  # raises where it cannot be read
            except RunError as error:
                raise ConfigError([Fault(key, folder, str(error))]) from None
            self._records[folder] = record
        return self._records[folder]

    def _parse(self, text: str) -> tuple[Override, bool]:
        if text not in self._parsed:
            override = OverridesParser.create(config_loader=self.loader).parse_override(text)
            name, repository = override.key_or_group, self.loader.repository  # type: ignore[attr-defined]
            # eval's accelerator is a key, although train has a group of that name.
            is_key = self.command != "train" and kind(self.schema, name) is not None
            is_group = not is_key and not isinstance(override.value(), dict) and repository.group_exists(name)
            self._parsed[text] = override, name.startswith("hydra") or is_group
        return self._parsed[text]

    def _count_classes(self, data: DictConfig) -> list[Fault]:
        """Fill in the number of classes of the user's own image files; return why it can't be counted."""
        if is_dotted(data.name):
            return complete_data(data)
        if data.name not in OWN_FILES:
            return []
        found = []
        classes = 2  # stands in where they can't be counted, so that the rest is checked all the same
        if not data.root:
            problem = f"data={data.name} needs {NEEDED_ROOT[data.name]}"
            found.append(Fault("data.root", "", problem))
        else:
            try:
                classes = self._count(data.name, data.root)
            except DataError as error:
                found.append(Fault("data.root", data.root, str(error)))
        if OmegaConf.is_missing(data, "num_classes"):
            data.num_classes = classes
        return found

    def _surroundings_faults(self, composed: DictConfig) -> list[Fault]:
        """Return why the initial weights can't be read, or the output folder can't be written."""
        found = []
        if (source := composed.model.pretrained) is not None and (problem := missing_weights(source)):
            found.append(Fault("model.pretrained", source, problem))
        try:
            self._check_writable(composed.paths.output_dir)
        except RunError as error:
            found.append(Fault("paths.output_dir", composed.paths.output_dir, str(error)))
        return found


class Variants:
    """Configurations of ``train`` that share the overrides ``fixed``, composed one at a time."""

    def __init__(self, fixed: Sequence[str]) -> None:
        self.fixed = list(fixed)
        with composing() as loader:
            self._composer = Composer("train", loader)

    def config(self, values: Mapping[str, str]) -> TrainCommand | ConfigError:
        """Return the checked configuration with these values of keys or groups, or a ConfigError."""
        with composing():
            overrides = [*self.fixed, *(f"{key}={value}" for key, value in values.items())]
            checked: TrainCommand | ConfigError = self._composer.checked(quote(overrides, self._composer.loader))
            return checked


def _keep_typed_permissions(composed: DictConfig, overrides: Sequence[Override]) -> None:
    """Reset what allows code to run, unless it is among ``overrides`` or the user named the folder of configurations.

    Files of a folder that was only found, and ``conf/local``, allow nothing.
    """
    typed = {override.key_or_group: override.value() for override in overrides}
    for key, nothing in PERMISSIONS.items():
        if key in composed and (key in typed or not sources().typed):
            composed[key] = typed.get(key) or nothing


def allowed_by(composed: DictConfig) -> Callable[[str], bool]:
    """Return whether code of a dotted name may be imported: ``trust`` allows it, or a folder that the user named."""
    return lambda name: is_trusted(name, composed.trust) or sources().vouch_for(name)


def _check_trust(composed: DictConfig, overrides: Sequence[str]) -> None:
    """Raise ConfigError where ``composed`` has dotted names that the user neither typed nor allowed."""
    if refused := untrusted(composed, overrides, allowed_by(composed)):
        origins = [f"{key}={composed[key]}" for key in ("like", "resume") if composed[key] is not None]
        source = origins[0] if origins else str(sources().folder)
        key, name = next(iter(refused.items()))
        raise ConfigError([Fault(key, name, f"{source} {refusal(refused)}")])


def _references(text: str) -> Iterator[str]:
    """Yield the last name of each key in the interpolations of a line, and what else stands there."""
    for dotted in re.findall(r"[\w.]+", text.partition("${")[2]):
        yield dotted.rpartition(".")[2]


def _with_value(config: Any, key: str, value: Any) -> Any:
    """Return a copy of a configuration with another value; sections without the key are shared."""
    name, _, rest = key.partition(".")
    return replace(config, **{name: _with_value(getattr(config, name), rest, value) if rest else value})


def composition_fault(error: Exception) -> Fault:
    """Return an error that Hydra or OmegaConf raised for a configuration file as a fault."""
    causes = [str(cause) for cause in (error, error.__cause__) if cause is not None]
    lines = dict.fromkeys(line.strip() for cause in causes for line in cause.splitlines() if line.strip())
    key = getattr(error.__cause__, "full_key", None) or "configuration"
    shown = (line for line in lines if not line.startswith(("object_type", "reference_type")))
    problem = "; ".join(shown)
    if (file := re.match(r"In '(\w+)/", problem)) and "not in 'TrainCommand'" in problem:
        problem += f"; a file of the group {file[1]} begins with the line `# @package model`, or `# @package _global_`"
    return Fault(str(key), "", problem)


def _section_is_off(override: str, section: str) -> Fault:
    """An override inside a section that is off, such as logger.wandb.mode without logger=wandb."""
    key, _, value = override.partition("=")
    group, _, option = section.partition(".")
    choice = f"[default,{option}]" if group == "callbacks" else option
    return Fault(key, value, f"{section} is off; turn it on with {group}={choice}")
