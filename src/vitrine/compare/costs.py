"""What a configuration costs, as tables and plots name it."""

from collections.abc import Callable
from dataclasses import dataclass

from vitrine.compare.comparison import Summary


@dataclass(frozen=True)
class Cost:
    """A number of a row that one would rather have small, or large.

    Attributes:
        heading: of a table's column; empty where tables leave it out.
        title: of an axis.
        of: the number of a row, ``None`` where it was not recorded.
        more_is_cheaper: of a speed.
    """

    heading: str
    title: str
    of: Callable[[Summary], float | None]
    more_is_cheaper: bool = False


FLOPS = Cost("FLOPs", "FLOPs of a forward pass, per image", lambda one: one.flops)
PARAMETERS = Cost("parameters", "parameters", lambda one: one.parameters)
SPEED = Cost("images/s", "images per second in training", lambda one: one.images_per_second, more_is_cheaper=True)
TIME = Cost("", "training time (s)", lambda one: one.train_seconds)
COSTS = (PARAMETERS, FLOPS, SPEED, TIME)


def counted(value: float) -> str:
    """A count with three digits: ``1.23 M``."""
    for size, letter in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
