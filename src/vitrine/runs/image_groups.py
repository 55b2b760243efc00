"""What counts as one observation where test images come in groups (``data.group``), such as those of a patient.

Images of a group may be alike, so intervals for other images take groups as the sample.
"""

from collections.abc import Hashable, Sequence

import numpy as np


def group_numbers(names: Sequence[Hashable]) -> np.ndarray:
    """Number groups by their first image: the names of N images -> (N,) int32, from 0."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int32)


def group_values(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return one value for each of G groups, (G,), in place of one for each of N images.

    Their mean is that of ``values``, and their variance over groups, divided by G, is the cluster-robust variance of
    this mean (Liang and Zeger, 1986; arXiv:2411.00640, section 2.2).

    Args:
        values: (N,).
        groups: (N,) the number of each image's group, 0 to G - 1.
    """
    mean = values.mean()
    sums = np.bincount(groups, values - mean)
    return np.asarray(mean + sums * (len(sums) / len(values)))


def group_freedom(groups: np.ndarray) -> float:
    """Return the degrees of freedom of a variance over groups: G - 1 if they are of equal sizes, fewer if not.

    G is then the effective number of groups, the square of all images by the sum of their squares in each group (Kish;
    Carter, Schnepel and Steigerwald, 2017). It is near 0 where one group has nearly all images.

    Args:
        groups: (N,) the number of each image's group.
    """
    sizes = np.unique(groups, return_counts=True)[1]
    return float(sizes.sum() ** 2 / (sizes**2).sum() - 1)


def effective_images(correct: np.ndarray, groups: np.ndarray) -> float:
    """Return the number of independent images that would tell as much about the share of correct ones.

    It is that of Korn and Graubard (1998): the variance that independent images would have, divided by that over
    groups, and reduced for few groups. It is at most N and, where all or none are correct, which tells nothing of the
    variance, the effective number of groups.

    Args:
        correct: (N,) bool.
        groups: (N,) the number of each image's group.
    """
    from scipy.special import stdtrit

    _, numbers = np.unique(groups, return_inverse=True)
    values, freedom, share = group_values(correct, numbers), group_freedom(numbers), float(correct.mean())
    if len(values) == 1 or share in (0, 1):
        return freedom + 1
    variance = float(values.var(ddof=1)) / len(values)
    independent = share * (1 - share) / len(correct)
    quantiles = stdtrit([len(correct) - 1, freedom], 0.975)
    design_effect = max(1.0, variance / independent)
    return float(len(correct) / design_effect * (quantiles[0] / quantiles[1]) ** 2)
