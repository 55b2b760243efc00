"""Parameters of a test that belong to another level of the suite than the test."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def sampled(parameters: Sequence[Any], *, every: int) -> list[Any]:
    """Mark every n-th parameter as quick; a tuple is several values of one case."""
    return quick(parameters, parameters[::every])


def quick(parameters: Iterable[Any], chosen: Sequence[Any]) -> list[Any]:
    """Mark the ``chosen`` parameters as quick."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.quick)
        if case in chosen
        else case
        for case in parameters
    ]


def slow(*values: Any) -> Any:
    """Leave a parameter to ``pytest --slow``: another parameter covers most of what it covers."""
    return pytest.param(*values, marks=pytest.mark.slow)
