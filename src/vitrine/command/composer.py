"""Composition of one configuration from overrides, and the checks that need more than the overrides themselves."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vitrine.command.composition_faults import as_faults, section_is_off, unlike_their_type
from vitrine.command.inherit import inherited_base
from vitrine.command.overrides import quote, type_name
from vitrine.command.plain_values import is_among, later_keys, referred, values_of, with_values
from vitrine.command.resolvers import SCHEMAS
from vitrine.command.sources import composing, from_files, primary_config, sources
from vitrine.command.user_parts import (
    complete_data,
    for_hydra,
    keys_of_vits,
    names_part,
    untrusted,
    without_replaced_options,
)
from vitrine.config import TrainConfig
from vitrine.config.fields import faults
from vitrine.config.keys import kind, optional_section
from vitrine.config.metric_faults import unmeasured
from vitrine.config.model import missing_weights
from vitrine.config.parts import is_dotted
from vitrine.config.predict import PredictConfig, predict_faults
from vitrine.config.schema import OWN_FILES
from vitrine.config.serialize import from_plain, refuse_cut_short
from vitrine.config.sweep import TrainCommand
from vitrine.config.targets import TARGETS, target_faults
from vitrine.config.trust import TRUST_ALL, is_trusted, refusal
from vitrine.config.validate import resume_faults, train_faults
from vitrine.data.own_files import NEEDED_ROOT, count_classes
from vitrine.errors import ConfigError, DataError, Fault, RunError
from vitrine.runs.nearest import newest_run
from vitrine.runs.provenance import program
from vitrine.runs.record import RunRecord, check_writable

# Keys without a default, and what is reported where they are not given.
NEEDED = {
    "run": "needs a run folder: {} run=outputs/runs/RUN",
    "input": "needs a picture, folder, glob pattern or CSV file: {} input=DIR",
}
COUNTED = "data.target_classes"  # found from the data, and stored with a run's configuration
# Keys of permissions, and their values that allow nothing.
PERMISSIONS = {"trust": [], "allow_changed_code": False, "accept_changed_data": False, "force": False}


class Composer:
    """Composes configurations of one command that share most of their overrides.

    Hydra spends its time on parsing overrides and on choosing files. So each override is parsed once, each choice of
    files is composed once, and other values are set in copies. ``check_output`` is whether runs are to be written.
    """

    def __init__(self, command: str, loader: ConfigLoader, *, check_output: bool = True) -> None:
        self.command = command
        self.schema = SCHEMAS[command]
        self.loader = loader
        self._parser = OverridesParser.create(config_loader=loader)
        self._inherited: dict[tuple[str, ...], DictConfig] = {}  # by the run and the choices
        self._records: dict[str, RunRecord] = {}
        self._parsed: dict[str, tuple[Override, bool]] = {}  # and whether it chooses a file
        self._plain: dict[str, dict[str, Any] | None] = {}  # values of keys that each override sets
        self._independent: dict[tuple[str, ...], frozenset[str]] = {}  # the independent overrides, by shape
        self._siblings: dict[tuple[str, ...], tuple[Any, bool]] = {}  # by what they share: one, and if it is sound
        self._count = cache(count_classes)  # once for all trials of a multirun
        self._check_writable = cache(lambda folder: check_writable(Path(folder)) if check_output else None)

    def composed(self, overrides: Sequence[str]) -> tuple[DictConfig, list[Fault]]:
        """Return what would be run with ``overrides``, its limits not checked, and the faults of composition.

        With ``like=RUN`` or ``resume=RUN``, it is that run's configuration with the overrides applied.

        Raises:
            ConfigError: it cannot be composed.
        """
        parsed = [self.parse(override) for override in for_hydra(overrides)]
        choices = _choices(parsed)
        values = [override for override, chooses_file in parsed if not chooses_file]
        with as_faults():
            config, found = self._with_overrides(from_files(self.command, choices)[0], values)
            if self.command == "train" and (origin := self._origin(config)) is not None:
                parts = tuple(filter(names_part, overrides))
                base = self._inherited_base(origin, choices, parts, resumes=config.resume is not None)
                typed = {override.key_or_group for override in values}
                if "model.pretrained" in typed and "model.pretrained_new" not in typed:  # that is of the run's weights
                    values.append(self.parse("model.pretrained_new=[]")[0])
                config, found = self._with_overrides(base, values)
            _keep_typed_permissions(config, [override for override, _ in parsed])
            if self.command == "train":
                _check_trust(config, overrides)
                if config.resume is None:
                    found += [_counted(override) for override in values if override.key_or_group == COUNTED]
                    found += self._count_classes(config.data)
        return config, found

    def checked(self, overrides: Sequence[str]) -> Any:
        """Return the checked configuration as the command's dataclass, or a ConfigError with all of its faults.

        Of configurations that differ only in values from which no other value is computed, one is composed. The others
        are copies of it with their values set, and checked as it is.
        """
        is_first = not self._parsed  # it may be the only one: nothing to share yet
        values, shared = ({}, ()) if is_first else self._split(overrides)
        found: list[Fault] = []
        sibling, sound = self._siblings.get(shared, (None, False))
        if sibling is not None:
            config = with_values(sibling, values)
        else:
            config, found = self._converted(overrides)
        if config is None:
            return ConfigError(found)
        try:
            limits = self._limits_of(config, sibling if sound else None)
        except ConfigError as error:
            return error
        if values and sibling is None and not found:
            self._siblings[shared] = config, not limits
        return ConfigError([*found, *limits]) if found or limits else config

    def settings(self, overrides: Sequence[str]) -> DictConfig:
        """Return the node ``hydra`` of the files that ``overrides`` choose, with typed settings of Hydra, unresolved.

        Raises:
            ConfigError: it cannot be composed.
        """
        with as_faults():
            return from_files(self.command, _choices(self.parse(override) for override in for_hydra(overrides)))[1]

    def _split(self, overrides: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Split ``overrides`` into values that are independent of all others, and what is left of them without these.

        What is left names the keys of the values, so that it is the same for configurations that differ in the values.
        """
        plain = {text: values for text in overrides if (values := self._plain_values(text))}
        without = {text: f"{text.partition('=')[0]} sets {','.join(values)}" for text, values in plain.items()}
        shape = tuple(without.get(text, text) for text in overrides)
        if shape not in self._independent:
            self._independent[shape] = frozenset(without[text] for text in self._are_independent(overrides) & {*plain})
        independent = self._independent[shape]
        own = [values for text, values in plain.items() if without[text] in independent]
        shared = (label if label in independent else text for text, label in zip(overrides, shape, strict=True))
        return {key: value for values in own for key, value in values.items()}, tuple(shared)

    def _plain_values(self, text: str) -> dict[str, Any] | None:
        """Return the values that an override sets, if it does nothing else."""
        if text not in self._plain:
            self._plain[text] = None
            if self.command == "train" and list(for_hydra([text])) == [text]:
                with suppress(HydraException, OmegaConfBaseException):  # reported by composed
                    override, chooses_file = self.parse(text)
                    self._plain[text] = values_of(override, chooses_file=chooses_file, loader=self.loader)
        return self._plain[text]

    def _are_independent(self, overrides: Sequence[str]) -> frozenset[str]:
        """Return those of ``overrides`` that only set values from which nothing is computed and that nothing replaces.

        They are the same whatever their values are.
        """
        try:
            parsed = [self.parse(text) for text in for_hydra(overrides)]
            typed = Counter(override.key_or_group for override, chooses_file in parsed if not chooses_file)
            lines = _choices(parsed)
            base, _ = from_files(self.command, lines)
            if {"like", "resume"} & set(typed) or base.like is not None or base.resume is not None:
                return frozenset()
            used = referred(base, [override.value() for override, _ in parsed])
            groups = {text.partition("=")[0] for text in overrides if self._plain_values(text)} - set(typed)
            later = later_keys(primary_config(self.command), lines, groups, self.loader) if groups else {}
        except (HydraException, OmegaConfBaseException):
            return frozenset()  # reported by composed
        found = []
        for text in overrides:
            name, keys = text.partition("=")[0], self._plain_values(text) or {}
            replaced = {*(typed - Counter([name])), *later.get(name, ())}
            if (name in typed or name in later) and not any(is_among(key, used | replaced) for key in keys):
                found.append(text)
        return frozenset(found)

    def _converted(self, overrides: Sequence[str]) -> tuple[Any, list[Fault]]:
        """Return the configuration as the command's dataclass, its limits not checked, or ``None``, and the faults."""
        try:
            composed, found = self.composed(overrides)
            if missing := [key for key in NEEDED if OmegaConf.is_missing(composed, key)]:
                start = program(self.command)
                newest = newest_run(Path("outputs")) if "run" in missing else None
                near = {"run": f"run={newest}" if newest else ""}
                return None, [Fault(key, "", NEEDED[key].format(start), near.get(key, "")) for key in missing]
            with as_faults():
                if self.command == "train" and composed.resume is None:
                    found += self._surroundings_faults(composed)
                    if is_dotted(composed.model.name):
                        found += keys_of_vits(composed.model.name, overrides)
                config = OmegaConf.to_object(composed)
        except ConfigError as error:
            return None, error.faults
        if misfits := list(unlike_their_type(config)):  # other checks rely on types
            return None, [*found, *misfits]
        return config, found

    def _limits_of(self, config: Any, sound: Any = None) -> list[Fault]:
        """Return the faults of a whole configuration; ``sound`` is one without faults that may share sections."""
        if isinstance(config, TrainCommand):
            found = [*train_faults(config, sound), *unmeasured(config)]
            if config.resume is not None:
                recorded = from_plain(TrainConfig, self._record("resume", config.resume).config, trust=TRUST_ALL)
                found += resume_faults(recorded, config.run)
            return found
        return [*faults(config), *(predict_faults(config) if isinstance(config, PredictConfig) else ())]

    def _with_overrides(self, base: DictConfig, values: Sequence[Override]) -> tuple[DictConfig, list[Fault]]:
        """Set values in a copy of ``base``; those inside sections that are off are returned as faults.

        Where they replace parts of the user's, the options that ``base`` has for these go, too.
        """
        config, found = deepcopy(base), []
        names = [(override.input_line or "").partition("=")[0] for override in values]
        sections = [optional_section(self.schema, name) for name in names]
        outside = [override for override, section in zip(values, sections, strict=True) if not section]
        for override in outside:  # values are merged into a section, which may be off
            section_type, key = kind(self.schema, override.key_or_group), override.key_or_group
            if is_dataclass(section_type) and isinstance(override.value(), dict) and not OmegaConf.select(config, key):
                OmegaConf.update(config, key, section_type)
        self.loader._apply_overrides_to_config(outside, config)  # type: ignore[attr-defined]
        for override, section in zip(values, sections, strict=True):
            if section and OmegaConf.select(config, section) is None:
                found.append(section_is_off(override.input_line or "", section))
            elif section:
                self.loader._apply_overrides_to_config([override], config)  # type: ignore[attr-defined]
        kept = without_replaced_options(base, config) if self.command == "train" else None
        return (config, found) if kept is None else self._with_overrides(kept, values)

    def _inherited_base(
        self, origin: str, choices: tuple[str, ...], parts: tuple[str, ...], *, resumes: bool
    ) -> DictConfig:
        """Return the configuration of the run ``origin``, changed by these choices from groups and of parts.

        Its folders are those of the run only if it is resumed: others may have made the run, for other folders.
        """
        key = ("resume" if resumes else "like", origin, *choices, *parts)
        if key not in self._inherited:
            values, name = dict(self._records[origin].config), primary_config(self.command)
            if not resumes:
                values.pop("paths", None)
            self._inherited[key] = inherited_base(name, values, choices, parts, self.loader)
        return self._inherited[key]

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
                refuse_cut_short(record.config, record.path / "config.yaml")
            except RunError as error:
                raise ConfigError([Fault(key, folder, str(error))]) from None
            self._records[folder] = record
        return self._records[folder]

    def parse(self, text: str) -> tuple[Override, bool]:
        """Return an override as Hydra reads it, and whether it chooses a file."""
        if text in self._parsed:
            return self._parsed[text]
        number = re.fullmatch(r"([a-z_.]+)=([1-9]\d{0,17})", text)
        if number and not (zero := self.parse(f"{number[1]}=0"))[1]:  # the parser takes a millisecond for each seed
            self._parsed[text] = replace(zero[0], _value=int(number[2]), input_line=text), False
        else:
            override = self._parser.parse_override(text)
            name, repository = override.key_or_group, self.loader.repository  # type: ignore[attr-defined]
            # eval's accelerator is a key, although train has a group of that name.
            is_key = self.command != "train" and kind(self.schema, name) is not None
            is_group = not is_key and not isinstance(override.value(), dict) and repository.group_exists(name)
            self._parsed[text] = override, name.startswith("hydra") or is_group
        return self._parsed[text]

    def _count_classes(self, data: DictConfig) -> list[Fault]:
        """Fill in numbers of classes that targets or the user's own image files decide; return why they can't be."""
        if not OmegaConf.is_list(data.targets):  # an interpolation to something else
            raise ConfigError([Fault("data.targets", str(data.targets), f"must be {type_name(list[str])}")])
        targets, inherited = tuple(data.targets), bool(data.target_classes)  # from the run of like=
        data.target_classes = []
        found = list(target_faults(data.name, targets))
        if is_dotted(data.name):
            return found + complete_data(data)
        try:
            classes = self._classes(data, () if found else targets)
        except DataError as error:
            found = found or [Fault("data.root", data.root, str(error))]  # which names other columns than asked for
            classes = [2] * max(1, len(targets))  # stand in, so that the rest is checked all the same
        if targets:
            data.target_classes = classes
        if targets or inherited or OmegaConf.is_missing(data, "num_classes"):
            data.num_classes = classes[0]
        return found

    def _classes(self, data: DictConfig, targets: tuple[str, ...]) -> list[int]:
        """Return the number of classes of each target, or of what the data is about.

        Raises:
            DataError: the user's own image files can't be read.
        """
        if (known := TARGETS.get(data.name)) is not None:
            return [len(known[name].classes) for name in targets or list(known)[:1]]
        if data.name not in OWN_FILES:
            return [data.num_classes]
        if not data.root:
            raise DataError(f"data={data.name} needs {NEEDED_ROOT[data.name]}")
        return self._count(data.name, data.root, multi_label=data.multi_label, targets=targets)

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
            checked: TrainCommand | ConfigError = self._composer.checked(quote(overrides))
            return checked


def _choices(parsed: Iterable[tuple[Override, bool]]) -> tuple[str, ...]:
    return tuple(override.input_line or "" for override, chooses_file in parsed if chooses_file)


def _counted(override: Override) -> Fault:
    given = (override.input_line or "").partition("=")[2]
    return Fault(COUNTED, given, "is counted, not set; data.targets names the targets")


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
