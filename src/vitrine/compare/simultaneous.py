"""Intervals that hold together: Dunnett's, Tukey's and Bonferroni's critical values, and the variance of all rows."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from scipy import special, stats
from scipy.optimize import brentq

from vitrine.compare.sequential_boundaries import welch_level, welch_size
from vitrine.compare.sequential_rule import is_float_error

SIGNIFICANCE_LEVEL = 0.05
# Variances are pooled if Levene's test has a p-value above the first, and then tested at the second: where they differ
# and the test does not notice, as with three seeds, false findings stay near 5 % (tests/compare/test_scenarios.py).
UNEQUAL, POOLED_LEVEL = 0.3, 0.02
TOLERATED = 1.1  # times its level is what Welch's test may take as it is
NODES = 80  # of both integrals in Dunnett's distribution


@dataclass(frozen=True)
class Family:
    """Differences whose intervals hold together with 95 %.

    Attributes:
        comparisons: number of differences.
        method: ``bonferroni`` holds whatever the variances and correlations. ``dunnett``, against one baseline
            (Dunnett, 1955), and ``tukey``, of all pairs (Tukey, 1953), ask for less, but rest on a common variance.
        one_sided: bounds on one side only.
        pooled: with the common variance of all rows, which asks for more than 95 %, since it may not be common.
    """

    comparisons: int = 1
    method: str = "bonferroni"
    one_sided: bool = False
    pooled: bool = False

    def critical_t(self, freedom: float, groups: tuple[int, int] | None = None) -> float:
        """Return the value that t exceeds in no comparison with 95 %.

        Args:
            freedom: degrees of freedom; may be a fraction.
            groups: numbers of values, if t is Welch's statistic of two groups. With very few, the textbook's critical
                value is exceeded too often; then, Bonferroni's is the one that keeps its level at any variances.
        """
        if self.method == "tukey":
            return _tukey_t(round(min(freedom, 1e4), 3), self.rows, self.level)
        if self.method == "dunnett":
            return _dunnett_t(round(min(freedom, 1e6), 6), self.comparisons, self.one_sided, self.level)
        return float(stats.t.isf(self._level(groups) / 2, freedom))

    def p(self, t: float, freedom: float, groups: tuple[int, int] | None = None) -> float:
        """Return the p-value of ``t`` corrected for all comparisons: below 5 % if it exceeds its critical value."""
        t, scale = t if self.one_sided else abs(t), SIGNIFICANCE_LEVEL / self.level
        if self.method == "tukey":
            return min(1.0, scale * float(stats.studentized_range.sf(math.sqrt(2) * t, self.rows, min(freedom, 1e4))))
        if self.method == "dunnett":
            within = _none_above(t, min(freedom, 1e6), self.comparisons, self.one_sided)
            return min(1.0, max(0.0, scale * (1 - within)))
        p = 2 * float(stats.t.sf(t, freedom))
        if groups is not None and self.raises(groups) and 0 < p < 1:
            p = max(p, welch_size(p, groups))
        return min(1.0, self.comparisons * p / (2 if self.one_sided else 1))

    def raises(self, groups: tuple[int, int]) -> bool:
        """Whether Welch's test of two groups of so few values gets a critical value above the textbook's."""
        return self._level(groups) < self._level()

    def _level(self, groups: tuple[int, int] | None = None) -> float:
        """The two-sided level of one comparison by Bonferroni."""
        level = self.level / self.comparisons * (2 if self.one_sided else 1)
        if groups is None or level >= 1 or welch_size(level, groups) < TOLERATED * level:
            return level
        return welch_level(level, groups)

    @property
    def level(self) -> float:
        """Probability of any false finding, if the assumptions of ``method`` hold."""
        return POOLED_LEVEL if self.pooled else SIGNIFICANCE_LEVEL

    @property
    def rows(self) -> int:
        """Number of rows that have this many pairs."""
        return round((1 + math.sqrt(1 + 8 * self.comparisons)) / 2)


@lru_cache(maxsize=256)
def _tukey_t(freedom: float, rows: int, level: float) -> float:
    return float(stats.studentized_range.isf(level, rows, freedom)) / math.sqrt(2)


@lru_cache(maxsize=256)
def _dunnett_t(freedom: float, comparisons: int, one_sided: bool, level: float) -> float:
    most = float(stats.t.isf(level / comparisons / 2, freedom))  # Bonferroni's is never below

    def excess(bound: float) -> float:
        return _none_above(bound, freedom, comparisons, one_sided) - (1 - level)

    return float(brentq(excess, 0.5, most + 0.1, xtol=1e-6))


_gauss = cache(np.polynomial.legendre.leggauss)  # nodes and weights on [-1, 1], by their number


def _none_above(bound: float, freedom: float, comparisons: int, one_sided: bool) -> float:
    """Probability that no t-statistic exceeds ``bound``, for as many seeds in each row as in the baseline.

    Given the baseline's mean z and the pooled deviation s, comparisons are independent: a double integral.
    """
    nodes, weights = _gauss(NODES)
    share, weights = (nodes + 1) / 2, weights / 2
    spread = np.sqrt(special.chdtri(freedom, 1 - share) / freedom)[:, None]
    z = special.ndtri(share)
    above = special.ndtr(math.sqrt(2) * bound * spread + z)
    below = 0.0 if one_sided else special.ndtr(-math.sqrt(2) * bound * spread + z)
    return float(weights @ (above - below) ** comparisons @ weights)


@dataclass(frozen=True)
class PooledVariance:
    """What varies from run to run apart from the row and the seed, over all rows.

    Attributes:
        variance: of a run.
        freedom: its degrees of freedom.
    """

    variance: float
    freedom: int

    @classmethod
    def of(cls, rows: Sequence[Mapping[Hashable, float]]) -> "PooledVariance | None":
        """Return the variance within seeds of rows that have the same seeds, at least three.

        It is that of a two-way analysis of variance. ``None`` if seeds or variances differ, or there are two rows only.
        """
        rest = residuals(rows)
        if rest is None or levene_p(rest) < UNEQUAL:
            return None
        freedom = (rest.shape[0] - 1) * (rest.shape[1] - 1)
        return cls(float((rest**2).sum()) / freedom, freedom)


def residuals(rows: Sequence[Mapping[Hashable, float]]) -> np.ndarray | None:
    """Return what seeds and rows leave of the values of K rows by S seeds, (K, S).

    ``None`` if seeds differ, if there are fewer than three of either, or if nothing is left.
    """
    seeds = list(rows[0])
    if len(rows) < 3 or len(seeds) < 3 or any(row.keys() != rows[0].keys() for row in rows):
        return None
    values = np.array([[row[seed] for seed in seeds] for row in rows])
    rest = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    sd = math.sqrt(float((rest**2).sum()) / ((len(rows) - 1) * (len(seeds) - 1)))
    return None if is_float_error(sd, values) else rest


def levene_p(residuals: np.ndarray) -> float:
    """Return the p-value of equal variances of rows, from what seeds and rows leave of their values (K, S)."""
    with np.errstate(divide="ignore", invalid="ignore"):  # of ties, all residuals of a row may be of one size
        return float(stats.levene(*residuals, center="mean").pvalue)
