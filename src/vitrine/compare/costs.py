"""Costs of a configuration, as tables and plots show them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from vitrine.compare.comparison import RowSummary
from vitrine.compare.metric import MISSING
from vitrine.text import short_number


@dataclass(frozen=True)
class Cost:
    """A cost of a configuration.

    Attributes:
        key: in the names of files.
        heading: of the table column; empty if tables leave it out.
        title: of a plot axis.
        range_of: returns the least and the greatest cost of the runs of a row, or their mean, twice; ``None`` if it was
            not recorded.
        higher_is_cheaper: for throughput.
        is_measured: it depends on what else the machine did.
    """

    key: str
    heading: str
    title: str
    range_of: Callable[[RowSummary], tuple[float, float] | None]
    higher_is_cheaper: bool = False
    is_measured: bool = False

    def value_of(self, row: RowSummary) -> float | None:
        """Return the cost of a row; ``None`` if it was not recorded, or is not one number."""
        low, high = self.range_of(row) or (0.0, math.inf)
        return low if low == high else None

    def text_of(self, row: RowSummary) -> str:
        """Return the cost of a row as text: ``5.34 M``, or a range."""
        if (found := self.range_of(row)) is None:
            return MISSING
        return " to ".join(dict.fromkeys(map(short_number, found)))


def _twice(value: float | None) -> tuple[float, float] | None:
    return None if value is None else (value, value)


FLOPS = Cost("flops", "FLOPs", "FLOPs per image (forward)", lambda row: row.flops)
PARAMETERS = Cost("parameters", "parameters", "parameters", lambda row: row.parameters)
THROUGHPUT = Cost(
    "throughput", "images/s", "training throughput (images/s)", lambda row: _twice(row.images_per_second), True, True
)
TIME = Cost("time", "", "training time (s)", lambda row: _twice(row.train_seconds), is_measured=True)
COSTS = (PARAMETERS, FLOPS, THROUGHPUT, TIME)
