"""Means of a few runs, differences between them, and how sure they are. The formulas are scipy's and statsmodels'."""

import math
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.05  # chance to call equal things different that is put up with
POWER = 0.8  # chance to see a difference that is there, for saying how many seeds would show it (Cohen, 1988)
MOST_SEEDS = 1000


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


@dataclass(frozen=True)
class Difference:
    """How much larger one mean is than another.

    Attributes:
        mean: the difference.
        low, high: its 95 % interval; NaN where there are too few values, or none of them varies.
        p: two-sided, of no difference; NaN where there is no interval, but 1 where all values are equal.
        paired: whether values were compared pair by pair (paired t-test), or as two groups (Welch's).
        counts: values on either side; pairs, twice, where they are paired.
        spread: standard deviation that the test stands on: of the pairs' differences, or pooled of the two groups.
        effect: the difference in pooled standard deviations, corrected for small samples (Hedges' g).
    """

    mean: float
    low: float
    high: float
    p: float
    paired: bool
    counts: tuple[int, int]
    spread: float
    effect: float


def difference(values: Mapping[Hashable, float], others: Mapping[Hashable, float]) -> Difference:
    """``values`` less ``others``, each by what it was repeated with (the seed).

    They are compared in pairs where one side's seeds are all among the other's, two at least; as two groups otherwise.
    """
    shared = [key for key in values if key in others]
    paired = len(shared) >= 2 and len(shared) == min(len(values), len(others))
    keys, other_keys = (shared, shared) if paired else (list(values), list(others))
    one = np.array([values[key] for key in keys])
    other = np.array([others[key] for key in other_keys])
    counts = (len(one), len(other))
    nothing = math.nan
    mean = float(one.mean() - other.mean()) if min(counts) else nothing
    if min(counts) < 2:
        return Difference(mean, nothing, nothing, nothing, paired, counts, nothing, nothing)
    pooled = _pooled(one, other)
    spread = float(np.std(one - other, ddof=1)) if paired else pooled
    effect = _effect(one, other)
    if spread <= 1e-12 * max(1.0, float(np.abs(one).max())):  # accuracies are whole numbers of images: it happens
        p = 1.0 if abs(mean) < 1e-12 else nothing  # without a spread, a difference can't be judged
        return Difference(mean, nothing, nothing, p, paired, counts, 0.0, effect)
    result = stats.ttest_rel(one, other) if paired else stats.ttest_ind(one, other, equal_var=False)
    interval = result.confidence_interval(0.95)
    low, high = float(interval.low), float(interval.high)
    return Difference(mean, low, high, float(result.pvalue), paired, counts, spread, effect)


def _pooled(one: np.ndarray, other: np.ndarray) -> float:
    """The standard deviation that two groups share, by statsmodels."""
    from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

    return float(CompareMeans(DescrStatsW(one), DescrStatsW(other)).std_meandiff_pooledvar / _root_sum(one, other))


def _root_sum(one: np.ndarray, other: np.ndarray) -> float:
    return math.sqrt(1 / len(one) + 1 / len(other))


def _effect(one: np.ndarray, other: np.ndarray) -> float:
    from statsmodels.stats.meta_analysis import effectsize_smd

    with np.errstate(divide="ignore", invalid="ignore"):
        g, _ = effectsize_smd(one.mean(), one.std(ddof=1), len(one), other.mean(), other.std(ddof=1), len(other))
    return float(g)


def holm(ps: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm, 1979).

    NaN stands for a test that could not be made; it stays, and is not counted.
    """
    from statsmodels.stats.multitest import multipletests

    corrected = np.full(len(ps), math.nan)
    made = ~np.isnan(ps)
    if made.any():
        corrected[made] = multipletests(np.array(ps)[made], method="holm")[1]
    return [float(p) for p in corrected]


def seeds_needed(size: float, spread: float, *, paired: bool, comparisons: int = 1) -> int | None:
    """How many seeds show a difference of ``size`` with a chance of 80 %, if seeds spread as they did.

    Tested at 5 % over the number of comparisons, as Holm's correction tests the first. ``None``: more than 1,000.
    """
    from statsmodels.stats.power import TTestIndPower, TTestPower

    if not spread > 0:
        return 2 if spread == 0 else None
    test = TTestPower() if paired else TTestIndPower()

    def enough(count: int) -> bool:
        return bool(test.power(abs(size) / spread, count, LEVEL / comparisons) >= POWER)

    high = 2
    while not enough(high):  # from below: of many seeds and a large difference the power can't be computed
        if high >= MOST_SEEDS:
            return None
        high *= 2
    found = bisect_left(range(high), True, lo=max(2, high // 2), key=enough)
    return found if found <= MOST_SEEDS else None


def mcnemar(right: np.ndarray, other_right: np.ndarray) -> tuple[int, int, float]:
    """Two models on the same N images: those only the first has right, only the other, and the exact test's p.

    Both are (N,) bool: whether each image is right.
    """
    from statsmodels.stats.contingency_tables import mcnemar as test

    only, other_only = int((right & ~other_right).sum()), int((~right & other_right).sum())
    both, neither = int((right & other_right).sum()), int((~right & ~other_right).sum())
    p = test([[both, only], [other_only, neither]], exact=True).pvalue
    return only, other_only, min(1.0, float(p))


def over_images(per_image: np.ndarray) -> tuple[float, float]:
    """The 95 % bootstrap interval (percentiles of 2,000 resamples) of the mean of (N,) values, one per image."""
    if per_image.min() == per_image.max():
        return float(per_image[0]), float(per_image[0])
    drawn = stats.bootstrap((per_image,), np.mean, n_resamples=2000, batch=100, method="percentile", rng=0)
    return float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)
