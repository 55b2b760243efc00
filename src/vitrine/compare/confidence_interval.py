"""The mean of a few values with its 95 % confidence interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from vitrine.compare.sequential_rule import is_float_error


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean with its 95 % confidence interval (Student's t).

    Attributes:
        mean: the mean of the values.
        half_width: half the width of the interval, if it is symmetric; NaN without one.
        count: the number of values.
        low, high: its bounds; NaN for a single value, and for equal ones, which do not tell how much others would vary.
    """

    mean: float
    half_width: float
    count: int
    low: float
    high: float

    @classmethod
    def of(
        cls, values: Sequence[float], overlap: float = 0.0, *, proportion: bool = False, rounding: float = 0.0
    ) -> "ConfidenceInterval":
        """Return the mean of values with its interval.

        Args:
            values: at least one.
            overlap: that of :func:`vitrine.compare.difference.difference`.
            proportion: the interval stays within [0, 1]: where it would not, it is computed on the scale of logits
                (delta method), and is not symmetric.
            rounding: the least variance of a value: a few seeds with equally many images right do not show that no
                seed has more. If it is 0, equal values have no interval.
        """
        mean, count = float(np.mean(values)), len(values)
        variance = float(np.var(values, ddof=1)) if count > 1 else 0.0
        if count == 1 or (rounding == 0 and is_float_error(math.sqrt(variance), np.asarray(values))):
            return cls(mean, math.nan, count, math.nan, math.nan)
        wider = math.sqrt(1 + count * overlap)
        error = math.sqrt(max(variance, rounding) / count)
        half_width = float(stats.t.ppf(0.975, count - 1)) * error * wider
        low, high = mean - half_width, mean + half_width
        if proportion and 0 < mean < 1 and not 0 <= low <= high <= 1:
            logit, on_logits = special.logit(mean), half_width / (mean * (1 - mean))
            low, high = (float(special.expit(logit + side * on_logits)) for side in (-1, 1))
        elif proportion:
            low, high = max(low, 0.0), min(high, 1.0)  # all images right, or none
        return cls(mean, half_width, count, low, high)

    def __str__(self) -> str:
        return f"{self.mean:.4f}" if math.isnan(self.half_width) else f"{self.mean:.4f} ± {self.half_width:.4f}"

    @property
    def is_symmetric(self) -> bool:
        """Whether the mean is in the middle; false without an interval."""
        return math.isclose(self.high - self.mean, self.mean - self.low, rel_tol=1e-6, abs_tol=1e-12)
