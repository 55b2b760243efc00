"""Scores of each class with their confidence intervals, from true and predicted classes."""

from dataclasses import dataclass

import numpy as np

from vitrine.runs.predictions import class_counts
from vitrine.training.metrics import wilson_interval


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


def class_scores(labels: np.ndarray, predicted: np.ndarray, classes: int) -> ClassScores:
    """Return the scores of the classes, from true and predicted classes (N,); of several labels, (N, classes) bool.

    Intervals are Wilson's. F1 = 2 J / (1 + J), where J is the share of correct images among those that are of a class
    or taken for it; the ends of J's interval give those of F1.
    """
    correct, of_class, taken = class_counts(labels, predicted, classes)
    overlap = wilson(correct, of_class + taken - correct)
    return ClassScores(wilson(correct, of_class), wilson(correct, taken), 2 * overlap / (1 + overlap), of_class)


def wilson(correct: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return shares with Wilson's 95 % interval, (..., 3): value, lower and upper end; NaN where ``total`` is 0."""
    pairs = np.stack(np.broadcast_arrays(correct, total), axis=-1).astype(int)
    found = [
        (right / count, *wilson_interval(right, count)) if count else (np.nan,) * 3
        for right, count in pairs.reshape(-1, 2).tolist()
    ]
    return np.array(found).reshape(*pairs.shape[:-1], 3)
