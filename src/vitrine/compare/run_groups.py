"""Runs grouped by a property, as caveats about what differs between them count them."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from vitrine.compare.load import RunResult
from vitrine.text import listed, plural

MAX_LISTED = 4  # names in a sentence; of further ones, their number

Property = Callable[[RunResult], Hashable]


def groups_of(runs: Sequence[RunResult], property_of: Property) -> dict[Hashable, list[RunResult]]:
    """Return runs by a property; runs without it are left out."""
    groups: dict[Hashable, list[RunResult]] = {}
    for run in runs:
        if (value := property_of(run)) is not None:
            groups.setdefault(value, []).append(run)
    return groups


def sizes(groups: Mapping[Hashable, Sequence[RunResult]]) -> str:
    """Return groups as text: ``CPU (3 runs), NVIDIA H100 (1 run)``."""
    return listed([f"{value} ({plural(len(members), 'run')})" for value, members in groups.items()], MAX_LISTED)


def nested_fact(run: RunResult, section: str, key: str) -> Any:
    """Return an entry of a section of run.json; ``None`` if the run has no such section or entry."""
    return (run.facts.get(section) or {}).get(key)
