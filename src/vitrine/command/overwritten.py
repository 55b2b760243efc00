"""Choices from groups that a recipe overwrites: ``experiment=cifar10/best depth=2``, where the recipe sets model.depth.

Hydra merges the keys of a recipe, or of another file of the whole configuration, after the files of all groups.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

from vitrine.command.composer import Composer
from vitrine.command.overrides import converted
from vitrine.command.plain_values import load, package_of, values_in
from vitrine.command.sources import conf, primary_config, sources
from vitrine.command.user_parts import NO_CHOICE, for_hydra
from vitrine.config.keys import defaults, keys, owner, value_at
from vitrine.config.schema import TrainConfig
from vitrine.errors import ConfigError, Fault
from vitrine.text import as_override, listed

RECIPES = "experiment"
Later = Mapping[str, Mapping[str, set[str]]]  # by group, the files merged after its own, and the keys that they set


def overwritten_choices(composer: Composer, made: Sequence[tuple[Sequence[str], Any]]) -> list[Fault]:
    """Return a fault for each choice from a group whose keys a recipe sets, so that the run is the same without it.

    A choice that the recipe makes as well has an effect, and so has one of whose keys any is left.

    Args:
        composer: that of the runs.
        made: overrides and configuration of each run.
    """
    found: dict[tuple[str, ...], Fault | None] = {}  # by the choice, the recipe and the keys that are typed
    later: dict[tuple[str, ...], Later] = {}
    for overrides, config in made:
        if not isinstance(config, TrainConfig) or config.resume is not None or not _may_be_overwritten(overrides):
            continue
        parsed = [composer.parse(text) for text in for_hydra(overrides)]
        chosen = [override for override, chooses_file in parsed if chooses_file]
        typed = [override.key_or_group for override, chooses_file in parsed if not chooses_file]
        recipes = [text for text in overrides if _is_recipe(text)]
        files = *recipes, *(override.key_or_group for override in chosen)
        for override in chosen:
            case = override.input_line or "", *recipes, *typed
            if override.key_or_group != RECIPES and case not in found:
                if files not in later:
                    later[files] = _later(composer, chosen)
                lost = _lost(composer, override, config, typed, later[files].get(override.key_or_group, {}))
                idle = lost and _is_idle(composer, overrides, config, chosen, override.key_or_group)
                found[case] = _fault(override, config, lost) if idle else None
    return [fault for fault in found.values() if fault is not None]


def _may_be_overwritten(overrides: Sequence[str]) -> bool:
    """Whether a file is merged after those of the groups: a recipe, one of the user's, or that of this machine."""
    is_there = sources().folder is not None or (conf() / "local" / "default.yaml").exists()
    return is_there or any(map(_is_recipe, overrides))


def _is_recipe(override: str) -> bool:
    return override.partition("=")[0] == RECIPES


def _later(composer: Composer, chosen: Sequence[Override]) -> Later:
    entries = _entries(composer, chosen)
    typed = {override.key_or_group for override in chosen} - {RECIPES}
    found: dict[str, dict[str, set[str]]] = {}
    for group in typed:
        last = max((place for place, entry in enumerate(entries) if _group(entry) == group), default=len(entries))
        whole = [entry for entry in entries[last + 1 :] if not entry.package and _group(entry) not in typed]
        files = {_shown(entry): load(entry.config_path or "", composer.loader) for entry in whole}
        found[group] = {shown: {*values_in(file, "")} for shown, file in files.items() if file is not None}
    return found


def _lost(
    composer: Composer, override: Override, config: TrainConfig, typed: Sequence[str], later: Mapping[str, set[str]]
) -> dict[str, tuple[str, Any]]:
    """Return the keys of a choice that another file sets to another value, with that file and the choice's value."""
    return {
        key: (shown, value)
        for shown, names in later.items()
        for key, value in (_sets(composer, override).items() if names else ())
        if any(_overlap(key, name) for name in names)
        if value_at(config, key) != value and not any(_overlap(key, name) for name in typed)
    }


def _fault(override: Override, config: TrainConfig, lost: Mapping[str, tuple[str, Any]]) -> Fault:
    of_schema = {*keys(TrainConfig)}  # others are sections, which the choice leaves off
    now = [f"{key}={as_override(value_at(config, key))}" if key in of_schema else key for key in lost]
    instead = " ".join(f"{key}={as_override(value)}" for key, (_, value) in lost.items())
    files = listed(list(dict.fromkeys(shown for shown, _ in lost.values())))
    given = (override.input_line or "").partition("=")[2].replace("'", "")
    return Fault(override.key_or_group, given, f"has no effect: {files} sets {listed(now)}", instead)


def _sets(composer: Composer, override: Override) -> dict[str, Any]:
    """Return the values that a choice stands for, by key; ``None`` for a section that it leaves off.

    Of a group with a section of its own, these are the defaults as well. Values that are computed are left out.
    """
    group, choices, of_schema = override.key_or_group, override.value(), {*keys(TrainConfig)}
    found: dict[str, Any] = {}
    for choice in choices if isinstance(choices, list) else [choices]:
        if (file := load(f"{group}/{choice}", composer.loader)) is None or not (section := package_of(group, file)):
            return {}
        if section == group and group not in NO_CHOICE:
            found = {key: value for key, value in defaults(TrainConfig).items() if key.startswith(f"{group}.")} | found
        values = values_in(file, section)
        found = {key: value for key, value in found.items() if not any(_overlap(key, name) for name in values)}
        found |= values
    sets: dict[str, Any] = {}
    for key, value in found.items():
        if key not in of_schema and value is None:
            sets[key] = None
        elif key in of_schema and "${" not in str(value):
            with suppress(OmegaConfBaseException):
                sets[key] = converted(*owner(TrainConfig, key), value)
    return sets


def _is_idle(
    composer: Composer, overrides: Sequence[str], config: TrainConfig, chosen: Sequence[Override], group: str
) -> bool:
    """Whether the run is the same without the choice from a group, and another one is made then."""
    others = [override for override in chosen if override.key_or_group != group]
    given, standard = ([e.config_path for e in _entries(composer, c) if _group(e) == group] for c in (chosen, others))
    if given == standard:
        return False
    without = composer.checked([text for text in overrides if text.partition("=")[0] != group])
    return not isinstance(without, ConfigError) and without == config


def _entries(composer: Composer, chosen: Sequence[Override]) -> Sequence[ResultDefault]:
    lines = [override.input_line or "" for override in chosen]
    return composer.loader.compute_defaults_list(primary_config("train"), lines, RunMode.RUN).defaults


def _group(entry: ResultDefault) -> str:
    return (entry.config_path or "").partition("/")[0]


def _shown(entry: ResultDefault) -> str:
    path = entry.config_path or ""
    return f"{RECIPES}={path.partition('/')[2]}" if _group(entry) == RECIPES else f"{path}.yaml"


def _overlap(one: str, other: str) -> bool:
    """Whether two keys are the same, or one is a section around the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")
