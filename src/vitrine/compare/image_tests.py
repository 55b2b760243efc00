"""Tests and intervals over test images, of trained models as they are."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from vitrine.compare.simultaneous import SIGNIFICANCE_LEVEL


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values corrected for multiple comparisons (Holm, 1979)."""
    order = np.argsort(ps)
    corrected = np.empty(len(ps))
    corrected[order] = np.minimum(1, np.maximum.accumulate(np.array(ps)[order] * np.arange(len(ps), 0, -1)))
    return [float(p) for p in corrected]


def mcnemar(correct: np.ndarray, other_correct: np.ndarray) -> tuple[int, int, float]:
    """Run McNemar's exact test of two models on the same N images.

    Args:
        correct: (N,) bool, whether the first model classifies each image correctly.
        other_correct: (N,) bool, the same for the other model.

    Returns:
        The number of images that only the first model classifies correctly, only the other, and the p-value.
    """
    only, other_only = int((correct & ~other_correct).sum()), int((~correct & other_correct).sum())
    p = 2 * stats.binom.cdf(min(only, other_only), only + other_only, 0.5)
    return only, other_only, min(1.0, float(p))


def paired_interval(only: int, other_only: int, images: int) -> tuple[float, float]:
    """Return the 95 % interval of the difference in accuracy of two models on the same images (Tango, 1998).

    A score interval: it stays within [-1, 1], and has a width where both models agree on every image.

    Args:
        only: number of images that only the first model classifies correctly.
        other_only: number that only the other model does.
        images: number of all images.
    """
    estimate, bound = (only - other_only) / images, float(stats.norm.isf(SIGNIFICANCE_LEVEL / 2))

    def score(size: float) -> float:
        """Standardised difference from ``size``, with the most likely variance that has this difference."""
        b = (2 * images - only + other_only) * size - only - other_only
        c = -other_only * size * (1 - size)
        least = (math.sqrt(b * b - 8 * images * c) - b) / (4 * images)
        variance = images * (2 * least + size * (1 - size))
        gap = images * (estimate - size)
        return gap / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, gap) if gap else 0.0

    def reached(target: float, end: float) -> float:
        if abs(estimate - end) < 1e-12:
            return end
        return float(brentq(lambda size: min(max(score(size), -1e6), 1e6) - target, end, estimate))

    return reached(bound, -1.0), reached(-bound, 1.0)


def group_interval(per_group: np.ndarray, images: int, freedom: float) -> tuple[float, float]:
    """Return the 95 % interval (Student's t) of the mean of (G,) values, one per group of images, G at least 2.

    As that of :func:`bootstrap_interval`, either side has at least the width of the rule of three, of all images.

    Args:
        per_group: as :func:`vitrine.runs.image_groups.group_values` returns them, of differences in accuracy.
        images: in all groups.
        freedom: degrees of freedom of their variance, :func:`vitrine.runs.image_groups.group_freedom`.
    """
    mean = float(per_group.mean())
    reach = float(stats.t.ppf(1 - SIGNIFICANCE_LEVEL / 2, freedom) * stats.sem(per_group))
    reach = max(reach, -math.log(SIGNIFICANCE_LEVEL / 2) / images)
    return max(-1.0, mean - reach), min(1.0, mean + reach)


def bootstrap_interval(per_image: np.ndarray) -> tuple[float, float]:
    """Return the 95 % bootstrap interval (percentiles, 2,000 resamples) of the mean of (N,) values, one per image.

    Resamples of values that are equal on all images, or on all but a few, hardly differ: either side has at least the
    width of the rule of three, ln 40 / N.

    Args:
        per_image: differences in accuracy, in [-1, 1], as the interval is.
    """
    mean, least = float(per_image.mean()), -math.log(SIGNIFICANCE_LEVEL / 2) / len(per_image)
    low = high = mean
    if per_image.min() < per_image.max():
        result = stats.bootstrap((per_image,), np.mean, n_resamples=2000, batch=100, method="percentile", rng=0)
        low, high = result.confidence_interval
    return max(-1.0, min(float(low), mean - least)), min(1.0, max(float(high), mean + least))
