"""Confidence intervals, t-tests, Holm's correction, seeds needed, McNemar's test, and the bootstrap over images."""

import math
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

SIGNIFICANCE_LEVEL = 0.05
POWER = 0.8  # of the planned number of seeds (Cohen, 1988)
MAX_SEEDS = 1000


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean with its 95 % confidence interval (Student's t).

    Attributes:
        mean: the mean of the values.
        half_width: half the width of the interval; NaN for a single value.
        count: the number of values.
    """

    mean: float
    half_width: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "ConfidenceInterval":
        """Return the mean of ``values``, at least one, with its interval."""
        if len(values) == 1:
            return cls(float(values[0]), float("nan"), 1)
        half_width = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
        return cls(float(np.mean(values)), float(half_width), len(values))

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.half_width:.4f}" if self.count > 1 else f"{self.mean:.4f}"


@dataclass(frozen=True)
class Difference:
    """The difference between two means.

    Attributes:
        mean: the difference.
        low, high: its 95 % confidence interval; NaN with too few values, or values without variance.
        p: two-sided p-value of no difference; NaN without an interval, but 1 if all values are equal.
        paired: whether the test is a paired t-test; otherwise Welch's t-test.
        counts: number of values on each side; if paired, the number of pairs, twice.
        sd: standard deviation behind the test: of the paired differences, or pooled over both groups.
        effect_size: Hedges' g: the difference in pooled standard deviations, corrected for small samples.
    """

    mean: float
    low: float
    high: float
    p: float
    paired: bool
    counts: tuple[int, int]
    sd: float
    effect_size: float


def difference(values: Mapping[Hashable, float], others: Mapping[Hashable, float]) -> Difference:
    """Test ``values`` minus ``others``, both by seed.

    The test is paired if the seeds of one side, at least two, are among those of the other side.
    """
    shared = [key for key in values if key in others]
    paired = len(shared) >= 2 and len(shared) == min(len(values), len(others))
    keys, other_keys = (shared, shared) if paired else (list(values), list(others))
    x = np.array([values[key] for key in keys])
    y = np.array([others[key] for key in other_keys])
    counts, nan = (len(x), len(y)), math.nan
    mean = float(x.mean() - y.mean()) if min(counts) else nan
    if min(counts) < 2:
        return Difference(mean, nan, nan, nan, paired, counts, nan, nan)
    sd = float(np.std(x - y, ddof=1)) if paired else _pooled_sd(x, y)
    effect_size = _hedges_g(x, y)
    if sd <= 1e-12 * max(1.0, float(np.abs(x).max())):  # possible, since accuracies are whole numbers of images
        p = 1.0 if abs(mean) < 1e-12 else nan  # without variance, a difference cannot be tested
        return Difference(mean, nan, nan, p, paired, counts, 0.0, effect_size)
    result = stats.ttest_rel(x, y) if paired else stats.ttest_ind(x, y, equal_var=False)
    interval = result.confidence_interval(0.95)
    low, high = float(interval.low), float(interval.high)
    return Difference(mean, low, high, float(result.pvalue), paired, counts, sd, effect_size)


def _pooled_sd(x: np.ndarray, y: np.ndarray) -> float:
    from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

    standard_error = CompareMeans(DescrStatsW(x), DescrStatsW(y)).std_meandiff_pooledvar
    return float(standard_error / math.sqrt(1 / len(x) + 1 / len(y)))


def _hedges_g(x: np.ndarray, y: np.ndarray) -> float:
    from statsmodels.stats.meta_analysis import effectsize_smd

    with np.errstate(divide="ignore", invalid="ignore"):
        g, _ = effectsize_smd(x.mean(), x.std(ddof=1), len(x), y.mean(), y.std(ddof=1), len(y))
    return float(g)


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values corrected for multiple comparisons (Holm, 1979).

    NaN stands for a comparison without a test: it stays NaN, and does not count.
    """
    from statsmodels.stats.multitest import multipletests

    corrected = np.full(len(ps), math.nan)
    tested = ~np.isnan(ps)
    if tested.any():
        corrected[tested] = multipletests(np.array(ps)[tested], method="holm")[1]
    return [float(p) for p in corrected]


def seeds_needed(size: float, sd: float, *, paired: bool, comparisons: int = 1) -> int | None:
    """Return the number of seeds that detects a difference of ``size`` with a power of 80 %; ``None`` above 1,000.

    The significance level is 5 % divided by the number of comparisons, as for the first test of Holm's correction.

    Args:
        size: the true difference.
        sd: standard deviation of the paired differences, or pooled over both groups.
        paired: whether the test is paired; otherwise the number is per group.
        comparisons: number of comparisons that p-values are corrected for.
    """
    from statsmodels.stats.power import TTestIndPower, TTestPower

    if not sd > 0:
        return 2 if sd == 0 else None
    test = TTestPower() if paired else TTestIndPower()

    def enough(count: int) -> bool:
        return bool(test.power(abs(size) / sd, count, SIGNIFICANCE_LEVEL / comparisons) >= POWER)

    high = 2
    while not enough(high):  # from below, as the power of many seeds and a large difference is not computable
        if high >= MAX_SEEDS:
            return None
        high *= 2
    found = bisect_left(range(high), True, lo=max(2, high // 2), key=enough)
    return found if found <= MAX_SEEDS else None


def mcnemar(correct: np.ndarray, other_correct: np.ndarray) -> tuple[int, int, float]:
    """Run McNemar's exact test of two models on the same N images.

    Args:
        correct: (N,) bool, whether the first model classifies each image correctly.
        other_correct: (N,) bool, the same for the other model.

    Returns:
        The number of images that only the first model classifies correctly, only the other, and the p-value.
    """
    from statsmodels.stats.contingency_tables import mcnemar as test

    only, other_only = int((correct & ~other_correct).sum()), int((~correct & other_correct).sum())
    both, neither = int((correct & other_correct).sum()), int((~correct & ~other_correct).sum())
    p = test([[both, only], [other_only, neither]], exact=True).pvalue
    return only, other_only, min(1.0, float(p))


def bootstrap_interval(per_image: np.ndarray) -> tuple[float, float]:
    """Return the 95 % bootstrap interval (percentiles, 2,000 resamples) of the mean of (N,) values, one per image."""
    if per_image.min() == per_image.max():
        return float(per_image[0]), float(per_image[0])
    result = stats.bootstrap((per_image,), np.mean, n_resamples=2000, batch=100, method="percentile", rng=0)
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
