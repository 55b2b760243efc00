"""Confidence intervals, t-tests, multiple comparisons, seeds needed, McNemar's test, and the bootstrap over images."""

import math
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from vitrine.compare.sequential_rule import image_variance

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
    def of(cls, values: Sequence[float], overlap: float = 0.0) -> "ConfidenceInterval":
        """Return the mean of ``values``, at least one, with its interval; ``overlap`` is that of :func:`difference`."""
        if len(values) == 1:
            return cls(float(values[0]), float("nan"), 1)
        wider = math.sqrt(1 + len(values) * overlap)
        half_width = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values) * wider
        return cls(float(np.mean(values)), float(half_width), len(values))

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.half_width:.4f}" if self.count > 1 else f"{self.mean:.4f}"


@dataclass(frozen=True)
class Difference:
    """The difference between two means.

    Attributes:
        mean: the difference.
        low, high: its 95 % confidence interval, simultaneous with those of the other comparisons; NaN with too few
            values, or values without variance.
        p: two-sided p-value of no difference; NaN without an interval, but 1 if all values are equal.
        paired: whether the test is a paired t-test; otherwise Welch's t-test.
        counts: number of values on each side; if paired, the number of pairs, twice.
        sd: standard deviation behind the test: of the paired differences, or pooled over both groups.
        effect_size: Hedges' g: the difference in pooled standard deviations, corrected for small samples.
        new_images: interval and p-value are about other test images of the same kind, too; otherwise about these.
    """

    mean: float
    low: float
    high: float
    p: float
    paired: bool
    counts: tuple[int, int]
    sd: float
    effect_size: float
    new_images: bool = False


Correct = tuple[Mapping[Hashable, np.ndarray], Mapping[Hashable, np.ndarray]]


def difference(
    values: Mapping[Hashable, float],
    others: Mapping[Hashable, float],
    comparisons: int = 1,
    correct: Correct | None = None,
    overlap: float = 0.0,
) -> Difference:
    """Test ``values`` minus ``others``, both by seed.

    The test is paired if the seeds of one side, at least two, are among those of the other side. With Bonferroni's
    level, all ``comparisons`` intervals hold together with 95 %, whatever their variances and correlations.

    Args:
        values: by seed.
        others: by seed.
        comparisons: number of intervals that hold together.
        correct: which of N test images each seed of both sides classified correctly, (N,) each. Seeds and images then
            both count as samples: the variance is the sum of their parts, with Satterthwaite's degrees of freedom
            (Clark, 1973; Miller, arXiv:2411.00640).
        overlap: validation images per training image, where values are of folds that share training images: it is added
            to 1 / n in the variance of a mean of n values (Nadeau and Bengio, 2003, section 3).
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
    level = SIGNIFICANCE_LEVEL / comparisons
    if correct is None and not overlap:
        interval = result.confidence_interval(1 - level)
        low, high = float(interval.low), float(interval.high)
        return Difference(mean, low, high, float(result.pvalue), paired, counts, sd, effect_size)
    samples = [x - y] if paired else [x, y]
    over_seeds = sum(float(np.var(sample, ddof=1)) * (1 / len(sample) + overlap) for sample in samples)
    variance = over_seeds
    if correct is not None:
        ours = np.array([correct[0][key] for key in keys], float)
        theirs = np.array([correct[1][key] for key in other_keys], float)
        variance += image_variance(ours, theirs, paired=paired)
    freedom = float(result.df) * (variance / over_seeds) ** 2
    half_width = float(stats.t.isf(level / 2, freedom)) * math.sqrt(variance)
    p = 2 * float(stats.t.sf(abs(mean) / math.sqrt(variance), freedom))
    new_images = correct is not None
    return Difference(mean, mean - half_width, mean + half_width, p, paired, counts, sd, effect_size, new_images)


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

    The significance level is 5 % divided by the number of comparisons.

    Args:
        size: the true difference.
        sd: standard deviation of the paired differences, or pooled over both groups.
        paired: whether the test is paired; otherwise the number is per group.
        comparisons: number of comparisons that intervals hold for.
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


def smallest_difference(count: int, sd: float, *, paired: bool, comparisons: int = 1) -> float:
    """Return the true difference that ``count`` seeds, at least 3, detect with a power of 80 %.

    It follows from the spread and the number of seeds alone, and not from the observed difference, whose power says
    nothing that its p-value does not (Hoenig and Heisey, 2001). Other arguments are those of :func:`seeds_needed`.
    """
    freedom, scale = (count - 1, math.sqrt(count)) if paired else (2 * count - 2, math.sqrt(count / 2))
    # Power as a mean over the variance's quantiles: the noncentral t-distribution is not computable for large effects.
    spreads = np.sqrt(stats.chi2.ppf((np.arange(1000) + 0.5) / 1000, freedom) / freedom)
    bounds = stats.t.isf(SIGNIFICANCE_LEVEL / comparisons / 2, freedom) * spreads

    def missing(shift: float) -> float:
        return float(np.mean(stats.norm.cdf(shift - bounds) + stats.norm.cdf(-shift - bounds))) - POWER

    return sd * float(brentq(missing, 0.0, bounds[-1] + 10.0)) / scale


def largest_spread(sd: float, freedom: int) -> float:
    """Return the upper 80 % bound of a standard deviation, to plan with (Browne, 1995)."""
    return sd * math.sqrt(freedom / stats.chi2.ppf(1 - POWER, freedom))


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
