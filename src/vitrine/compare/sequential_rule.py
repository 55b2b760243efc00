"""When a sequential comparison of two configurations stops, and what it then says: one interval decides both."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from vitrine.compare.sequential_boundaries import (
    anytime_t,
    group_sequential_levels,
    group_sequential_t,
    planned_levels,
)

FLOAT32_ERROR = 5e-7  # relative: metrics are stored as float32, 142 of 144 images as 0.98611110448...
MIN_SEEDS = 3  # fewer support no conclusion
FUTILE = 0.02  # chance of a verdict, under favourable conditions, below which more seeds are not worth it
# Three seeds say little about a variance, but those of several comparisons together do. From SHARED_FROM on, their mean
# counts beside a comparison's own variance, as 0.4 of the degrees of freedom that suit how much variances differ
# (Smyth, 2004), and at most a quarter for each comparison, or two. All are chosen by simulation, in which some arms
# vary up to ten times as much as others (benchmarks/studies/decisions.py).
SHARED_FROM, SHARED_PART, SHARED_EACH, SHARED_MOST = 3, 0.4, 0.25, 2.0
SHARED_KEPT = 0.4  # of the error, for the last look: the first ones find large effects with less of it
# The part of the error with which the interval over test images is taken. With all of it, the squares of both parts
# cover the difference slightly too rarely, up to 6.0 % in place of 5 %, where images matter more than seeds; by
# simulation, too. With Student's t, it suits as few as three groups of images.
IMAGES_PART = 0.8
# Sweeps announce it. It grows whenever the same results could lead to another verdict or interval.
RULE_VERSION = 6


@dataclass(frozen=True)
class Rule:
    """A sequential test of one comparison; all methods work on arrays of any shape.

    Its intervals cover the true difference after every number of seeds at once with probability ``1 - alpha``
    (repeated confidence intervals; Jennison and Turnbull, 1989). Verdicts are read off the interval, so a verdict is
    false only if the interval misses the true difference.

    Attributes:
        alpha: probability of missing the true difference, after any number of seeds.
        difference: differences up to this size do not matter, in the metric's unit; ``None`` if every one does.
        min_seeds, max_seeds: numbers of seeds before and after which there is no look.
        method: ``group_sequential`` or ``anytime``.
        paired: seeds are paired; otherwise Welch's test of two groups. ``anytime`` always pairs.
        shared_freedom: most degrees of freedom that the mean variance of all arms counts as beside an arm's own; 0 if
            each arm has a variance of its own.
    """

    alpha: float
    difference: float | None = None
    min_seeds: int = MIN_SEEDS
    max_seeds: int = 20
    method: str = "group_sequential"
    paired: bool = True
    shared_freedom: float = 0.0

    @classmethod
    def of_arms(
        cls,
        arms: int,
        alpha: float,
        difference: float | None,
        min_seeds: int,
        max_seeds: int,
        method: str,
        *,
        paired: bool,
    ) -> "Rule":
        """Return the rule for each of ``arms`` comparisons with one baseline, whose error together is ``alpha``."""
        shares = method == "group_sequential" and arms >= SHARED_FROM
        shared = min(SHARED_EACH * arms, SHARED_MOST) if shares else 0.0
        return cls(alpha / arms, difference, min_seeds, max_seeds, method, paired, shared)

    def critical_t(self, count: ArrayLike, freedom: ArrayLike = 0.0) -> np.ndarray:
        """Return the critical value of |t|.

        Args:
            count: number of pairs, or of seeds in the smaller group: ``min_seeds`` to ``max_seeds``.
            freedom: degrees of freedom, where seeds are not paired or variances are shared.
        """
        plan = (self.alpha, self.min_seeds, self.max_seeds)
        index = np.asarray(count) - self.min_seeds
        if self.method == "anytime":
            return anytime_t(*plan)[index]
        if self.paired and not self.shared_freedom:
            return group_sequential_t(*plan)[index]
        levels = planned_levels(*plan, SHARED_KEPT) if self.shared_freedom else group_sequential_levels(*plan)
        return np.asarray(-special.stdtrit(freedom, levels[index] / 2))

    def share_variances(self, variances: ArrayLike, freedom: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Draw the variances of arms towards their geometric mean, less the more they differ (Smyth, 2004, section 6).

        Arms that were dropped stay among them, with the seeds that they had.

        Args:
            variances: (..., K) positive, of each arm's differences from the baseline, or of its values if seeds are not
                paired.
            freedom: (..., K) degrees of freedom of each, at least 1.

        Returns:
            (..., K) variances, and their degrees of freedom.
        """
        variances, freedom = np.asarray(variances, float), np.asarray(freedom, float)
        half = freedom / 2
        logs = np.log(variances) - special.digamma(half) + np.log(half)  # without the bias of a logarithm
        mean = np.exp((freedom * logs).sum(-1, keepdims=True) / freedom.sum(-1, keepdims=True))
        by_chance = special.polygamma(1, half).mean(-1, keepdims=True)
        suitable = 2 * _inverse_trigamma(logs.var(-1, ddof=1, keepdims=True) - by_chance)
        shared = np.minimum(self.shared_freedom, SHARED_PART * suitable)
        return (shared * mean + freedom * variances) / (shared + freedom), shared + freedom

    def half_width(
        self,
        error: ArrayLike,
        count: ArrayLike,
        freedom: ArrayLike = 0.0,
        image_error: ArrayLike = 0.0,
        image_freedom: ArrayLike = math.inf,
    ) -> np.ndarray:
        """Return half the width of the interval of a difference.

        Args:
            error: its standard error over seeds.
            count: see :meth:`critical_t`.
            freedom: see :meth:`critical_t`.
            image_error: its standard error over test images, which more seeds do not reduce; 0 for these images. Both
                parts are added as squares (modified large-sample limits; Graybill and Wang, 1980).
            image_freedom: degrees of freedom of ``image_error``; infinite where it is known.
        """
        over_images = -special.stdtrit(image_freedom, IMAGES_PART * self.alpha / 2) * np.asarray(image_error)
        return np.asarray(np.hypot(self.critical_t(count, freedom) * error, over_images))

    def verdict(self, mean: ArrayLike, half_width: ArrayLike) -> np.ndarray:
        """Return ``better`` (the difference is positive), ``worse``, ``equal``, or an empty string for none yet."""
        low = np.asarray(np.asarray(mean) - np.asarray(half_width), float)
        high = np.asarray(np.asarray(mean) + np.asarray(half_width), float)
        size = -math.inf if self.difference is None else self.difference
        equal = (low >= -size) & (high <= size)
        return np.where(low > 0, "better", np.where(high < 0, "worse", np.where(equal, "equal", "")))

    def futile(
        self,
        mean: ArrayLike,
        error: ArrayLike,
        count: ArrayLike,
        image_error: ArrayLike = 0.0,
        image_freedom: ArrayLike = math.inf,
    ) -> np.ndarray:
        """Return whether a verdict by ``max_seeds`` has become improbable; never with ``anytime``, which may go on.

        Arguments are those of :meth:`half_width`, with the ``mean`` difference.
        Seeds to come are assumed to have the observed standard deviation, and a mean one standard error further in the
        direction of the verdict. Boundaries do not rely on stopping (non-binding): it costs power, and no error.
        """
        if self.method == "anytime":
            return np.zeros(np.shape(mean), bool)
        mean, error, count = np.abs(mean), np.asarray(error, float), np.asarray(count, float)
        last = self.max_seeds
        final_error = error * np.sqrt(count / last)
        spread = final_error * np.sqrt(np.maximum(last - count, 1e-9) / last)
        final_freedom = (1 if self.paired else 2) * (last - 1) + self.shared_freedom
        bound = self.half_width(final_error, last, final_freedom, image_error, image_freedom)
        share = (last - count) / last
        with np.errstate(divide="ignore", invalid="ignore"):
            reached = special.ndtr((mean + share * error - bound) / spread)
            if self.difference:
                ends = np.maximum(0.0, mean - share * error)
                room = self.difference - bound
                within = special.ndtr((room - ends) / spread) - special.ndtr((-room - ends) / spread)
                reached = np.maximum(reached, within)
        return np.asarray((error > 0) & (reached < FUTILE))


