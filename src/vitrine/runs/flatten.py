"""Nested values as a flat mapping, as tables need them."""

from collections.abc import Mapping
from typing import Any


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values under dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
