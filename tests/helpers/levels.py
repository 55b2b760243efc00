"""Parameters of a test marked ``whole`` of which some are run by the quick suite, too."""

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
