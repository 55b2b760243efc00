"""How many seeds a difference takes, and which difference a number of seeds detects."""

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from scipy import special, stats
from scipy.optimize import brentq

from vitrine.compare.difference import ALONE, MANY, freedom_of_sum
from vitrine.compare.sequential_rule import MIN_SEEDS
from vitrine.compare.simultaneous import SIGNIFICANCE_LEVEL, Family

POWER = 0.8  # of the planned number of seeds (Cohen, 1988)
MAX_SEEDS = 1000


@dataclass(frozen=True)
class Plan:
    """Which difference a number of seeds detects with a power of 80 %.

    It follows from the spread and the number of seeds alone, and not from the observed difference, whose power says
    nothing that its p-value does not (Hoenig and Heisey, 2001).

    Attributes:
        sd: standard deviation of the paired differences, or pooled over both groups.
        paired: whether the test is paired; otherwise it is Welch's of two groups that vary equally.
        family: the differences whose intervals hold together.
        freedom_per_seed: degrees of freedom of a paired ``sd`` for each seed after the first: 1 of the two sides alone,
            and the number of rows less one if all share a variance.
        image_variance: the part of the images in the variance of the difference.
        image_freedom: its degrees of freedom.
    """

    sd: float
    paired: bool
    family: Family = ALONE
    freedom_per_seed: float = 1.0
    image_variance: float = 0.0
    image_freedom: float = MANY

    def seeds_for(self, size: float) -> int | None:
        """Return the fewest seeds of each side, at least 3, that detect ``size``; ``None`` above 1,000."""

        def enough(count: int) -> bool:
            return self.detects(count) <= size

        low = high = MIN_SEEDS
        while not enough(high):  # from below: most plans are of few seeds, and critical values take time
            if high == MAX_SEEDS:
                return None
            low, high = high, min(2 * high, MAX_SEEDS)
        return bisect_left(range(high), True, lo=low, key=enough)

    def hides(self, size: float) -> bool:
        """Whether images leave a difference of ``size`` so uncertain that no number of seeds detects it.

        It must be k of its standard deviations, k = 2.8 for a single comparison and many images.
        """
        k = self.family.critical_t(self.image_freedom) + stats.norm.ppf(POWER)
        return bool(size <= k * math.sqrt(self.image_variance))

    def detects(self, count: int, freedom: float | None = None) -> float:
        """Return the smallest true difference that ``count`` seeds of each side, at least 3, detect.

        Args:
            count: seeds of each side.
            freedom: degrees of freedom of a paired ``sd``; by default, ``freedom_per_seed`` times ``count`` - 1.
        """
        over_seeds = self.sd**2 / (count if self.paired else count / 2)
        variance = over_seeds + self.image_variance
        level, groups = SIGNIFICANCE_LEVEL / self.family.comparisons, None
        if self.paired:
            freedom = freedom or self.freedom_per_seed * (count - 1)
            freedoms = [freedom]
        else:
            freedom, groups = 2 * count - 2, (count, count)
            first = special.betaincinv((count - 1) / 2, (count - 1) / 2, (np.arange(20) + 0.5) / 20)
            freedoms = [(count - 1) / (share**2 + (1 - share) ** 2) for share in first]  # by the first group's share
        # Power as a mean over quantiles of the variance: no noncentral t-distribution is computable for large effects.
        spreads = stats.chi2.ppf((np.arange(1000) + 0.5) / 1000, freedom) / freedom
        parts = over_seeds, self.image_variance
        together = [freedom_of_sum(parts, (found, self.image_freedom), level) for found in freedoms]
        alone, critical = (
            np.array([self.family.critical_t(found, groups) for found in some])[:, None]
            for some in (freedoms, together)
        )
        bounds = np.sqrt((over_seeds * spreads + self.image_variance) / variance) * critical
        bounds = np.maximum(bounds, np.sqrt(over_seeds * spreads / variance) * alone)  # as difference() takes the wider

        def missing(shift: float) -> float:
            return float(np.mean(stats.norm.cdf(shift - bounds) + stats.norm.cdf(-shift - bounds))) - POWER

        return math.sqrt(variance) * float(brentq(missing, 0.0, bounds.max() + 10.0))


def largest_spread(sd: float, freedom: float) -> float:
    """Return the upper 80 % bound of a standard deviation, to plan with (Browne, 1995)."""
    return sd * math.sqrt(freedom / stats.chi2.ppf(1 - POWER, freedom))
