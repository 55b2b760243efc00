"""From words as they are typed to checked configurations: Hydra composes ``conf/``, and what cannot work is refused.

All faults of all trials are told at once, before torch is imported and before anything is written.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vitrine.command.inherit import like
from vitrine.command.overrides import check_overrides, quote
from vitrine.command.sources import composing, conf, primary_config, sources
from vitrine.command.space import first_that_works, space_of, with_commas
from vitrine.command.user_parts import complete_data, for_hydra, keys_of_vits, untrusted
from vitrine.config import EvalConfig, TrainConfig, train_faults
from vitrine.config.fields import fault_of, faults
from vitrine.config.keys import optional_section
from vitrine.config.model import missing_weights
from vitrine.config.parts import is_dotted, is_trusted, refusal
from vitrine.config.space import Space
from vitrine.config.sweep import LAUNCHERS, SweepConfig, TrainCommand, facts_of
from vitrine.data.image_folder import ImageFolder
from vitrine.errors import ConfigError, DataError, Fault, RunError
from vitrine.runs.provenance import program
from vitrine.runs.record import RunRecord, check_writable
from vitrine.text import nearest

SCHEMAS: dict[str, type] = {"train": TrainCommand, "eval": EvalConfig}


@dataclass(frozen=True)
class Point:
    """One run that was asked for.

    Attributes:
        config: its configuration, checked.
        words: all overrides it was composed from.
        varies: those in which it differs from the others of a multirun: key or group, and value as it was typed.
        space: where a search looks; it begins at this point, which stands for all of the search. Empty if it is none.
        folder: where ``hydra.run.dir`` or ``hydra.sweep.dir`` puts the run or the sweep; ``None`` leaves it to vitrine.
        subfolder: the name that ``hydra.sweep.subdir`` gives to the run's folder in that of the sweep, likewise.
    """

    config: Any
    words: list[str]
    varies: dict[str, str] = field(default_factory=dict)
    space: Space = field(default_factory=dict)
    folder: Path | None = None
    subfolder: str | None = None


def compose(overrides: Sequence[str] = ()) -> TrainConfig:
    """A checked configuration from overrides as they are typed after ``train.py``: ``compose(["model=vit_nano"])``.

    Raises:
        ConfigError: something in it cannot work; the error has all faults.
    """
    (point,) = points("train", list(overrides), multirun=False)
    return point.config.run


def points(name: str, arguments: list[str], *, multirun: bool, check_devices: bool = True) -> list[Point]:
    """The runs that ``arguments`` of the command ``name`` (a key of ``SCHEMAS``) ask for, all checked.

    Raises:
        ConfigError: with the faults of all of them.
    """
    _classes.cache_clear()
    _writable.cache_clear()
    with composing() as loader:
        sound, found = check_overrides(quote(arguments, loader), SCHEMAS[name], loader)
        overrides = OverridesParser.create(config_loader=loader).parse_overrides(sound)
        made = (_of_multirun if multirun else _alone)(_Composer(name, loader), overrides, found)
    trained = [point.config for point in made if isinstance(point.config, TrainConfig)]
    on_gpus = [config for config in trained if config.trainer.accelerator == "gpu"]
    if check_devices and on_gpus and not (multirun and launcher(arguments) == "slurm"):  # whose machines have others
        found += _devices_that_are_missing(on_gpus)
    if found:
        raise ConfigError(found)
    return made


def launcher(arguments: list[str]) -> str:
    """The launcher that ``arguments`` choose for a multirun, by ``hydra/launcher`` typed or in a file of conf/.

    Raises:
        ConfigError: it is none of vitrine's.
    """
    with composing() as loader:
        overrides = OverridesParser.create().parse_overrides(quote(arguments, loader))
        composed = hydra_settings("train", _fixed(overrides))
    for group, allowed in (("launcher", LAUNCHERS), ("sweeper", ("basic",))):
        chosen = str(composed.hydra.runtime.choices[f"hydra/{group}"])
        if chosen not in allowed:
            problem = f"is none that vitrine's trials can be given to: {', '.join(allowed)}"
            if group == "sweeper":
                problem = "takes no trials of vitrine's, which are made by sweep=...; see conf/sweep"
            raise ConfigError([Fault(f"hydra/{group}", chosen, problem, nearest(chosen, allowed))])
    return str(composed.hydra.runtime.choices["hydra/launcher"])


def hydra_settings(name: str, overrides: Sequence[str]) -> DictConfig:
    """The composed configuration with its node ``hydra``; sections that may be off, or on in like=RUN, are left out.

    Raises:
        ConfigError: Hydra cannot compose it.
    """
    words = [override for override in overrides if not _section(SCHEMAS[name], override)]
    with composing():
        try:
            return hydra.compose(primary_config(name), for_hydra(words), return_hydra_config=True)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError([_composition_fault(error)]) from None


def checked_words(name: str, arguments: list[str]) -> list[str]:
    """The overrides as Hydra can read them.

    Raises:
        ConfigError: one of them is wrong by itself; the whole is not checked.
    """
    with composing() as loader:
        sound, found = check_overrides(quote(arguments, loader), SCHEMAS[name], loader)
    if found:
        raise ConfigError(found)
    return sound


def as_composed(name: str, arguments: list[str]) -> DictConfig:
    """The configuration that a run of the command ``name`` would be made with, not checked for limits.

    Raises:
        ConfigError: it cannot be composed.
    """
    words = checked_words(name, arguments)
    with composing() as loader:
        composer = _Composer(name, loader)
        try:
            composed = composer.composed(words)
            sections = {word: section for word in words if (section := _section(SCHEMAS[name], word))}
            if off := composer._that_are_off(composed, words, sections):
                raise ConfigError([_section_is_off(word, sections[word]) for word in off])
            if name == "train" and composed.like is not None:
                composed = _like(composed, words)
            if name == "train":
                _check_trust(composed, words)
            if name == "train" and composed.resume is None:
                _fill_in(composed.data)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError([_composition_fault(error)]) from None
        return composed


def finish(name: str, composed: DictConfig, words: Sequence[str]) -> Any:
    """The typed configuration: what only a run's or the data's folder can say filled in, and everything checked.

    ``words`` are the overrides that ``composed`` was made of.
    """
    found = []
    if name == "train" and composed.like is not None:
        composed = _like(composed, words)
    if name == "train":
        _check_trust(composed, words)
    if name == "eval":
        if OmegaConf.is_missing(composed, "run"):
            raise ConfigError([Fault("run", "", f"needs a run folder: {program('eval')} run=outputs/runs/RUN")])
    elif composed.resume is not None:
        found += _fault_of("resume", composed.resume, lambda: RunRecord.open(composed.resume))
    else:
        found += _fill_in(composed.data)
        if is_dotted(composed.model.name):
            found += keys_of_vits(composed.model.name, words)
        if (source := composed.model.pretrained) is not None and (problem := missing_weights(source)):
            found.append(Fault("model.pretrained", source, problem))
        output = composed.paths.output_dir
        found += _fault_of("paths.output_dir", output, lambda: _writable(output))
    config = OmegaConf.to_object(composed)
    found += train_faults(config) if isinstance(config, TrainConfig) else faults(config)
    if found:
        raise ConfigError(found)
    return config


def _check_trust(composed: DictConfig, words: Sequence[str]) -> None:
    """Raise ConfigError where ``composed`` has dotted names that the user neither typed nor allowed."""

    def allowed(name: str) -> bool:
        return is_trusted(name, composed.trust) or sources().vouch_for(name)

    if refused := untrusted(composed, words, allowed):
        source = f"like={composed.like}" if composed.like is not None else str(sources().folder)
        key, name = next(iter(refused.items()))
        raise ConfigError([Fault(key, name, f"{source} {refusal(refused)}")])


def _like(composed: DictConfig, words: Sequence[str]) -> DictConfig:
    """The configuration of the run that ``like`` names, with ``words`` applied to it."""
    folder = composed.like
    if composed.resume is not None:
        problem = "makes a new run, and resume goes on with an old one; type one of them"
        raise ConfigError([Fault("like", folder, problem)])
    try:
        values = RunRecord.open(folder).config
    except RunError as error:
        raise ConfigError([Fault("like", folder, str(error))]) from None
    return like("train", values, words, GlobalHydra.instance().config_loader())


class _Composer:
    """Composes many configurations that differ in few words.

    What takes Hydra's time is reading words and choosing files: each word is read once, each choice of files is made
    once, and values are set in copies. What differs in its seed alone is composed once, too.
    """

    def __init__(self, name: str, loader: ConfigLoader) -> None:
        self.name = name
        self.loader = loader
        self.bases: dict[tuple[str, ...], DictConfig] = {}
        self.parsed: dict[str, Override] = {}
        self.seedless: dict[tuple[str, ...], Any] = {}  # configurations, or what keeps them from working

    def composed(self, words: Sequence[str]) -> DictConfig:
        """What Hydra composes from ``words``, but for those inside a section that is off, which it can't take."""
        values: list[Override] = []
        choices: list[Override] = []
        inside: list[Override] = []
        for word in for_hydra(words):
            override = self._parse(word)
            (inside if self._section(word) else choices if self._chooses(override) else values).append(override)
        key = tuple(one.input_line or "" for one in choices)
        if key not in self.bases:
            self.bases[key] = hydra.compose(primary_config(self.name), list(key))
        config = deepcopy(self.bases[key])
        self.loader._apply_overrides_to_config(values, config)  # type: ignore[attr-defined]
        on = [one for one in inside if OmegaConf.select(config, self._section(one.input_line or "")) is not None]
        self.loader._apply_overrides_to_config(on, config)  # type: ignore[attr-defined]
        return config

    def checked(self, words: list[str]) -> Any:
        """The checked configuration, or a ConfigError with all that keeps it from working."""
        without = tuple(word for word in words if not re.fullmatch(r"seed=\d+", word))
        if len(without) == len(words):
            return self._checked(words)
        if without not in self.seedless:
            config = self._checked(words)
            if self._mention_the_seed(without):
                return config
            self.seedless[without] = config
        *_, seed = (int(word.partition("=")[2]) for word in words if word not in without)  # the last one counts
        if faulty := fault_of(TrainConfig, "seed", seed):
            return ConfigError(faulty)
        config = self.seedless[without]
        return config if isinstance(config, ConfigError) else replace(config, seed=seed)

    def _mention_the_seed(self, words: Sequence[str]) -> bool:
        """Whether another value follows the seed, as one in a file of the user's may."""
        try:
            text = OmegaConf.to_yaml(self.composed(words))
        except (HydraException, OmegaConfBaseException):
            return False  # it cannot be composed, whatever the seed
        return any("seed}" in one for one in (*words, text))

    def _checked(self, words: list[str]) -> Any:
        found: list[Fault] = []
        try:
            composed = self.composed(words)
            sections = {word: section for word in words if (section := self._section(word))}
            if off := self._that_are_off(composed, words, sections):
                found += [_section_is_off(word, sections[word]) for word in off]
                words = [word for word in words if word not in off]
            config = finish(self.name, composed, words)
        except ConfigError as error:
            return ConfigError(found + error.faults)
        except (HydraException, OmegaConfBaseException) as error:
            return ConfigError([*found, _composition_fault(error)])
        return ConfigError(found) if found else config

    def _that_are_off(self, composed: DictConfig, words: list[str], sections: Mapping[str, str]) -> list[str]:
        """The words that set something in sections which nothing turns on."""
        if sections and self.name == "train" and composed.like is not None:  # that run may have had the section
            composed = _like(composed, [word for word in words if word not in sections])
        return [word for word, section in sections.items() if OmegaConf.select(composed, section) is None]

    def _section(self, word: str) -> str:
        return _section(SCHEMAS[self.name], word)

    def _parse(self, word: str) -> Override:
        if word not in self.parsed:
            self.parsed[word] = OverridesParser.create(config_loader=self.loader).parse_override(word)
        return self.parsed[word]

    def _chooses(self, override: Override) -> bool:
        repository = self.loader.repository  # type: ignore[attr-defined]
        name = override.key_or_group
        return name.startswith("hydra") or (not isinstance(override.value(), dict) and repository.group_exists(name))


