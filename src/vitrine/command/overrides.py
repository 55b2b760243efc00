"""What is typed on the command line, checked word by word, so that all of its faults are told at once.

Hydra stops at the first fault; this looks at each override for itself: does its group have that option, does its key
exist, can its value have that key's type? Limits and combinations are checked later, on the composed whole.
"""

import dataclasses
import re
import types
import typing
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vitrine.errors import Fault
from vitrine.redact import TOLD, hide, holds_secret, names_secret
from vitrine.text import nearest

_HYDRA = ("hydra", "hydra/")
PATHS = (
    "run",
    "resume",
    "like",
    "model.pretrained",
    "data_root",
    "data.root",
    "paths.output_dir",
    "paths.data_dir",
    "paths.cache_dir",
)


def check_overrides(arguments: Iterable[str], schema: type, loader: ConfigLoader) -> tuple[list[str], list[Fault]]:
    """Split ``arguments`` into those that can be composed and the faults of the others.

    Args:
        arguments: overrides in Hydra's grammar, as typed.
        schema: dataclass of the whole configuration.
        loader: Hydra's, which knows the groups and their options.
    """
    parser = OverridesParser.create(config_loader=loader)
    groups = _all_groups(loader)
    known = groups | set(keys(schema))
    sound, faults = [], []
    for argument in arguments:
        name, _, value = argument.partition("=")
        tokens = name.startswith("model.")  # those of images
        if holds_secret(argument) or (names_secret(name) and value and not tokens and name.lstrip("+~") not in known):
            faults.append(Fault(hide(name), "", TOLD))
            continue
        try:
            override = parser.parse_override(argument)
        except HydraException as error:
            faults.append(Fault(argument, "", _syntax_problem(argument, error)))
            continue
        override.config_loader = loader  # glob(..) asks it for the options of a group
        found = list(_faults(override, schema, loader, groups))
        faults += found
        if not found:
            sound.append(argument)
    return sound, faults


def quote(arguments: Iterable[str], loader: ConfigLoader) -> list[str]:
    """Put in quotes what Hydra's grammar would refuse as it is typed.

    Numbers that choose from a group, as in ``patch=2``; and paths with spaces, ``=`` or brackets in them.
    """
    groups = _all_groups(loader)

    def quoted(word: str) -> str:
        name, _, value = word.partition("=")
        if name.lstrip("+") in groups and re.fullmatch(r"[\w,/-]+", value):
            return f"{name}=" + ",".join(f"'{one}'" if one.isdigit() else one for one in value.split(","))
        if name in PATHS and re.search(r"[ =()\[\]{}:]", value) and not re.search(r"[,'\"]", value):
            return f"{name}='{value}'"
        return word

    return [quoted(word) for word in arguments]


def optional_section(schema: Any, dotted: str) -> str:
    """The section of ``dotted`` that may be null as a whole, as ``logger.wandb`` in ``logger.wandb.mode``; else ""."""
    names = dotted.split(".")
    for depth, name in enumerate(names[:-1], start=1):
        hint = typing.get_type_hints(schema).get(name)
        schema = _without_none(hint)
        if not dataclasses.is_dataclass(schema):
            return ""
        if schema is not hint:
            return ".".join(names[:depth])
    return ""


def kind(schema: Any, dotted: str) -> Any:
    """The type of the value at ``dotted``, without null; ``None`` where there is no such key."""
    owner, leaf = _owner(schema, dotted)
    return None if owner is None else _without_none(typing.get_type_hints(owner)[leaf])


