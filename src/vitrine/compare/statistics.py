"""Confidence intervals of means and differences, t-tests, and how many seeds a difference takes."""

import math
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import special, stats
from scipy.optimize import brentq

from vitrine.compare.sequential_rule import MIN_SEEDS, image_variance, is_float_error, welch_freedom
from vitrine.compare.simultaneous import SIGNIFICANCE_LEVEL, Family, PooledVariance

ALONE = Family()
POWER = 0.8  # of the planned number of seeds (Cohen, 1988)
MAX_SEEDS = 1000
MANY = 1e6  # degrees of freedom of a variance over images, of which there are many


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
            overlap: that of :func:`difference`.
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


@dataclass(frozen=True)
class Difference:
    """The difference between two means.

    Attributes:
        mean: the difference.
        low, high: its 95 % confidence interval, simultaneous with those of the other comparisons; NaN with too few
            values, or without variance, its own or that of all rows.
        p: two-sided p-value of no difference; NaN without an interval, but 1 if all values are equal.
        paired: whether both sides have the same seeds, and pairs are compared.
        counts: number of values on each side.
        sd: standard deviation that further seeds would have: of the differences of pairs, or, without any, pooled over
            both groups.
        correlation: of both sides over the seeds that they share; NaN for fewer than three.
        shared: number of seeds that were taken as pairs.
        corrected: ``p`` for all comparisons together: below 5 % if and only if the interval excludes zero.
        freedom: degrees of freedom of ``sd``.
        new_images: interval and p-value are about other test images of the same kind, too; otherwise about these.
        image_variance: the part of the images in the variance of ``mean``, which more seeds do not reduce.
        image_freedom: its degrees of freedom.
        grouped: whether it is over groups of images.
        overlap: validation images per training image by which the interval is enlarged; 0 for seeds.
    """

    mean: float
    low: float
    high: float
    p: float
    paired: bool
    counts: tuple[int, int]
    sd: float
    correlation: float = math.nan
    shared: int = 0
    corrected: float = math.nan
    freedom: float = math.nan
    new_images: bool = False
    image_variance: float = 0.0
    image_freedom: float = MANY
    grouped: bool = False
    overlap: float = 0.0


Correct = tuple[Mapping[Hashable, np.ndarray], Mapping[Hashable, np.ndarray]]


def difference(
    values: Mapping[Hashable, float],
    others: Mapping[Hashable, float],
    family: Family = ALONE,
    correct: Correct | None = None,
    pooled: PooledVariance | None = None,
    overlap: float = 0.0,
    groups: tuple[int, float] | None = None,
) -> Difference:
    """Test ``values`` minus ``others``, both by seed.

    Seeds decide the test, whatever the values: equal seeds on both sides, at least two, are a paired t-test; at least
    three in common are partly paired; else it is Welch's test of two groups. All runs are used.

    Args:
        values: by seed.
        others: by seed.
        family: the differences whose intervals hold together with this one's.
        correct: which of N test images each seed of both sides classified correctly, (N,) each, or values of their
            groups (:func:`vitrine.runs.image_groups.group_values`). Seeds and images then both count as samples: the
            variance is the sum of their parts (Clark, 1973; Miller, arXiv:2411.00640), with :func:`freedom_of_sum`.
        groups: N and the degrees of freedom of a variance over groups, where ``correct`` has values of groups.
        pooled: the variance of all rows, if they have equal seeds; by default, the two sides have their own.
        overlap: validation images per training image, where values are of folds that share training images: it is added
            to 1 / n in the variance of a mean of n values (Nadeau and Bengio, 2003, section 3).
    """
    in_common = [key for key in values if key in others]
    paired = len(in_common) >= 2 and len(in_common) == max(len(values), len(others))
    # With fewer in common, their correlation is unknown.
    pairs = len(in_common) if paired or len(in_common) >= MIN_SEEDS else 0
    rest = [[key for key in side if key not in in_common[:pairs]] for side in (values, others)]
    keys, other_keys = in_common[:pairs] + rest[0], in_common[:pairs] + rest[1]
    x = np.array([values[key] for key in keys])
    y = np.array([others[key] for key in other_keys])
    counts, nan = (len(x), len(y)), math.nan
    mean = float(x.mean() - y.mean()) if min(counts) else nan
    untested = partial(Difference, mean, low=nan, high=nan, paired=paired, counts=counts)
    if min(counts) < 2:
        return untested(p=nan, sd=nan)
    correlation = _correlation(x[:pairs], y[:pairs])
    sd = float(np.std(x - y, ddof=1)) if paired else _pooled_sd(x, y)
    sd_freedom = len(x) - 1.0 if paired else len(x) + len(y) - 2.0
    if pooled is not None:
        sd, sd_freedom = math.sqrt(2 * pooled.variance), float(pooled.freedom)
    elif is_float_error(sd, np.concatenate([x, y])):  # possible, since accuracies are whole numbers of images
        equal = is_float_error(abs(mean), np.concatenate([x, y]))
        p = 1.0 if equal else nan  # without variance, a difference cannot be tested
        return untested(p=p, sd=0.0, correlation=correlation, shared=pairs, corrected=p)
    if paired:
        variance, freedom = sd**2 * (1 / len(x) + overlap), sd_freedom
    else:
        variance, freedom = _partly_paired(x, y, pairs, overlap)
        if pairs:
            sd, sd_freedom = float(np.std(x[:pairs] - y[:pairs], ddof=1)), pairs - 1.0
            sd = 0.0 if is_float_error(sd, x) else sd
    over_images, image_freedom, sizes = 0.0, MANY, None if paired else counts
    parts = [(variance, freedom)]
    if correct is not None:
        ours = np.array([correct[0][key] for key in keys], float)
        theirs = np.array([correct[1][key] for key in other_keys], float)
        level = SIGNIFICANCE_LEVEL / family.comparisons
        images, image_freedom = groups or (ours.shape[1], ours.shape[1] - 1.0)
        over_images = image_variance(ours, theirs, shared=pairs, level=level, images=images)
        sum_freedom = freedom_of_sum((variance, over_images), (freedom, image_freedom), level)
        # With few seeds and a small level, that of the sum would be narrower than the interval for these images alone.
        parts.append((variance + over_images, sum_freedom))
    half_width = max(family.critical_t(some, sizes) * math.sqrt(part) for part, some in parts)
    p, corrected = (max(one.p(mean / math.sqrt(part), some, sizes) for part, some in parts) for one in (ALONE, family))
    return Difference(
        mean,
        low=mean - half_width,
        high=mean + half_width,
        p=p,
        paired=paired,
        counts=counts,
        sd=sd,
        correlation=correlation,
        shared=pairs,
        corrected=corrected,
        freedom=sd_freedom,
        new_images=correct is not None,
        image_variance=over_images,
        image_freedom=image_freedom,
        grouped=groups is not None,
        overlap=overlap,
    )


