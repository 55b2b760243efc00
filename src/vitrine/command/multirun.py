"""Which configurations a command line asks for: a single run, every combination of values, or the start of a search."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vitrine.command.combinations import combinations, never_run, number_of_combinations, unquoted
from vitrine.command.composer import NEEDED, Composer, allowed_by
from vitrine.command.composition_faults import composition_fault, unlike_their_type
from vitrine.command.grammar import MAX_TRIALS, TOO_MANY
from vitrine.command.idle_keys import idle_keys
from vitrine.command.overrides import quote, value_text
from vitrine.command.overwritten import overwritten_choices
from vitrine.command.sources import Sources, composing, sources
from vitrine.command.space import Interval, Space, as_overrides, examples, space_of, unvaried
from vitrine.command.spelling import key_of, spelled
from vitrine.command.user_parts import is_option, names_in_values, options_keys
from vitrine.config.fields import faults
from vitrine.config.sweep import READ_BY, SweepConfig, sbatch_faults
from vitrine.config.trust import refusal
from vitrine.errors import ConfigError, Fault
from vitrine.runs.provenance import program
from vitrine.text import as_override

# What to type in place of several values where there is no multirun.
SEVERAL_OF_PREDICT = {
    "run": "run=[RUN,RUN] averages several runs",
    "target": "give one; quote a name with commas: 'target=\"a,b\"'",
    "input": "name a folder, a pattern ('DIR/*.png') or a CSV file; quote a name with commas: 'input=\"a,b\"'",
}

Made = tuple[list[str], dict[str, str], Any]  # all overrides of a run, those that vary, and its configuration


@dataclass(frozen=True)
class Point:
    """A run that a command line asks for.

    Attributes:
        config: its checked configuration.
        overrides: all overrides that it is composed from.
        varies: the overrides in which it differs from the other runs of a multirun: key or group, and value as typed.
        space: what a search varies. The point then stands for the whole search and is a feasible start. Else empty.
        folder: folder that ``hydra.run.dir`` or ``hydra.sweep.dir`` gives the run or the sweep; ``None`` if not given.
        subfolder: name that ``hydra.sweep.subdir`` gives the run's folder in the sweep; ``None`` if not given.
    """

    config: Any
    overrides: list[str]
    varies: dict[str, str] = field(default_factory=dict)
    space: Space = field(default_factory=dict)
    folder: Path | None = None
    subfolder: str | None = None

    @property
    def shared(self) -> list[str]:
        """The overrides that it shares with the other runs of its multirun."""
        return [override for override in self.overrides if override.partition("=")[0] not in self.varies]


def varying_keys(points: Iterable[Point]) -> list[str]:
    """Return the keys or groups that vary between the runs of a multirun; not every run has each of them."""
    return list(dict.fromkeys(key for point in points for key in point.varies))


def name_of_sweep(points: Sequence[Point]) -> tuple[list[str], list[str]]:
    """Return the fixed overrides and varying keys that name a sweep, whichever values its command lists.

    An option with one value is fixed, also where some of the parts that are listed do not take it.
    """
    keys, fixed = varying_keys(points), points[0].shared
    for key in [key for key in keys if any(key not in point.varies for point in points)]:
        texts = {text for point in points for text in point.overrides if text.startswith(f"{key}=")}
        if len(texts) == 1:
            keys.remove(key)
            fixed += texts
    return fixed, keys


def single_run(composer: Composer, overrides: Sequence[Override], found: list[Fault]) -> list[Point]:
    """Return the run, as a list of at most one; its faults are added to ``found``."""
    swept = [override for override in overrides if override.is_sweep_override()]
    found += several_values(composer.command, swept)
    problem = f"belongs to a multirun: {program(composer.command)} -m ..."
    found += [
        Fault(override.key_or_group, value_text(override), problem)
        for override in overrides
        if is_of_multirun(override.key_or_group) and not override.key_or_group.startswith("hydra.")
    ]
    if any(override.key_or_group in NEEDED for override in swept):
        return []  # without its value, a needed key would be reported as missing
    return _grid(composer, [override for override in overrides if override not in swept], found)


def runs_of_multirun(composer: Composer, overrides: Sequence[Override], found: list[Fault]) -> list[Point]:
    """Return the runs of ``-m``, or the point at which its search starts; their faults are added to ``found``."""
    loader = composer.loader
    composed = _composed(composer, overrides, found) if composer.command == "train" else None
    sweep = SweepConfig() if composed is None else _sweep_of(composed, found)
    found += _unsweepable(overrides, search=sweep.sampler is not None)
    if sweep.name is not None and not re.fullmatch(r"\w[\w.,=-]{0,99}", sweep.name):
        problem = "must be a folder name of at most 100 letters, digits and - _ . , ="
        found.append(Fault("sweep.name", sweep.name, problem))
    space, faulty = space_of(sweep, overrides, loader)
    found += faulty
    if composed is not None:
        found += _unallowed_names(composed, space, overrides)
        found += _unallowed_commands(composed, overrides)
        found += _idle_launcher_keys(composer, overrides)
        found += sbatch_faults([str(option) for option in composed.launcher.sbatch or ()])
    found += _undecidable(sweep, overrides, space)
    found += _unlike_losses(sweep, overrides, space)
    if sweep.sampler is not None:
        return [_start_of_search(composer, overrides, space, found)]
    listed = [override for override in overrides if override.is_discrete_sweep() or not override.is_sweep_override()]
    if not found:
        written = quote(as_overrides(space, overrides))
        listed += OverridesParser.create(config_loader=loader).parse_overrides(written)
    return _grid(composer, listed, found, one_at_a_time=sweep.one_at_a_time)


def several_values(command: str, swept: Sequence[Override]) -> list[Fault]:
    """Return a fault for each override with several values, outside a multirun; ``predict`` has none."""
    instead = SEVERAL_OF_PREDICT if command == "predict" else {}
    default = "give one" if instead else f"{program(command)} -m ... runs them sequentially"
    return [
        Fault(name := override.key_or_group, value_text(override), f"has several values; {instead.get(name, default)}")
        for override in swept
    ]


def fixed_overrides(overrides: Sequence[Override]) -> list[str]:
    """Return the overrides with a single value; of several of one key, the last."""
    fixed = {key_of(override): spelled(override) for override in overrides if not override.is_sweep_override()}
    return list(fixed.values())


def is_of_multirun(name: str) -> bool:
    """Whether a key or group says which runs a multirun makes, and how, or where they go."""
    return re.split(r"[./]", name)[0] in ("sweep", "launcher", "rerun", "hydra")


def _grid(
    composer: Composer, overrides: Sequence[Override], found: list[Fault], *, one_at_a_time: bool = False
) -> list[Point]:
    """Return the runs of all combinations, or with one value changed at a time; faults are added to ``found``."""
    points: list[Point] = []
    swept = [override for override in overrides if override.is_sweep_override()]
    count = number_of_combinations(swept, one_at_a_time=one_at_a_time)
    if count > MAX_TRIALS:
        given = " ".join(override.input_line or "" for override in swept)
        found.append(Fault(given, "", f"are {count:,} combinations; {TOO_MANY}"))
        return points
    made = [
        (chosen, varies, composer.checked(quote(chosen)))
        for chosen, varies in combinations(overrides, one_at_a_time=one_at_a_time)
    ]
    for chosen, varies, config in _without_idle_options(composer, overrides, made):
        if isinstance(config, ConfigError):
            found += config.faults
        else:
            points.append(Point(config, quote(chosen), varies))
    if one_at_a_time and not found:
        found += never_run(swept, [point.varies for point in points])
    typed = {override.key_or_group: value_text(override) for override in overrides}
    found += idle_keys(typed, [point.config for point in points])
    found += overwritten_choices(composer, [(point.overrides, point.config) for point in points])
    return points


def _without_idle_options(composer: Composer, overrides: Sequence[Override], made: Sequence[Made]) -> Iterable[Made]:
    """Return the runs, each without the options of parts that its own part does not take, if that of another run does.

    Such an option varies, then: ``position=sincos2d,my_lab.Mine model.position_options.a=3`` gives it to Mine alone.
    """
    typed = {key_of(override): [*_options(override)] for override in overrides}
    typed = {key: options for key, options in typed.items() if options}
    untaken = [{key for key, options in typed.items() if _is_untaken(options, config)} for *_, config in made]
    if not any(untaken) or not (partly := set[str]().union(*untaken) - untaken[0].intersection(*untaken)):
        return made
    found: dict[tuple[str, ...], Made] = {}
    for (chosen, varies, config), idle in zip(made, untaken, strict=True):
        given = {key: text for text in chosen if (key := text.partition("=")[0]) not in idle & partly}
        own = {key: unquoted(text.partition("=")[2]) for key, text in given.items() if key in {*varies, *partly}}
        kept = list(given.values())
        found.setdefault(tuple(kept), (kept, own, composer.checked(quote(kept)) if idle & partly else config))
    return found.values()


def _options(override: Override) -> Iterator[str]:
    """Yield the options of parts that an override sets, by their keys."""
    key, value = override.key_or_group, override.value()
    if is_option(key):
        yield key
    elif key in options_keys() and isinstance(value, dict):
        yield from (f"{key}.{name}" for name in value)


def _is_untaken(options: Sequence[str], config: Any) -> bool:
    """Whether a run is refused for each of ``options``, by their keys."""
    faulty = [fault.key for fault in config.faults if is_option(fault.key)] if isinstance(config, ConfigError) else []
    return all(any(f"{option}.".startswith(f"{key}.") for key in faulty) for option in options)


def _composed(composer: Composer, overrides: Sequence[Override], found: list[Fault]) -> DictConfig | None:
    """Return what all runs share; ``None``, with a fault added to ``found``, where it cannot be composed."""
    try:
        return composer.composed(fixed_overrides(overrides))[0]
    except ConfigError as error:
        found += error.faults
        return None


def _sweep_of(composed: DictConfig, found: list[Fault]) -> SweepConfig:
    """Return the section ``sweep``; its defaults, with a fault added to ``found``, where its values are wrong."""
    try:
        sweep = cast(SweepConfig, OmegaConf.to_object(composed.sweep))
    except OmegaConfBaseException as error:
        found.append(composition_fault(error))
        return SweepConfig()
    misfits = list(unlike_their_type(sweep, "sweep."))
    found += misfits
    return SweepConfig() if misfits else sweep


def _unallowed_names(composed: DictConfig, space: Space, overrides: Sequence[Override]) -> list[Fault]:
    """Return the user's parts that ``sweep.space`` of a configuration file names without permission.

    The space becomes overrides, whose names count as typed; so this is checked before.
    """
    allowed, typed = allowed_by(composed), {override.key_or_group for override in overrides}
    written = {key: values for key, values in space.items() if not isinstance(values, Interval) and key not in typed}
    return [
        Fault(f"sweep.space.{key}", name, f"{sources().folder} {refusal({key: name})}")
        for key, values in written.items()
        for name in names_in_values(key, values)
        if not allowed(name)
    ]


def _unallowed_commands(composed: DictConfig, overrides: Sequence[Override]) -> list[Fault]:
    """Return the shell commands and options of sbatch that a folder gives that was only found."""
    if sources().folder is None or sources().typed:
        return []
    typed = {override.key_or_group for override in overrides}
    with composing(Sources()):
        packaged = hydra.compose("train").launcher
    found = []
    for name in ("setup", "sbatch", "partition", "account", "qos"):
        key, value = f"launcher.{name}", composed.launcher[name]
        is_word = isinstance(value, str) and re.fullmatch(r"[\w.,:-]+", value)
        if value and not is_word and key not in typed and value != packaged[name]:
            problem = f"{sources().folder} was not named, so it cannot run commands; type {key}=... or --config-dir"
            found.append(Fault(key, str(value), problem))
    return found


def _idle_launcher_keys(composer: Composer, overrides: Sequence[Override]) -> list[Fault]:
    """Return a fault for each typed key of ``launcher`` that the chosen launcher does not read.

    Keys with several values are left out: they are refused as such.
    """
    typed: dict[str, str] = {}
    for override in overrides:
        section, _, name = override.key_or_group.partition(".")
        if section != "launcher" or override.is_sweep_override():
            continue
        if name:
            typed[name] = value_text(override)
        elif isinstance(values := override.value(), dict):
            typed |= {str(key): as_override(value) for key, value in values.items()}
    if not typed:
        return []
    chosen = composer.settings(fixed_overrides(overrides)).runtime.choices["hydra/launcher"]
    found = []
    for name, value in typed.items():
        if name not in READ_BY.get(chosen, (name,)):
            near = next(launcher for launcher, read in READ_BY.items() if name in read)
            problem = f"has no effect with hydra/launcher={chosen}"
            found.append(Fault(f"launcher.{name}", value, problem, f"hydra/launcher={near}"))
    return found


def _start_of_search(composer: Composer, overrides: Sequence[Override], space: Space, found: list[Fault]) -> Point:
    """Return the point at which a search starts: the first value of each key, or else another value of one key.

    Raises:
        ConfigError: with the faults ``found`` before; a value, or an end of an interval, is never allowed; or no such
            point is feasible.
    """
    if found:
        raise ConfigError(found)
    fixed = fixed_overrides(overrides)
    first = {key: examples(values)[0] for key, values in space.items()}
    others = [first | {key: value} for key, values in space.items() for value in examples(values)[1:]]
    allowed: list[tuple[list[str], Any]] = []
    refused: list[ConfigError] = []
    never: list[Fault] = []  # whatever the values of other keys are
    for chosen in [first, *others]:
        typed = quote([*fixed, *(f"{key}={value}" for key, value in chosen.items())])
        config = composer.checked(typed)
        if not isinstance(config, ConfigError):
            allowed.append((typed, config))
            continue
        refused.append(config)
        if own := [fault for fault in config.faults if fault.key in chosen]:
            limits = faults(OmegaConf.to_object(composer.composed(typed)[0]))
            never += [fault for fault in own if fault in limits]
    if never:
        raise ConfigError(never)
    if not allowed:
        raise refused[0]
    given = dict.fromkeys(space, "") | {override.key_or_group: value_text(override) for override in overrides}
    if idle := [*idle_keys(given, [one for _, one in allowed]), *overwritten_choices(composer, allowed)]:
        raise ConfigError(idle)
    return Point(allowed[0][1], fixed, space=space)


def _unsweepable(overrides: Sequence[Override], *, search: bool) -> list[Fault]:
    """Return a fault for each override that a multirun cannot have."""
    found = []
    for override in overrides:
        key, value = override.key_or_group, value_text(override)
        if not override.is_sweep_override():
            if key == "resume":
                problem = "resumes a single run; to resume a sweep, run its command again"
                found.append(Fault(key, value, problem))
        elif not override.is_discrete_sweep() and not search:
            problem = "is continuous: list values, a,b,c, or search it: sweep.sampler=tpe sweep.n_trials=20"
            found.append(Fault(key, value, problem))
        elif override.is_discrete_sweep() and not list(override.sweep_string_iterator()):
            found.append(_without_values(override))
        elif problem := unvaried(key):
            found.append(Fault(key, value, problem))
    return found


def _without_values(override: Override) -> Fault:
    """The fault of an override that lists no value; of a glob, with the choices in folders of the group that match."""
    key, swept = override.key_or_group, cast(Any, override.value())
    nested = ",".join(swept.filter(sources().choices(key))) if isinstance(swept, Glob) else ""
    problem = "has no values: glob() leaves out what is in folders of the group" if nested else "has no values"
    return Fault(key, value_text(override), problem, f"{key}={nested}" if nested else "")


def _undecidable(sweep: SweepConfig, overrides: Sequence[Override], space: Space) -> list[Fault]:
    """Return what a sweep that decides by seeds cannot have."""
    if sweep.method is None:
        return []
    found = []
    if sweep.sampler is not None:
        problem = "decides between configurations that are given; a search, sweep.sampler, chooses them"
        found.append(Fault("sweep.method", sweep.method, problem))
    varied = {*space, *(override.key_or_group for override in overrides if override.is_sweep_override())}
    if "seed" in varied:
        problem = "trains as many seeds as it takes: leave seed out, and set sweep.max_seeds"
        found.append(Fault("sweep.method", sweep.method, problem))
    for key in sorted({"data.fold", "data.val_seed"} & varied):
        found.append(Fault(key, "", "repeats configurations, which sweep=decide does by seeds: give one value"))
    if sweep.max_seeds < sweep.min_seeds:
        found.append(Fault("sweep.max_seeds", str(sweep.max_seeds), f"is below sweep.min_seeds={sweep.min_seeds}"))
    return found


def _unlike_losses(sweep: SweepConfig, overrides: Sequence[Override], space: Space) -> list[Fault]:
    """Return the keys that vary what a loss measures, where a search or a decision is by that loss."""
    key, metrics = ("sweep.metrics", sweep.metrics) if sweep.sampler else ("sweep.metric", [sweep.metric])
    varied = [*space, *(override.key_or_group for override in overrides if override.is_sweep_override())]
    changed = [
        name
        for name in dict.fromkeys(varied)
        if name in ("loss", "loss.name", "loss.gamma", "data.targets") or name.startswith("loss.options")
    ]
    problem = f"measures another loss for each value of {', '.join(changed)}; choose another metric, such as val/acc"
    return [Fault(key, metric, problem) for metric in metrics if changed and metric in ("val/loss", "test/loss")]
