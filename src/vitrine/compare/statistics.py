"""Means of a few runs and how sure they are. The formulas are scipy's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval (Student's t); of a single value the interval is unknown.

    Attributes:
        mean: of the values.
        half: half the interval's width, NaN for one value.
        count: of the values.
    """

    mean: float
    half: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """The mean of ``values``, at least one."""
        if len(values) == 1:
            return cls(float(values[0]), float("nan"), 1)
        half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
        return cls(float(np.mean(values)), float(half), len(values))

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.half:.4f}" if self.count > 1 else f"{self.mean:.4f}"