class Variants:
    """Configurations of ``train`` that share most words, composed one by one.

    Args:
        fixed: the words that they share.
    """

    def __init__(self, fixed: Sequence[str]) -> None:
        self.fixed = list(fixed)
        with composing() as loader:
            self._composer = _Composer("train", loader)

    def config(self, values: Mapping[str, str]) -> TrainCommand | ConfigError:
        """The configuration with these values of keys or groups, or what keeps it from working."""
        with composing():
            words = [*self.fixed, *(f"{key}={value}" for key, value in values.items())]
            words = quote(words, self._composer.loader)
            return self._composer.checked(words)


def _section(schema: type, word: str) -> str:
    """The section that ``word`` sets something in and that may be off; empty if it is always on."""
    return optional_section(schema, word.partition("=")[0])


def _fixed(overrides: list[Override]) -> list[str]:
    return [one.input_line or "" for one in overrides if not one.is_sweep_override()]


def _alone(composer: _Composer, overrides: list[Override], found: list[Fault]) -> list[Point]:
    """The one run that is asked for; what keeps it from working is added to ``found``."""
    swept = [one for one in overrides if one.is_sweep_override()]
    problem = f"has several values; {program(composer.name)} -m ... runs them sequentially"
    found += [Fault(one.key_or_group, _typed(one), problem) for one in swept]
    problem = f"belongs to a multirun: {program(composer.name)} -m ..."
    found += [Fault(one.key_or_group, _typed(one), problem) for one in overrides if _is_of_multirun(one)]
    return _grid(composer, [one for one in overrides if one not in swept], found)


