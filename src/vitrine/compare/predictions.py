"""Stored predictions of runs: accuracy, confidence and calibration, confusion, and the hardest images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitrine.compare.load import RunResult
from vitrine.runs.image_groups import group_freedom, group_values
from vitrine.runs.predictions import (
    BINS,
    check_predictions,
    class_counts,
    confusion_counts,
    is_correct,
    predicted_classes,
    read_predictions,
)

INDEPENDENT = "Confidence in several labels is taken as if they were independent."


@dataclass(frozen=True)
class Predictions:
    """Predictions of a run for N test images.

    Where images have several labels, true and predicted classes are (N, classes) bool, predicted those with a
    probability above 0.5, and the probability of a set of labels is that of all of them, as if they were independent.

    Attributes:
        labels: (N,) true classes.
        predicted: (N,) most probable classes.
        confidence: (N,) probabilities of the predicted classes.
        true_probability: (N,) probabilities of the true classes.
        groups: (N,) number of each image's group; ``None`` if they have none.
    """

    labels: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray
    true_probability: np.ndarray
    groups: np.ndarray | None = None

    @classmethod
    def of(cls, run: RunResult) -> "Predictions":
        """Compute predictions from the stored logits.

        Raises:
            RunError: the file cannot be read, or labels and logits do not match.
        """
        return replace(cls.from_logits(run.logits, run.labels, run.name), groups=run.groups)

    @classmethod
    def from_logits(cls, logits: np.ndarray, labels: np.ndarray, name: object) -> "Predictions":
        """Compute predictions from logits and labels; arguments and errors as of :func:`check_predictions`."""
        from scipy.special import softmax

        check_predictions(logits, labels, name)
        predicted = predicted_classes(logits, labels)
        if labels.ndim == 2:
            return cls._of_multi_label(labels.astype(bool), predicted, np.nan_to_num(logits.astype(np.float64)))
        probabilities = softmax(np.nan_to_num(logits), axis=1)  # of a diverged run: uniform
        images = np.arange(len(labels))
        return cls(labels, predicted, probabilities[images, predicted], probabilities[images, labels])

    @classmethod
    def _of_multi_label(cls, labels: np.ndarray, predicted: np.ndarray, logits: np.ndarray) -> "Predictions":
        from scipy.special import log_expit

        confidence = np.exp(log_expit(np.abs(logits)).sum(axis=1))
        true_probability = np.exp(log_expit(np.where(labels, logits, -logits)).sum(axis=1))
        return cls(labels, predicted, confidence, true_probability)

    @property
    def multi_label(self) -> bool:
        """Whether images have several labels."""
        return self.labels.ndim == 2

    @property
    def correct(self) -> np.ndarray:
        """Whether each image is classified correctly, with all of its labels; (N,) bool."""
        return is_correct(self.predicted, self.labels)

    @property
    def observations(self) -> np.ndarray:
        """Independent values whose mean is the accuracy: :attr:`correct`, (N,), or one for each of G groups, (G,)."""
        return self.correct if self.groups is None else group_values(self.correct, self.groups)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of a variance over :attr:`observations`."""
        return len(self.labels) - 1.0 if self.groups is None else group_freedom(self.groups)

    @property
    def is_sample(self) -> bool:
        """Whether they tell how others vary; a single image does not, nor a group that has nearly all of them."""
        return self.freedom >= 1

    @property
    def mistakes(self) -> np.ndarray:
        """Indices of the images that are not classified correctly, those of the highest confidence first."""
        wrong = np.flatnonzero(~self.correct)
        return wrong[np.argsort(-self.confidence[wrong], kind="stable")]


def with_common_groups(predictions: Mapping[str, Predictions]) -> dict[str, Predictions]:
    """Return predictions of runs for the same images, all with the groups that some know, or none if these differ.

    Args:
        predictions: by the run's name.
    """
    known = {found.groups.tobytes(): found.groups for found in predictions.values() if found.groups is not None}
    groups = next(iter(known.values())) if len(known) == 1 else None
    return {name: replace(found, groups=groups) for name, found in predictions.items()}


