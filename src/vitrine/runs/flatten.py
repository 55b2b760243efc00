"""Nested configurations as flat mappings with dotted keys."""

from collections.abc import Mapping
from typing import Any


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values under dotted keys; an empty section stays a value, ``{}``."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if value and isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
