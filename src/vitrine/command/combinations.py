"""The combinations of values that a grid trains: all of them, or those in which one choice at a time changes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

from hydra.core.override_parser.types import Override

from vitrine.command.spelling import key_of, spelled_values
from vitrine.config.sweep import CROSSED
from vitrine.errors import Fault


def number_of_combinations(swept: Sequence[Override], *, one_at_a_time: bool) -> int:
    """Return how many runs these overrides with several values make, without making them."""
    lengths = {key_of(override): sum(1 for _ in override.sweep_string_iterator()) for override in swept}
    changed = [lengths.pop(key) for key in [*lengths] if one_at_a_time and key not in CROSSED]
    return prod(lengths.values()) * (1 + sum(length - 1 for length in changed))


def combinations(overrides: Sequence[Override], *, one_at_a_time: bool) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield all overrides, and the varying ones, for every combination of values; or for one that changes at a time."""
    values: dict[str, list[str]] = {}
    swept = set()
    for override in overrides:
        key = key_of(override)
        values[key] = spelled_values(override)
        if override.is_sweep_override():
            swept.add(key)
    for combination in _one_at_a_time(values) if one_at_a_time else product(*values.values()):
        chosen = dict(zip(values, combination, strict=True))
        texts = [f"{key}={value}" for key, value in chosen.items()]
        yield texts, {key: unquoted(value) for key, value in chosen.items() if key in swept}


def _one_at_a_time(values: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Yield the first value of each key; then each other value with the first of other keys. ``CROSSED`` keys vary."""
    first = {key: some if key in CROSSED else some[:1] for key, some in values.items()}
    yield from product(*first.values())
    for key, some in values.items():
        if key not in CROSSED:
            for value in some[1:]:
                yield from product(*(first | {key: [value]}).values())


def never_run(swept: Sequence[Override], varies: Sequence[Mapping[str, str]]) -> list[Fault]:
    """Return the values that no run has, since the part that takes them only stands in for one that does not."""
    problem = "never runs with one choice at a time: list the part that takes it first"
    return [
        Fault(key, value, problem)
        for override in swept
        for key, values in ((key_of(override), map(unquoted, spelled_values(override))),)
        for value in values
        if all(own.get(key) != value for own in varies)
    ]


def unquoted(value: str) -> str:
    """Remove the quotes that :func:`quote` adds to a number that chooses from a group."""
    return re.sub(r"^'([\w./-]*)'$", r"\1", value)