def correct_images(path: Path) -> np.ndarray:
    """Read from predictions.npz which test images are classified correctly, (N,) bool.

    Raises:
        RunError: it cannot be read.
    """
    logits, labels = read_predictions(path, "logits", "labels")
    return is_correct(predicted_classes(logits, labels), labels)


@dataclass(frozen=True)
class Calibration:
    """Reliability of confidences, over equally wide bins of confidence (arXiv:1706.04599, section 2).

    Attributes:
        error: expected calibration error: the distance between confidence and accuracy, averaged over bins weighted by
            their images; of several runs, the mean of their errors, since errors of opposite sign would cancel in
            common bins.
        centre, confidence, accuracy, count: centre in [0, 1], mean confidence, accuracy and number of images of each
            bin that is not empty.
    """

    error: float
    centre: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray


def calibration(runs: Sequence[Predictions]) -> Calibration:
    """Compute the calibration of one or several runs."""
    return replace(_calibration(runs), error=float(np.mean([_calibration([run]).error for run in runs])))


def _calibration(runs: Sequence[Predictions]) -> Calibration:
    confidences = np.concatenate([run.confidence for run in runs]).astype(np.float64)
    correct = np.concatenate([run.correct for run in runs])
    edges = np.linspace(0, 1, BINS + 1)
    bins = np.clip(np.digitize(confidences, edges[1:-1], right=True), 0, BINS - 1)
    count = np.bincount(bins, minlength=BINS)
    filled = count > 0
    confidence = np.bincount(bins, confidences, BINS)[filled] / count[filled]
    accuracy = np.bincount(bins, correct, BINS)[filled] / count[filled]
    error = float(np.average(np.abs(confidence - accuracy), weights=count[filled]))
    centre = (np.flatnonzero(filled) + 0.5) / BINS
    return Calibration(error, centre, confidence, accuracy, count[filled])


def confusion(runs: Sequence[Predictions], classes: int) -> np.ndarray:
    """Sum the confusion matrices of several runs: (classes, classes) counts, true class by predicted class.

    There is none where images have several labels.
    """
    return np.sum([confusion_counts(run.labels, run.predicted, classes) for run in runs], axis=0)


def per_class_accuracy(runs: Sequence[Predictions], classes: int) -> np.ndarray:
    """Compute the accuracy of each run on each class, (runs, classes); NaN for a class without images."""
    counts = [class_counts(run.labels, run.predicted, classes) for run in runs]
    return np.stack([_share(correct, of_class) for correct, of_class, _ in counts])


def per_class_f1(runs: Sequence[Predictions], classes: int) -> np.ndarray:
    """Compute F1 of each run for each class, (runs, classes); NaN for a class that is neither true nor predicted."""
    counts = [class_counts(run.labels, run.predicted, classes) for run in runs]
    return np.stack([_share(2 * correct, of_class + taken) for correct, of_class, taken in counts])


def _share(counts: np.ndarray, total: np.ndarray) -> np.ndarray:
    """``counts`` of ``total``; NaN where this is 0."""
    return np.divide(counts, total, out=np.full(counts.shape, np.nan), where=total > 0)


@dataclass(frozen=True)
class HardImage:
    """A test image that many runs misclassify.

    Attributes:
        index: its index in the test split.
        label: its true class; of several labels, 0 or 1 for each class.
        errors: number of runs that misclassify it.
        mistaken_for: the class that most of these predict.
    """

    index: int
    label: int | list[int]
    errors: int
    mistaken_for: int | list[int]


def hardest_images(runs: Sequence[Predictions], most: int) -> list[HardImage]:
    """Return the images misclassified by most runs; ties go to the lowest mean probability of the true class."""
    errors = np.sum([~run.correct for run in runs], axis=0)
    true_probability = np.mean([run.true_probability for run in runs], axis=0)
    order = np.lexsort((true_probability, -errors))
    found = []
    for index in order[:most]:
        if errors[index] == 0:
            break
        mistakes = np.stack([run.predicted[index] for run in runs if not run.correct[index]]).astype(int)
        kinds, counts = np.unique(mistakes, axis=0, return_counts=True)
        label, mistaken_for = runs[0].labels[index].astype(int).tolist(), kinds[counts.argmax()].tolist()
        found.append(HardImage(int(index), label, int(errors[index]), mistaken_for))
    return found
