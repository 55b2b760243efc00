"""Configurations as plain values, as they lie in checkpoints and run folders, and back."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vitrine.config.keys import owner
from vitrine.config.model import OF_ANY_MODEL, ViTConfig
from vitrine.config.parts import check_trust, is_dotted
from vitrine.config.schema import TrainConfig
from vitrine.errors import ConfigError, Fault

Schema = TypeVar("Schema")


def to_plain(config: Any) -> dict[str, Any]:
    """Return nested dicts of plain values.

    Left out are keys of a user's parts where there are none, and, where a whole model is the user's, those of ViTs.
    """
    values: dict[str, Any] = {}
    for field in fields(config):
        if isinstance(config, ViTConfig) and is_dotted(config.name) and field.name not in OF_ANY_MODEL:
            continue
        value = getattr(config, field.name)
        if is_dataclass(value):
            values[field.name] = to_plain(value)
        elif value != field.metadata.get("stored_unless", MISSING):
            values[field.name] = deepcopy(value)
    return values


def from_plain(
    schema: type[Schema], values: Mapping[str, Any], *, trust: Collection[str] = (), source: object = "the run"
) -> Schema:
    """Return the dataclass of plain values, as a run folder has them. Names and types are checked, limits are not.

    Args:
        schema: the dataclass.
        values: nested plain values; a key that is missing has its default.
        trust: prefixes of the dotted names that may be imported, as a user's parts; () allows none.
        source: where the values were read, for messages.

    Raises:
        ConfigError: a name or type that ``schema`` lacks, as in a run made by another version.
        RunError: they name a user's part outside ``trust``.
    """
    try:
        config = cast(Schema, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), dict(values))))
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or schema.__name__
        raise ConfigError([Fault(key, "", str(error.msg or error).splitlines()[0])]) from None
    check_trust(config, trust, source)
    return config


@cache
def omitted_value(key: str) -> Any:
    """Return the value of a key that :func:`to_plain` leaves out at that value; ``None`` for a key it never leaves out.

    An option of a user's part that is not given is ``default``.
    """
    section, name = owner(TrainConfig, key)
    if section is None:
        around, _, _ = key.rpartition(".")
        return "default" if around and omitted_value(around) in ({}, "default") else None
    return next(field.metadata.get("stored_unless") for field in fields(section) if field.name == name)