def keys(schema: Any, prefix: str = "") -> Iterator[str]:
    """Every dotted key of ``schema`` that holds a value."""
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        inner = _without_none(hints[field.name])
        if dataclasses.is_dataclass(inner):
            yield from keys(inner, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def _faults(override: Override, schema: type, loader: ConfigLoader, groups: frozenset[str]) -> Iterator[Fault]:
    name = override.key_or_group
    if name.startswith(_HYDRA) or override.package is not None or override.is_delete():
        return  # Hydra's own, or rare enough to leave to Hydra
    if name in groups:
        options = list(_options(loader, name))
        for value in _values(override):
            for one in value if isinstance(value, list) else [value]:
                given = "null" if one is None else str(one)
                if given not in options:
                    problem = f"{name} has no option of that name; it has {', '.join(sorted(options))}"
                    yield Fault(name, given, problem, _near_option(name, given, options))
        return
    owner, leaf = _owner(schema, name)
    if owner is None:
        known = [*keys(schema), *groups]
        yield Fault(name, "", _unknown_problem(name, known), _near_key(name, known))
        return
    inner = _without_none(typing.get_type_hints(owner)[leaf])
    if dataclasses.is_dataclass(inner):
        return  # a whole section, {..}: left to Hydra
    for value in _values(override):
        if isinstance(value, str) and "${" in value:
            continue
        node = OmegaConf.structured(owner)
        try:
            node[leaf] = value
        except OmegaConfBaseException:
            yield Fault(name, str(value), f"must be {_type_name(typing.get_type_hints(owner)[leaf])}")


def _values(override: Override) -> Iterator[Any]:
    """The value as plain Python, or each of them where the override sweeps."""
    if override.is_sweep_override():
        for text in override.sweep_string_iterator() if override.is_discrete_sweep() else ():
            one = OverridesParser.create().parse_override(f"{override.key_or_group}={text}")
            yield one.value()
    else:
        yield override.value()


@lru_cache(maxsize=8)
def _all_groups(loader: ConfigLoader) -> frozenset[str]:
    """Looked up once: Hydra takes a tenth of a second for it."""
    return frozenset(_groups(loader))


def _groups(loader: ConfigLoader, parent: str = "") -> Iterator[str]:
    for group in loader.get_group_options(parent, ObjectType.GROUP):
        path = f"{parent}/{group}" if parent else group
        if not path.startswith(_HYDRA):
            yield path
            yield from _groups(loader, path)


def _options(loader: ConfigLoader, group: str, prefix: str = "") -> Iterator[str]:
    """Options of a group, those in folders inside it included: ``mnist/quick``."""
    for option in loader.get_group_options(group, ObjectType.CONFIG):
        yield f"{prefix}{option}"
    for inner in loader.get_group_options(group, ObjectType.GROUP):
        yield from _options(loader, f"{group}/{inner}", f"{prefix}{inner}/")


def _owner(schema: Any, dotted: str) -> tuple[Any, str]:
    """The dataclass that has the last word of ``dotted`` as its field, or ``None`` where there is no such key."""
    *path, leaf = dotted.split(".")
    for name in path:
        hints = typing.get_type_hints(schema)
        schema = _without_none(hints[name]) if name in hints else None
        if not dataclasses.is_dataclass(schema):
            return None, leaf
    return (schema, leaf) if leaf in typing.get_type_hints(schema) else (None, leaf)


def _without_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return next(one for one in typing.get_args(hint) if one is not type(None))
    return hint


def _type_name(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    inner = _without_none(hint)
    if typing.get_origin(inner) is list:
        one = names[typing.get_args(inner)[0]].removeprefix("a ")
        name = f"a list of {one}s, such as [{'0.5' if one == 'number' else 'a,b'}]"
    else:
        name = names.get(inner, str(inner))
    return name if inner is hint else f"{name}, or null"


def _near_option(group: str, given: str, options: list[str]) -> str:
    match = nearest(given, options)
    return f"{group}={match}" if match else ""


def _near_key(given: str, known: list[str]) -> str:
    """The nearest whole key; else a key that ends in the word given, as ``lr`` for ``optimizer.lr``."""
    last = {key.rsplit(".", 1)[-1]: key for key in reversed(known)}
    word = given.rsplit(".", 1)[-1]
    if word in last:
        return last[word]
    match = nearest(word, last)
    return nearest(given, known) or (last[match] if match else "")


def _unknown_problem(given: str, known: list[str]) -> str:
    section = given.rsplit(".", 1)[0]
    inside = [key.removeprefix(f"{section}.") for key in known if key.startswith(f"{section}.")] if "." in given else []
    if inside:
        return f"there is no such key; {section} has {', '.join(inside)}"
    top = sorted({key.split(".", 1)[0].split("/", 1)[0] for key in known})
    return f"there is no such key or group; there are {', '.join(top)}"


def _syntax_problem(argument: str, error: Exception) -> str:
    if "=" not in argument:
        return "is not of the form key=value"
    return f"cannot be read: {str(error).splitlines()[0]} (quote values with special characters: 'key=\"a, b\"')"
