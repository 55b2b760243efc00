"""Costs of a configuration, as tables and plots show them."""

from collections.abc import Callable
from dataclasses import dataclass

from vitrine.compare.comparison import RowSummary


@dataclass(frozen=True)
class Cost:
    """A cost of a configuration.

    Attributes:
        heading: of the table column; empty if tables leave it out.
        title: of a plot axis.
        value_of: returns the cost of a row; ``None`` if it was not recorded.
        higher_is_cheaper: for throughput.
    """

    heading: str
    title: str
    value_of: Callable[[RowSummary], float | None]
    higher_is_cheaper: bool = False


FLOPS = Cost("FLOPs", "FLOPs per image (forward)", lambda row: row.flops)
PARAMETERS = Cost("parameters", "parameters", lambda row: row.parameters)
THROUGHPUT = Cost("images/s", "training throughput (images/s)", lambda row: row.images_per_second, True)
TIME = Cost("", "training time (s)", lambda row: row.train_seconds)
COSTS = (PARAMETERS, FLOPS, THROUGHPUT, TIME)