def freedom_of_sum(
    variances: tuple[float, float], freedoms: tuple[float, float], level: float = SIGNIFICANCE_LEVEL
) -> float:
    """Degrees of freedom of a sum of two variances: at ``level``, its t is the mean of theirs, weighted by variance.

    That is the approximation of Cochran (1964, Biometrics 20). Satterthwaite's has intervals of three seeds hold the
    truth in 92 % of cases where images matter little: a variance over seeds that is small by chance counts as sure.

    Args:
        variances: the parts, not both 0.
        freedoms: of each part.
        level: two-sided.
    """
    if variances[1] == 0 or freedoms[0] == freedoms[1]:
        return freedoms[0]
    if variances[0] == 0:
        return freedoms[1]
    wanted = np.average(special.stdtrit(freedoms, 1 - level / 2), weights=variances)
    return float(brentq(lambda freedom: special.stdtrit(freedom, 1 - level / 2) - wanted, *freedoms))


def _partly_paired(x: np.ndarray, y: np.ndarray, pairs: int, overlap: float) -> tuple[float, float]:
    """Variance of a difference of means and its degrees of freedom, if the first ``pairs`` values are pairs.

    Welch's test without pairs, and close to the paired test if all values are (Derrick, Toher and White, 2017).
    """
    counts = (len(x), len(y))
    parts = (float(np.var(x, ddof=1)) * (1 / len(x) + overlap), float(np.var(y, ddof=1)) * (1 / len(y) + overlap))
    welch = float(welch_freedom(parts, (len(x) - 1, len(y) - 1)))
    if not pairs:
        return sum(parts), welch
    correlation = max(0.0, _correlation(x[:pairs], y[:pairs]))  # below 0 is noise: a seed has no opposite effects
    variance = sum(parts) - 2 * correlation * math.sqrt(parts[0] * parts[1] / (counts[0] * counts[1])) * pairs
    alone = sum(counts) - 2 * pairs
    return variance, pairs - 1 + (welch - pairs + 1) / sum(counts) * alone


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Of pairs; NaN for fewer than three, and for values that do not vary."""
    if len(x) < MIN_SEEDS or not (np.ptp(x) > 0 and np.ptp(y) > 0):
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def _pooled_sd(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.sqrt(np.average([x.var(ddof=1), y.var(ddof=1)], weights=[len(x) - 1, len(y) - 1])))


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

        high = MIN_SEEDS
        while not enough(high):  # from below: most plans are of few seeds, and critical values take time
            if high == MAX_SEEDS:
                return None
            high = min(2 * high, MAX_SEEDS)
        return bisect_left(range(high), True, lo=max(MIN_SEEDS, high // 2), key=enough)

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
