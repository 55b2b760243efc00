"""Scores of each class with their confidence intervals, from true and predicted classes."""

from dataclasses import dataclass

import numpy as np

from vitrine.runs.predictions import class_counts
from vitrine.training.metrics import share_interval, wilson_interval


@dataclass(frozen=True)
class ClassScores:
    """Scores of C classes: each (C, 3) value, lower and upper end of its 95 % interval, in [0, 1]; NaN if undefined.

    Attributes:
        recall: share of the images of a class that are taken for it: its accuracy.
        precision: share of the images taken for a class that are of it.
        f1: harmonic mean of both.
        support: (C,) images of each class.
    """

    recall: np.ndarray
    precision: np.ndarray
    f1: np.ndarray
    support: np.ndarray


def class_scores(
    labels: np.ndarray, predicted: np.ndarray, classes: int, groups: np.ndarray | None = None
) -> ClassScores:
    """Return the scores of the classes.

    Intervals are Wilson's, :func:`vitrine.training.metrics.share_interval`. F1 = 2 J / (1 + J), where J is the share of
    correct images among those that are of a class or taken for it; the ends of J's interval give those of F1.

    Args:
        labels: (N,) true classes; where images have several labels, (N, classes) bool.
        predicted: likewise, predicted classes.
        classes: their number.
        groups: (N,) the number of each image's group, if they have any.
    """
    correct, of_class, taken = class_counts(labels, predicted, classes)
    if groups is None:
        recall, precision, overlap = (wilson(correct, all_) for all_ in (of_class, taken, of_class + taken - correct))
    else:
        true, given = (one if one.ndim == 2 else one[:, None] == np.arange(classes) for one in (labels, predicted))
        recall, precision, overlap = (_in_groups(true & given, among, groups) for among in (true, given, true | given))
    return ClassScores(recall, precision, 2 * overlap / (1 + overlap), of_class)


def _in_groups(correct: np.ndarray, among: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """As :func:`wilson`, of ``correct`` images ``among`` others, (N, classes) bool each: (classes, 3)."""
    columns = zip(correct.T, among.T, strict=True)
    return np.array([share_interval(right[of], groups[of]) if of.any() else (np.nan,) * 3 for right, of in columns])


def wilson(correct: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return shares with Wilson's 95 % interval, (..., 3): value, lower and upper end; NaN where ``total`` is 0."""
    pairs = np.stack(np.broadcast_arrays(correct, total), axis=-1).astype(int)
    found = [
        (right / count, *wilson_interval(right, count)) if count else (np.nan,) * 3
        for right, count in pairs.reshape(-1, 2).tolist()
    ]
    return np.array(found).reshape(*pairs.shape[:-1], 3)
