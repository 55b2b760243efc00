"""Overrides that only set values from which no other value is computed: what most trials of a grid differ in.

``seed=3`` sets one value; ``position=rope`` sets those in its file, which has no defaults list and no interpolations.
Configurations that differ in nothing else need only one composition, by Hydra in tens of milliseconds: the others are
copies of its result with their values set. They are what compositions of their own would give, and are checked as such.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vitrine.command.overrides import converted
from vitrine.command.user_parts import names_part
from vitrine.config.keys import is_size_field, optional_section, owner
from vitrine.config.parts import is_dotted
from vitrine.config.size import is_size
from vitrine.config.sweep import TrainCommand, facts_of
from vitrine.runs.flatten import flatten

Config = TypeVar("Config")
# A data set's name decides what else is read, several labels which classes there are, and a model's name which keys.
DECISIVE = ("data.name", "data.multi_label", "model.name")


def values_of(override: Override, *, chooses_file: bool, loader: ConfigLoader) -> dict[str, Any] | None:
    """Return the values of keys that an override of ``train`` sets, converted to the keys' types.

    Returns:
        ``None`` where it does something else, or may: sets a list that is no size, a path, a key inside a section that
        can be off, or a user's part; or chooses a file that has a defaults list or interpolations.
    """
    name, value = override.key_or_group, override.value()
    if not chooses_file:
        found = {name: value}
    elif isinstance(value, str) and not name.startswith("hydra"):
        file = load_file(f"{name}/{value}", loader)
        if file is None or file.defaults_list:
            return None
        found = values_in(file, section_of(name, file))
    else:
        return None
    try:
        return {key: _checked_value(key, value) for key, value in found.items()}
    except (ValueError, OmegaConfBaseException):
        return None


def referred(base: DictConfig, values: Iterable[object]) -> frozenset[str]:
    """Return what interpolations in ``base``, or in ``values`` beside it, refer to: keys, ends of keys, and words."""
    texts = (str(value) for value in (*flatten(OmegaConf.to_container(base)).values(), *values))  # type: ignore[arg-type]
    found = (name.strip(".") for text in texts if "${" in text for name in re.findall(r"[\w.]+", text))
    return frozenset(filter(None, found))


def is_among(key: str, names: Collection[str]) -> bool:
    """Whether one of ``names`` is ``key``, a section around it, or its end, as in a relative interpolation."""
    return any(f"{key}.".startswith(f"{name}.") or key.endswith(f".{name}") for name in names)


def later_keys(
    primary: str, choices: Iterable[str], groups: Collection[str], loader: ConfigLoader
) -> dict[str, set[str]]:
    """Return, for each group, the keys that files merged after that of its choice set.

    Left out are groups whose values may depend on more than this: on an interpolation in a defaults list, or on
    another place in the configuration than the one that the file names.
    """
    entries = loader.compute_defaults_list(primary, list(choices), RunMode.RUN).defaults
    files = [(entry, load_file(entry.config_path or "", loader)) for entry in entries]
    if any("${" in repr(file.defaults_list) for _, file in files if file is not None):
        return {}
    found: dict[str, set[str]] = {}
    later: set[str] = set()
    for entry, file in reversed(files):
        group = entry.override_key
        if file is None or str(entry.config_path).startswith("hydra"):
            continue
        if group in groups and group not in found and entry.package == section_of(group, file):
            found[group] = set(later)
        later.update(values_in(file, entry.package or ""))
    return found


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """Return a copy of a configuration with other values of keys; sections without them are shared."""
    changed: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        name, _, rest = key.partition(".")
        if rest:
            inside.setdefault(name, {})[rest] = value
        else:
            changed[name] = value
    changed |= {name: with_values(getattr(config, name), inner) for name, inner in inside.items()}
    return replace(config, **changed)  # type: ignore[type-var]


def _checked_value(key: str, value: Any) -> Any:
    """Return the value of a key converted to the key's type.

    Raises:
        ValueError: more than this key may depend on the value.
        OmegaConfBaseException: the key cannot have it.
    """
    section, leaf = owner(TrainCommand, key)
    is_plain = value is None or isinstance(value, (bool, int, float, str))
    is_plain = is_plain or (section is not None and is_size_field(section, leaf) and is_size(value))
    if section is None or optional_section(TrainCommand, key) or key in DECISIVE or facts_of(key).path or not is_plain:
        raise ValueError(key)
    if (names_part(key) and is_dotted(value)) or "${" in str(value) or value == MISSING:
        raise ValueError(key)
    return converted(section, leaf, value)


def load_file(path: str, loader: ConfigLoader) -> ConfigResult | None:
    """Return the file at a path such as ``position/rope``; ``None`` if there is none."""
    file: ConfigResult | None = loader.repository.load_config(path)  # type: ignore[attr-defined]
    return file


def values_in(file: ConfigResult, section: str) -> dict[str, Any]:
    """Return the values that a file sets in a section, by dotted key."""
    return flatten(OmegaConf.to_container(file.config), f"{section}." if section else "")  # type: ignore[arg-type]


def section_of(group: str, file: ConfigResult) -> str:
    """Return the section that a file of a group sets, as its first line says; by default that of the group's name."""
    package = file.header["package"]
    return group.replace("/", ".") if package is None else package.removeprefix("_global_").strip(".")
