"""What is typed on the command line, checked word by word, so that all of its faults are told at once.

Hydra stops at the first fault; this looks at each override for itself: does its group have that option, does its key
exist, can its value have that key's type? Limits and combinations are checked later, on the composed whole.
"""

import dataclasses
import re
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

from vitrine.config.keys import keys, keys_where, owner, without_none
from vitrine.config.schema import EvalConfig
from vitrine.config.sweep import TrainCommand
from vitrine.errors import Fault
from vitrine.redact import SECRET_PROBLEM, contains_secret, is_secret_name, redact
from vitrine.text import nearest

_HYDRA = ("hydra", "hydra/")
PATH_KEYS = {*keys_where(TrainCommand, path=True), *keys_where(EvalConfig, path=True)}


def check_overrides(arguments: Iterable[str], schema: type, loader: ConfigLoader) -> tuple[list[str], list[Fault]]:
    """Split ``arguments`` into those that can be composed and the faults of the others.

    Args:
        arguments: overrides in Hydra's grammar, as typed.
        schema: dataclass of the whole configuration.
        loader: Hydra's, which knows the groups and their options.
    """
    parser = OverridesParser.create(config_loader=loader)
    groups = all_groups(loader)
    known = groups | set(keys(schema))
    sound, faults = [], []
    for argument in arguments:
        name, _, value = argument.partition("=")
        tokens = name.startswith("model.")  # those of images
        if contains_secret(argument) or (
            is_secret_name(name) and value and not tokens and name.lstrip("+~") not in known
        ):
            faults.append(Fault(redact(name), "", SECRET_PROBLEM))
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
    groups = all_groups(loader)

    def quoted(word: str) -> str:
        name, _, value = word.partition("=")
        if name.lstrip("+") in groups and re.fullmatch(r"[\w,/-]+", value):
            return f"{name}=" + ",".join(f"'{one}'" if one.isdigit() else one for one in value.split(","))
        if name in PATH_KEYS and re.search(r"[ =()\[\]{}:]", value) and not re.search(r"[,'\"]", value):
            return f"{name}='{value}'"
        return word

    return [quoted(word) for word in arguments]


def _faults(override: Override, schema: type, loader: ConfigLoader, groups: frozenset[str]) -> Iterator[Fault]:
    name = override.key_or_group
    if name.startswith(_HYDRA) or override.package is not None or override.is_delete():
        return  # Hydra's own, or rare enough to leave to Hydra
    if name in groups:
        options = list(group_options(loader, name))
        for value in _values(override):
            for one in value if isinstance(value, list) else [value]:
                given = "null" if one is None else str(one)
                if given not in options:
                    problem = f"{name} has no option of that name; it has {', '.join(sorted(options))}"
                    yield Fault(name, given, problem, _near_option(name, given, options))
        return
    section, leaf = owner(schema, name)
    if section is None:
        known = [*keys(schema), *groups]
        yield Fault(name, "", _unknown_problem(name, known), _near_key(name, known))
        return
    inner = without_none(typing.get_type_hints(section)[leaf])
    if dataclasses.is_dataclass(inner):
        return  # a whole section, {..}: left to Hydra
    for value in _values(override):
        if isinstance(value, str) and "${" in value:
            continue
        node = OmegaConf.structured(section)
        try:
            node[leaf] = value
        except OmegaConfBaseException:
            yield Fault(name, str(value), f"must be {_type_name(typing.get_type_hints(section)[leaf])}")


def _values(override: Override) -> Iterator[Any]:
    """The value as plain Python, or each of them where the override sweeps."""
    if override.is_sweep_override():
        for text in override.sweep_string_iterator() if override.is_discrete_sweep() else ():
            one = OverridesParser.create().parse_override(f"{override.key_or_group}={text}")
            yield one.value()
    else:
        yield override.value()


@lru_cache(maxsize=8)
def all_groups(loader: ConfigLoader) -> frozenset[str]:
    """All groups but Hydra's own, those inside others included. Kept: Hydra takes a tenth of a second to list them."""
    return frozenset(_groups(loader))


def _groups(loader: ConfigLoader, parent: str = "") -> Iterator[str]:
    for group in loader.get_group_options(parent, ObjectType.GROUP):
        path = f"{parent}/{group}" if parent else group
        if not path.startswith(_HYDRA):
            yield path
            yield from _groups(loader, path)


def group_options(loader: ConfigLoader, group: str, prefix: str = "") -> Iterator[str]:
    """Options of a group, those in folders inside it included: ``mnist/quick``."""
    for option in loader.get_group_options(group, ObjectType.CONFIG):
        yield f"{prefix}{option}"
    for inner in loader.get_group_options(group, ObjectType.GROUP):
        yield from group_options(loader, f"{group}/{inner}", f"{prefix}{inner}/")


def _type_name(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    inner = without_none(hint)
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