def _inverse_trigamma(value: np.ndarray) -> np.ndarray:
    """Return x with trigamma(x) = ``value``, in [0.001, 1000], which is enough for shares of degrees of freedom."""
    x = np.geomspace(1e-3, 1e3, 4000)
    return np.interp(-value, -special.polygamma(1, x), x)


def welch_freedom(variances: tuple[ArrayLike, ArrayLike], freedom: tuple[ArrayLike, ArrayLike]) -> np.ndarray:
    """Degrees of freedom of the sum of two independent variances (Satterthwaite, 1946).

    Args:
        variances: of each group's mean.
        freedom: degrees of freedom of each.
    """
    parts = [np.asarray(variance, float) for variance in variances]
    squares = sum(part**2 / np.asarray(known) for part, known in zip(parts, freedom, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((parts[0] + parts[1]) ** 2 / squares)


def is_float_error(sd: float, values: np.ndarray) -> bool:
    """Whether a standard deviation, or a difference, is no more than the float32 error of the values behind it."""
    return bool(sd <= FLOAT32_ERROR * float(np.abs(values).max()))


def image_variance(correct: np.ndarray, other: np.ndarray, *, shared: int, level: float, images: int = 0) -> float:
    """Variance of a difference in accuracy that is due to the choice of test images, for crossed seeds and images.

    The variance over images of the mean over seeds contains what varies over seeds *and* images; that part is already
    in the variance over seeds and is subtracted (Clark, 1973), less what both sides of shared seeds have in common,
    which has cancelled.

    Images on which nothing differs do not tell that nothing ever would: the variance is at least that whose normal
    interval has the half width of the rule of three, ln(2 / level) / N (Hanley and Lippman-Hand, 1983, JAMA 249).

    Args:
        correct: (S, N) bool or float, which of N images, at least 2, each of S seeds classified correctly; or values of
            N groups of images (:func:`vitrine.runs.image_groups.group_values`).
        other: (T, N), of the other configuration.
        shared: number of pairs: the first rows of both sides, row by row of the same seed; 0 if seeds are not paired.
        level: two-sided, of the interval that the variance is for, in (0, 1).
        images: the number of images, where values are of groups; 0 is N.
    """
    count = correct.shape[1]
    least = (math.log(level / 2) / special.ndtri(level / 2) / (images or count)) ** 2
    total = float((correct.mean(0) - other.mean(0)).var(ddof=1))
    for side in (correct, other):
        total -= _of_seed_and_image(side, side) / len(side)
    common = _of_seed_and_image(correct[:shared], other[:shared])
    total += 2 * common * shared / (len(correct) * len(other))
    return max(least, total / count)


def _of_seed_and_image(correct: np.ndarray, other: np.ndarray) -> float:
    """Covariance over pairs, (S, N) each, that is left to seed and image together; 0 of fewer than two seeds."""
    seeds, images = correct.shape
    if seeds < 2:
        return 0.0
    rests = [side - side.mean(0) - side.mean(1, keepdims=True) + side.mean() for side in (correct, other)]
    return float((rests[0] * rests[1]).sum()) / ((seeds - 1) * (images - 1))
