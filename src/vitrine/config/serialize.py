"""Configurations as plain values, as they lie in checkpoints and run folders, and back."""

from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vitrine.config.fields import number_faults
from vitrine.config.keys import metadata, owner
from vitrine.config.model import OF_ANY_MODEL, ViTConfig
from vitrine.config.parts import is_dotted
from vitrine.config.schema import TrainConfig
from vitrine.config.trust import check_trust
from vitrine.errors import ConfigError, Fault, RunError
from vitrine.text import listed
from vitrine.untrusted import check_nesting

Schema = TypeVar("Schema")


def to_plain(config: Any) -> dict[str, Any]:
    """Return nested dicts of plain values.

    Left out are keys of a user's parts where there are none, and, where a whole model is the user's, those of ViTs.
    """
    values: dict[str, Any] = {}
    is_users_model = isinstance(config, ViTConfig) and is_dotted(config.name)
    for field in fields(config):
        if is_users_model and field.name not in OF_ANY_MODEL:
            continue
        value = getattr(config, field.name)
        if is_dataclass(value):
            values[field.name] = to_plain(value)
        elif value != field.metadata.get("stored_unless", MISSING):
            values[field.name] = deepcopy(value) if isinstance(value, (list, dict)) else value
    return values


def from_plain(
    schema: type[Schema], values: Mapping[str, Any], *, trust: Collection[str] = (), source: object = "the run"
) -> Schema:
    """Return the dataclass of plain values, as a run folder has them. Names, types and limits of numbers are checked.

    Choices are not: a run of another version may have one that is never used here. Numbers can come from anyone, and
    decide how much memory is taken.

    Args:
        schema: the dataclass.
        values: nested plain values; a key that is missing has its default.
        trust: prefixes of the dotted names that may be imported, as a user's parts; () allows none.
        source: where the values were read, for messages.

    Raises:
        ConfigError: a name or type that ``schema`` lacks, as in a run made by another version; a number outside its
            limits; or an interpolation.
        RunError: they name a user's part outside ``trust``.
    """
    if found := interpolations(values):
        raise ConfigError(found)
    try:
        config = cast(Schema, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), dict(values))))
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or schema.__name__
        raise ConfigError([Fault(key, "", str(error.msg or error).splitlines()[0])]) from None
    if found := number_faults(config):
        raise ConfigError(found)
    check_trust(config, trust, source)
    return config


def refuse_cut_short(values: Mapping[str, Any], source: Path) -> None:
    """Raise RunError if the file ``source`` lacks the end of a configuration, which defaults would replace."""
    if "name" not in values:  # in runs of every version, behind all that affects the result
        lost = listed([field.name for field in fields(TrainConfig) if field.name not in values], most=3)
        raise RunError(f"{source} was cut short: it lacks {lost}; put a whole copy in its place")


def interpolations(values: Mapping[str, Any]) -> list[Fault]:
    """Return a fault for each value of a run folder that OmegaConf would resolve, as ``${oc.env:HOME}``.

    Runs are stored resolved. An interpolation there would read this machine's environment when the folder is opened.

    Raises:
        ConfigError: the values are nested too deep, or too many.
    """
    try:
        check_nesting(values)
    except ValueError as error:
        raise ConfigError([Fault("the configuration", "", str(error))]) from None
    problem = "is an interpolation, which a run folder cannot have: write the value itself"
    found = [Fault(key, text, problem) for key, text in _texts(values, "") if "${" in text]
    return list(dict.fromkeys(found))


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield every string in nested values, keys included, with its dotted key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(name, key)
            yield from _texts(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner, key)


@cache
def omitted_value(key: str) -> Any:
    """Return the value of a key that :func:`to_plain` leaves out at that value; ``None`` for a key it never leaves out.

    An option of a user's part that is not given is ``default``.
    """
    section, name = owner(TrainConfig, key)
    if section is None:
        around, _, _ = key.rpartition(".")
        return "default" if around and omitted_value(around) in ({}, "default") else None
    return metadata(section, name).get("stored_unless")
