"""Queries over a schema: its dotted keys, their types and their facts.

A schema is a dataclass whose fields are values or, as sections, dataclasses: ``trainer.max_time`` is the key of the
field ``max_time`` of the section ``trainer``.
"""

import dataclasses
import os
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import omegaconf

from vitrine.config.fields import KeyFacts
from vitrine.errors import Fault
from vitrine.text import as_override, listed, nearest


@cache
def hints(schema: Any) -> dict[str, Any]:
    """Return the type of each field of a schema, by name. Python evaluates them anew each time that it is asked."""
    return typing.get_type_hints(schema)


def leaves(schema: Any, prefix: str = "") -> Iterator[tuple[str, "dataclasses.Field[Any]"]]:
    """Yield every dotted key of ``schema`` that holds a value, and its field; ``prefix`` leads to the section."""
    for field in dataclasses.fields(schema):
        inner = without_none(hints(schema)[field.name])
        if dataclasses.is_dataclass(inner):
            yield from leaves(inner, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", field


def keys(schema: Any) -> Iterator[str]:
    """Yield every dotted key of ``schema`` that holds a value."""
    return (key for key, _ in leaves(schema))


def keys_where(schema: type, **wanted: Any) -> tuple[str, ...]:
    """Return the keys whose facts equal ``wanted``: ``keys_where(TrainConfig, may_change_on_resume=True)``."""
    return tuple(
        key for key in keys(schema) if all(getattr(key_facts(schema, key), name) == wanted[name] for name in wanted)
    )


def sections_where(schema: type, **wanted: Any) -> tuple[str, ...]:
    """Return what :func:`keys_where` does, with a section in place of its keys where all of them are among these."""
    found = keys_where(schema, **wanted)
    whole = {key: key for key in found}
    for section in {key.partition(".")[0] for key in found if "." in key}:
        inside = [key for key in keys(schema) if key.startswith(f"{section}.")]
        if all(key in found for key in inside):
            whole |= dict.fromkeys(inside, section)
    return tuple(dict.fromkeys(whole.values()))


@cache
def key_facts(schema: type, key: str) -> KeyFacts:
    """Return the facts of a key or section, those of the sections around it included.

    A name that ``schema`` lacks, such as a key of another version, has the facts that most keys have.
    """
    found: dict[str, Any] = {}
    for field, _ in _along(schema, key):
        found |= field.metadata.get("facts", {})
    return KeyFacts(**found)


def defaults(schema: type) -> dict[str, Any]:
    """Return the default of each key that has one, those of sections that are off included."""
    found: dict[str, Any] = {}
    for key, field in leaves(schema):
        if field.default_factory is not dataclasses.MISSING:
            found[key] = field.default_factory()
        elif field.default not in (dataclasses.MISSING, omegaconf.MISSING):
            found[key] = field.default
    return found


def section_problem(name: str, section: Any) -> str:
    """Return what is wrong with a single value for a whole section."""
    return f"is a section; its keys are {listed([f'{name}.{field.name}' for field in dataclasses.fields(section)])}"


def structure_faults(config: Any, prefix: str = "", root: Any = None) -> Iterator[Fault]:
    """Yield a fault for each attribute that is no key, and for each section that is none, as set in Python.

    Args:
        config: the configuration, or a section of it.
        prefix: leads to the section, as ``trainer.``.
        root: the schema of the whole; ``None`` is that of ``config``.
    """
    schema: Any = type(config)
    known, root = hints(schema), root or schema
    for name, value in vars(config).items():
        key, section = f"{prefix}{name}", without_none(known.get(name))
        if name not in known:
            near, anywhere = nearest(name, known), {found.rpartition(".")[2]: found for found in keys(root)}
            near = f"{prefix}{near}" if near else anywhere.get(nearest(name, anywhere), "")
            yield Fault(key, "", "there is no such key", near)
        elif dataclasses.is_dataclass(section) and type(value) is section:
            yield from structure_faults(value, f"{key}.", root)
        elif dataclasses.is_dataclass(section) and (value is not None or section is known[name]):
            near = f"compose(['{key}={value}'])" if isinstance(value, str) else ""
            yield Fault(key, as_override(value), section_problem(key, section), near)
        else:
            yield from plain_faults(key, value)


def plain_faults(key: str, value: Any) -> Iterator[Fault]:
    """Yield a fault for each value, also in lists and dicts, that files of a run cannot hold, such as NumPy's."""
    kind = type(value)
    if kind in (list, tuple, dict):
        for inner in (*value, *value.values()) if kind is dict else value:
            yield from plain_faults(key, inner)
    elif kind not in (bool, int, float, str, types.NoneType):
        problem = f"must be a number, text, list or dict of Python's own, not {kind.__module__}.{kind.__name__}"
        if isinstance(value, os.PathLike):
            problem += "; str(...) of it is one"
        elif hasattr(value, "tolist"):
            problem += "; its .tolist() is one"
        yield Fault(key, str(value), problem)


def value_at(config: Any, key: str) -> Any:
    """Return the value of a key; ``None`` where its section is off."""
    for name in key.split("."):
        if config is None:
            return None
        config = getattr(config, name)
    return config


def copy_values(keys: Iterable[str], source: Any, target: Any) -> None:
    """Set ``keys``, or sections, of ``target`` to their values in ``source``, both of one schema.

    A section that is null in one of them is copied as a whole.
    """
    for key in keys:
        given, config = source, target
        *path, leaf = key.split(".")
        for name in path:
            if getattr(given, name) is None or getattr(config, name) is None:
                leaf = name
                break
            given, config = getattr(given, name), getattr(config, name)
        setattr(config, leaf, getattr(given, leaf))


def kind(schema: Any, key: str) -> Any:
    """Return the type of the value at ``key``, without ``None``; ``None`` where there is no such key.

    That of a size is ``int``, which varies in a sweep; it may also be a list of two. That of a number or a word is
    ``float``.
    """
    section, leaf = owner(schema, key)
    if section is None:
        return None
    if is_size_field(section, leaf):
        return int
    return float if word_of(section, leaf) else without_none(hints(section)[leaf])


def word_of(section: Any, name: str) -> str:
    """Return the word that a field of a section takes in place of a number, as ``auto``; empty if it takes none."""
    return str(metadata(section, name).get("word", ""))


def is_size_field(section: Any, name: str) -> bool:
    """Whether a field of a section is a size: ``32``, or ``[48, 64]``."""
    return "size" in metadata(section, name)


def metadata(section: Any, name: str) -> Mapping[str, Any]:
    """Return the limits and facts of a field of a section; empty if there is no such field."""
    return next((field.metadata for field in dataclasses.fields(section) if field.name == name), {})


def owner(schema: Any, key: str) -> tuple[Any, str]:
    """Return the section with ``key`` and the name of its field; the section is ``None`` where there is no such key."""
    *path, leaf = key.split(".")
    for name in path:
        schema = without_none(hints(schema)[name]) if name in hints(schema) else None
        if not dataclasses.is_dataclass(schema):
            return None, leaf
    return (schema, leaf) if leaf in hints(schema) else (None, leaf)


def optional_section(schema: Any, key: str) -> str:
    """Return the section around ``key`` that can be null: ``logger.wandb`` for ``logger.wandb.mode``; else ""."""
    names = key.split(".")
    for depth, (_, hint) in enumerate(_along(schema, key), start=1):
        if depth < len(names) and dataclasses.is_dataclass(inner := without_none(hint)) and inner is not hint:
            return ".".join(names[:depth])
    return ""


def _along(schema: Any, key: str) -> Iterator[tuple["dataclasses.Field[Any]", Any]]:
    """Yield field and type of each name in a dotted key, up to the first that ``schema`` lacks."""
    for name in key.split("."):
        known = {field.name: field for field in dataclasses.fields(schema)} if dataclasses.is_dataclass(schema) else {}
        if name not in known:
            return
        hint = hints(schema)[name]
        yield known[name], hint
        schema = without_none(hint)


def without_none(hint: Any) -> Any:
    """Return the type that a hint names beside ``None``."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint
