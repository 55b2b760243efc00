"""Choices from groups that a recipe overwrites: ``experiment=cifar10/best depth=2``, where the recipe sets model.depth.

Hydra merges the keys of a recipe, or of another file of the whole configuration, after the files of all groups.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

from vitrine.command.composer import Composer
from vitrine.command.overrides import converted, value_text
from vitrine.command.plain_values import load_file, section_of, values_in
from vitrine.command.sources import conf, primary_config, sources
from vitrine.command.user_parts import NO_CHOICE, for_hydra
from vitrine.config.keys import defaults, keys, owner, value_at
from vitrine.config.schema import TrainConfig
from vitrine.errors import ConfigError, Fault
from vitrine.text import as_override, listed

RECIPES = "experiment"
Later = Mapping[str, set[str]]  # the files that are merged after that of a choice, and the keys that each sets


@dataclass(frozen=True)
class _Run:
    """A run: its overrides, and which of them choose files and which set keys."""

    overrides: Sequence[str]
    config: TrainConfig
    chosen: Sequence[Override]
    typed: Sequence[str]


def overwritten_choices(composer: Composer, made: Sequence[tuple[Sequence[str], Any]]) -> list[Fault]:
    """Return a fault for each choice from a group whose keys a recipe overwrites, so that it has no effect on the run.

    A choice has an effect if the run differs without it; one that the defaults or the recipe make as well, if any of
    its keys is not overwritten.

    Args:
        composer: that of the runs.
        made: overrides and configuration of each run.
    """
    found: dict[tuple[str, ...], Fault | None] = {}  # by the choice, the recipe and the keys that are typed
    later: dict[tuple[str, ...], Mapping[str, Later]] = {}  # by the recipe and the groups that are chosen from
    for overrides, config in made:
        if not isinstance(config, TrainConfig) or config.resume is not None or not _may_be_overwritten(overrides):
            continue
        parsed = [composer.parse(text) for text in for_hydra(overrides)]
        chosen = [override for override, chooses_file in parsed if chooses_file]
        typed = [override.key_or_group for override, chooses_file in parsed if not chooses_file]
        recipes = [text for text in overrides if _is_recipe(text)]
        groups = *recipes, *(override.key_or_group for override in chosen)
        if groups not in later:
            later[groups] = _later(composer, chosen)
        for override in chosen:
            case = override.input_line or "", *recipes, *typed
            if override.key_or_group in later[groups] and case not in found:
                run = _Run(overrides, config, chosen, typed)
                found[case] = _fault(composer, run, override, later[groups][override.key_or_group])
    return [fault for fault in found.values() if fault is not None]


def _may_be_overwritten(overrides: Sequence[str]) -> bool:
    """Whether a file is merged after those of the groups: a recipe, one of the user's, or that of this machine."""
    is_there = sources().folder is not None or (conf() / "local" / "default.yaml").exists()
    return is_there or any(map(_is_recipe, overrides))


def _is_recipe(override: str) -> bool:
    return override.partition("=")[0] == RECIPES


def _later(composer: Composer, chosen: Sequence[Override]) -> dict[str, Later]:
    """Return, for each group that is chosen from, the files of the whole configuration that are merged after its own.

    Left out are groups without such a file.
    """
    groups = {override.key_or_group for override in chosen} - {RECIPES}
    entries = _entries(composer, chosen) if groups else ()
    found: dict[str, Later] = {}
    for group in groups:
        last = max((place for place, entry in enumerate(entries) if _group(entry) == group), default=len(entries))
        whole = [entry for entry in entries[last + 1 :] if not entry.package and _group(entry) not in groups]
        files = {_shown(entry): load_file(entry.config_path or "", composer.loader) for entry in whole}
        if later := {shown: {*values_in(file, "")} for shown, file in files.items() if file is not None}:
            found[group] = later
    return found


def _fault(composer: Composer, run: _Run, override: Override, later: Later) -> Fault | None:
    """Return a fault if every effect of a choice is overwritten; ``None`` if it has any."""
    sets = _sets(composer, override)
    overwritten = {
        key: (shown, value)
        for shown, names in later.items()
        for key, value in sets.items()
        if _overlaps(key, names) and value_at(run.config, key) != value and not _overlaps(key, run.typed)
    }
    remains = not all(_overlaps(key, [*run.typed, *chain(*later.values())]) for key in sets)
    if not overwritten or _has_effect(composer, run, override.key_or_group, remains=remains):
        return None
    of_schema = {*keys(TrainConfig)}  # others are sections, which the choice leaves off
    now = [f"{key}={as_override(value_at(run.config, key))}" if key in of_schema else key for key in overwritten]
    instead = " ".join(f"{key}={as_override(value)}" for key, (_, value) in overwritten.items())
    files = listed(list(dict.fromkeys(shown for shown, _ in overwritten.values())))
    return Fault(override.key_or_group, value_text(override), f"has no effect: {files} sets {listed(now)}", instead)


def _sets(composer: Composer, override: Override) -> dict[str, Any]:
    """Return the values that a choice stands for, by key; ``None`` for a section that it leaves off.

    Of a group with a section of its own, these are the defaults as well. Values that are computed are left out.
    """
    group, choices, of_schema = override.key_or_group, override.value(), {*keys(TrainConfig)}
    found: dict[str, Any] = {}
    for choice in choices if isinstance(choices, list) else [choices]:
        file = load_file(f"{group}/{choice}", composer.loader)
        if file is None or not (section := section_of(group, file)):
            return {}
        if section == group and group not in NO_CHOICE:
            found = {key: value for key, value in defaults(TrainConfig).items() if key.startswith(f"{group}.")} | found
        values = values_in(file, section)
        found = {key: value for key, value in found.items() if not _overlaps(key, values)}
        found |= values
    sets: dict[str, Any] = {}
    for key, value in found.items():
        if key not in of_schema and value is None:
            sets[key] = None
        elif key in of_schema and "${" not in str(value):
            with suppress(OmegaConfBaseException):
                sets[key] = converted(*owner(TrainConfig, key), value)
    return sets


def _has_effect(composer: Composer, run: _Run, group: str, *, remains: bool) -> bool:
    """Whether the run differs without its choice from a group; or, if that is made anyway, whether it ``remains``."""
    others = [override for override in run.chosen if override.key_or_group != group]
    files, otherwise = (
        [e.config_path for e in _entries(composer, c) if _group(e) == group] for c in (run.chosen, others)
    )
    if files == otherwise:
        return remains
    without = composer.checked([text for text in run.overrides if text.partition("=")[0] != group])
    return isinstance(without, ConfigError) or without != run.config


def _entries(composer: Composer, chosen: Sequence[Override]) -> Sequence[ResultDefault]:
    lines = [override.input_line or "" for override in chosen]
    return composer.loader.compute_defaults_list(primary_config("train"), lines, RunMode.RUN).defaults


def _group(entry: ResultDefault) -> str:
    return (entry.config_path or "").partition("/")[0]


def _shown(entry: ResultDefault) -> str:
    path = entry.config_path or ""
    return f"{RECIPES}={path.partition('/')[2]}" if _group(entry) == RECIPES else f"{path}.yaml"


def _overlaps(key: str, names: Iterable[str]) -> bool:
    """Whether one of ``names`` is ``key``, or one of the two is a section around the other."""
    return any(f"{key}.".startswith(f"{name}.") or f"{name}.".startswith(f"{key}.") for name in names)
