"""Tensors of ours under the names that other implementations give them."""

from collections.abc import Iterable, Mapping
from typing import Any


def renamed(tensors: Mapping[str, Any], words: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """``tensors`` with each of our words in their names, in order, replaced by theirs."""
    found = {}
    for name, value in tensors.items():
        for ours, theirs in words:
            name = name.replace(ours, theirs)
        found[name] = value
    return found