def _of_multirun(composer: _Composer, overrides: list[Override], found: list[Fault]) -> list[Point]:
    """The runs of a multirun, or where its search begins; what keeps them from working is added to ``found``."""
    loader = composer.loader
    sweep = _sweep_of(composer, overrides, found) if composer.name == "train" else SweepConfig()
    found += _unsweepable(overrides, search=sweep.sampler is not None)
    if sweep.name is not None and not re.fullmatch(r"\w[\w.,=-]{0,99}", sweep.name):
        problem = "must be a folder's name: letters, digits, and - _ . , = between them, 100 at most"
        found.append(Fault("sweep.name", sweep.name, problem))
    space, faulty = space_of(sweep, overrides, loader)
    found += faulty
    if sweep.sampler is not None:
        return [_start_of_search(composer, overrides, space, found)]
    named = [one for one in overrides if one.is_discrete_sweep() or not one.is_sweep_override()]
    if not found:
        written = quote(with_commas(space, overrides), loader)
        named += OverridesParser.create(config_loader=loader).parse_overrides(written)
    return _grid(composer, named, found)


def _grid(composer: _Composer, overrides: list[Override], found: list[Fault]) -> list[Point]:
    """The runs of all combinations of values; what keeps them from working is added to ``found``."""
    made = []
    for words, varies in _combinations(overrides):
        quoted = quote(words, composer.loader)
        config = composer.checked(quoted)
        if isinstance(config, ConfigError):
            found += config.faults
        else:
            made.append(Point(config, quoted, varies))
    return made


