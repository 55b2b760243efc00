"""Our tensors under the names that other implementations use."""

from collections.abc import Iterable, Mapping
from typing import Any


def renamed(tensors: Mapping[str, Any], replacements: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return ``tensors`` with each part of their names replaced, in the order of ``replacements``: (ours, theirs)."""
    result = {}
    for name, value in tensors.items():
        for ours, theirs in replacements:
            name = name.replace(ours, theirs)
        result[name] = value
    return result
