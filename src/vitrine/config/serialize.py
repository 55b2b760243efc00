"""Configurations as plain values, as they lie in checkpoints and run folders, and back."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vitrine.errors import ConfigError, Fault

Schema = TypeVar("Schema")


def to_plain(config: Any) -> dict[str, Any]:
    """Nested dicts, lists, numbers and words."""
    return asdict(config)


def from_plain(schema: type[Schema], values: Mapping[str, Any]) -> Schema:
    """The dataclass again; names and types are checked, limits are not.

    Raises:
        ConfigError: a name or type that ``schema`` has not, as in a run made by another version.
    """
    try:
        return cast(Schema, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), dict(values))))
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or schema.__name__
        raise ConfigError([Fault(key, "", str(error.msg or error).splitlines()[0])]) from None