def _sweep_of(composer: _Composer, overrides: list[Override], found: list[Fault]) -> SweepConfig:
    """What ``sweep`` is set to; where that cannot be composed, nothing, and ``found`` says why."""
    try:
        return cast(SweepConfig, OmegaConf.to_object(composer.composed(_fixed(overrides)).sweep))
    except (HydraException, OmegaConfBaseException) as error:
        found.append(_composition_fault(error))
        return SweepConfig()


def _start_of_search(composer: _Composer, overrides: list[Override], space: Space, found: list[Fault]) -> Point:
    """Where a search begins.

    Raises:
        ConfigError: with what was ``found`` before; or nowhere in the space can anything be trained.
    """
    if found:
        raise ConfigError(found)
    fixed = _fixed(overrides)

    def words(chosen: Mapping[str, str]) -> list[str]:
        return quote([*fixed, *(f"{key}={value}" for key, value in chosen.items())], composer.loader)

    def out_of_limits(chosen: Mapping[str, str], fault: Fault) -> bool:
        return fault in faults(OmegaConf.to_object(composer.composed(words(chosen))))

    config = first_that_works(space, lambda chosen: composer.checked(words(chosen)), out_of_limits)
    return Point(config, fixed, space=space)


def _combinations(overrides: list[Override]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """All words and the varying ones, for every combination of swept values."""
    values: dict[str, list[str]] = {}
    swept = set()
    for one in overrides:
        key = one.get_key_element()
        if one.is_sweep_override():
            swept.add(key)
            values[key] = list(one.sweep_string_iterator())
        else:
            values[key] = [one.get_value_element_as_str()]
    for combination in product(*values.values()):
        chosen = dict(zip(values, combination, strict=True))
        words = [f"{key}={value}" for key, value in chosen.items()]
        yield words, {key: _unquoted(value) for key, value in chosen.items() if key in swept}


def _unquoted(value: str) -> str:
    """Without quotes that a person would not have typed: those around a number that chooses from a group."""
    return re.sub(r"^'([\w./-]*)'$", r"\1", value)


def _unsweepable(overrides: list[Override], *, search: bool) -> list[Fault]:
    """What cannot have several values in a multirun."""
    found = []
    for one in overrides:
        if not one.is_sweep_override():
            if one.key_or_group == "resume":
                problem = "goes on with one run; the command of a multirun, given again, goes on with all of its trials"
                found.append(Fault("resume", _typed(one), problem))
        elif not one.is_discrete_sweep() and not search:
            found.append(
                Fault(
                    one.key_or_group,
                    _typed(one),
                    "has no end of values; name some, a,b,c, or search: sweep.sampler=tpe sweep.n_trials=20",
                )
            )
        elif one.is_discrete_sweep() and not list(one.sweep_string_iterator()):
            found.append(Fault(one.key_or_group, _typed(one), "has no values"))
        elif facts_of(one.key_or_group).shared_by_trials:
            found.append(Fault(one.key_or_group, _typed(one), "is the same for all trials; it takes one value"))
    return found


def _is_of_multirun(override: Override) -> bool:
    name = override.key_or_group
    return re.split(r"[./]", name)[0] in ("sweep", "launcher", "rerun") or name.startswith("hydra/")


def _section_is_off(word: str, section: str) -> Fault:
    """An override inside a section that nothing turns on, such as logger.wandb.mode without logger=wandb."""
    key, _, value = word.partition("=")
    group, _, option = section.partition(".")
    choice = f"[default,{option}]" if group == "callbacks" else option
    return Fault(key, value, f"{section} is off; turn it on with {group}={choice}")


def _typed(override: Override) -> str:
    """The value of an override as it was typed."""
    return (override.input_line or "").partition("=")[2].replace("'", "")


def _fill_in(data: DictConfig) -> list[Fault]:
    """Count the classes of a folder of pictures; what keeps that from being done is returned."""
    if is_dotted(data.name):
        return complete_data(data)
    if data.name != "imagefolder":
        return []
    found = []
    if not data.root:
        found.append(
            Fault("data.root", "", "data=imagefolder needs the folder of your pictures, with train/<class>/* in it")
        )
    classes = 2  # stands in where they can't be counted, so that the rest is checked all the same
    if not found:
        try:
            classes = _classes(data.root)
        except DataError as error:
            found.append(Fault("data.root", data.root, str(error)))
    if OmegaConf.is_missing(data, "num_classes"):
        data.num_classes = classes
    return found


# Looked at once for a thousand trials, and again for the next command.


@cache
def _classes(root: str) -> int:
    return len(ImageFolder.scan(root).classes)


@cache
def _writable(folder: str) -> None:
    check_writable(Path(folder))


def _fault_of(key: str, value: str, action: Callable[[], object]) -> list[Fault]:
    try:
        action()
    except RunError as error:
        return [Fault(key, value, str(error))]
    return []


def _devices_that_are_missing(configs: Sequence[TrainConfig]) -> list[Fault]:
    """The GPUs that are asked for and aren't there. Imports torch, and so only where a GPU is asked for by name."""
    from vitrine.distributed.hardware import choose, gpus, missing_gpu

    found: list[Fault] = []
    if configs and not gpus():  # said once, not for each trial of a multirun
        return [missing_gpu(configs[0].data.name, conf() / "experiment")]
    for config in configs:
        try:
            choose(config)
        except ConfigError as error:
            found += error.faults
    return found


def _composition_fault(error: Exception) -> Fault:
    """What Hydra or OmegaConf says of a configuration file, as a fault."""
    causes = [str(one) for one in (error, error.__cause__) if one is not None]
    lines = dict.fromkeys(line.strip() for cause in causes for line in cause.splitlines() if line.strip())
    key = getattr(error.__cause__, "full_key", None) or "configuration"
    return Fault(
        str(key), "", "; ".join(line for line in lines if not line.startswith(("object_type", "reference_type")))
    )


def _divide(one: float, other: float) -> float:
    """``${divide:0.2,${model.dim}}``. A width of 0 is a fault of its own, and not one of what is divided by it."""
    return one / max(other, 1)


def _if_set(value: object, then: object, otherwise: object) -> object:
    """``${if_set:${model.pretrained},learned,sincos2d}``: the second where the first is not null, else the third."""
    return otherwise if value is None else then


def _share(share: float, pixels: int) -> int:
    """``${share:0.125,${data.image_size}}``: so much of a length in whole pixels, rounded down, but one at least."""
    return max(1, int(share * pixels))


def _register() -> None:
    """Make known to Hydra what conf/ refers to."""
    for name, schema in SCHEMAS.items():
        ConfigStore.instance().store(name=f"{name}_schema", node=schema)
    OmegaConf.register_new_resolver("divide", _divide, replace=True)
    OmegaConf.register_new_resolver("share", _share, replace=True)
    OmegaConf.register_new_resolver("if_set", _if_set, replace=True)


_register()
