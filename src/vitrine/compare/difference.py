"""The difference between the means of two configurations: its interval and p-value, over seeds and images."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import special
from scipy.optimize import brentq

from vitrine.compare.sequential_rule import MIN_SEEDS, image_variance, is_float_error, welch_freedom
from vitrine.compare.simultaneous import SIGNIFICANCE_LEVEL, Family, PooledVariance

ALONE = Family()
MANY = 1e6  # degrees of freedom of a variance over images, of which there are many


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
    samples = _Samples.of(values, others)
    counts, nan = samples.counts, math.nan
    mean = float(samples.x.mean() - samples.y.mean()) if min(counts) else nan
    result = partial(
        Difference,
        mean,
        paired=samples.paired,
        counts=counts,
        correlation=samples.correlation,
        shared=samples.pairs,
    )
    if min(counts) < 2:
        return result(low=nan, high=nan, p=nan, sd=nan)
    if pooled is not None:
        sd, sd_freedom = math.sqrt(2 * pooled.variance), float(pooled.freedom)
    elif samples.are_constant:  # possible, since accuracies are whole numbers of images
        p = 1.0 if is_float_error(abs(mean), samples.all_values) else nan  # without variance, there is no test
        return result(low=nan, high=nan, p=p, sd=0.0, corrected=p)
    else:
        sd, sd_freedom = samples.spread
    if samples.paired:
        variance, freedom = sd**2 * (1 / counts[0] + overlap), sd_freedom
    else:
        variance, freedom = samples.partly_paired_variance(overlap)
    parts = [(variance, freedom)]
    over_images, image_freedom, sizes = 0.0, MANY, None if samples.paired else counts
    if correct is not None:
        ours, theirs = samples.arranged(correct)
        level = SIGNIFICANCE_LEVEL / family.comparisons
        images, image_freedom = groups or (ours.shape[1], ours.shape[1] - 1.0)
        over_images = image_variance(ours, theirs, shared=samples.pairs, level=level, images=images)
        sum_freedom = freedom_of_sum((variance, over_images), (freedom, image_freedom), level)
        # With few seeds and a small level, that of the sum would be narrower than the interval for these images alone.
        parts.append((variance + over_images, sum_freedom))
    half_width = max(family.critical_t(some, sizes) * math.sqrt(part) for part, some in parts)
    p, corrected = (max(one.p(mean / math.sqrt(part), some, sizes) for part, some in parts) for one in (ALONE, family))
    return result(
        low=mean - half_width,
        high=mean + half_width,
        p=p,
        sd=sd,
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


@dataclass(frozen=True)
class _Samples:
    """The values of two sides, those of shared seeds first and in one order.

    Attributes:
        seeds: of each side.
        x, y: the values of each side.
        pairs: number of shared seeds that are taken as pairs.
        paired: whether all are.
    """

    seeds: tuple[list[Hashable], list[Hashable]]
    x: np.ndarray
    y: np.ndarray
    pairs: int
    paired: bool

    @classmethod
    def of(cls, values: Mapping[Hashable, float], others: Mapping[Hashable, float]) -> "_Samples":
        shared = [seed for seed in values if seed in others]
        paired = len(shared) >= 2 and len(shared) == max(len(values), len(others))
        if not paired and len(shared) < MIN_SEEDS:  # too few to know their correlation
            shared = []
        seeds, other_seeds = ([*shared, *(seed for seed in side if seed not in shared)] for side in (values, others))
        x, y = np.array([values[seed] for seed in seeds]), np.array([others[seed] for seed in other_seeds])
        return cls((seeds, other_seeds), x, y, len(shared), paired)

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.x), len(self.y)

    @property
    def all_values(self) -> np.ndarray:
        return np.concatenate([self.x, self.y])

    def arranged(self, correct: Correct) -> tuple[np.ndarray, np.ndarray]:
        """What each seed classified correctly, (seeds, N), in the order of the values."""
        (ours, theirs), (seeds, other_seeds) = correct, self.seeds
        return np.array([ours[seed] for seed in seeds], float), np.array([theirs[seed] for seed in other_seeds], float)

    @property
    def correlation(self) -> float:
        """Of pairs; NaN for fewer than three, and for values that do not vary."""
        x, y = self.x[: self.pairs], self.y[: self.pairs]
        if self.pairs < MIN_SEEDS or not (np.ptp(x) > 0 and np.ptp(y) > 0):
            return math.nan
        return float(np.corrcoef(x, y)[0, 1])

    @property
    def are_constant(self) -> bool:
        """Whether the differences of all pairs, or else the values of both sides, vary by float32 errors alone."""
        sd = float(np.std(self.x - self.y, ddof=1)) if self.paired else self._pooled_sd
        return is_float_error(sd, self.all_values)

    @property
    def spread(self) -> tuple[float, float]:
        """Standard deviation of the differences of pairs, or pooled without any, and its degrees of freedom."""
        if not self.pairs:
            return self._pooled_sd, sum(self.counts) - 2.0
        sd = float(np.std(self.x[: self.pairs] - self.y[: self.pairs], ddof=1))
        return 0.0 if is_float_error(sd, self.x) else sd, self.pairs - 1.0

    @property
    def _pooled_sd(self) -> float:
        weights = [count - 1 for count in self.counts]
        return float(np.sqrt(np.average([self.x.var(ddof=1), self.y.var(ddof=1)], weights=weights)))

    def partly_paired_variance(self, overlap: float) -> tuple[float, float]:
        """Variance of the difference of the means where not all values are pairs, and its degrees of freedom.

        Welch's test without pairs, and close to the paired test if all values are (Derrick, Toher and White, 2017).
        """
        counts = self.counts
        parts = (self.x.var(ddof=1) * (1 / counts[0] + overlap), self.y.var(ddof=1) * (1 / counts[1] + overlap))
        welch = float(welch_freedom(parts, (counts[0] - 1, counts[1] - 1)))
        if not self.pairs:
            return float(sum(parts)), welch
        correlation = max(0.0, self.correlation)  # below 0 is noise: a seed has no opposite effects
        covariance = correlation * math.sqrt(math.prod(parts) / math.prod(counts)) * self.pairs
        alone = sum(counts) - 2 * self.pairs
        return float(sum(parts)) - 2 * covariance, self.pairs - 1 + (welch - self.pairs + 1) / sum(counts) * alone
