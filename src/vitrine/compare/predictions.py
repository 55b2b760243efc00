"""What stored predictions say: which images are right, how sure of them models were, which are hard."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitrine.compare.load import Run
from vitrine.errors import RunError

BINS = 15  # as in arXiv:1706.04599


@dataclass(frozen=True)
class Judged:
    """One run's predictions of N test images.

    Attributes:
        labels: (N,) true classes.
        predicted: (N,) most probable classes.
        confidence: (N,) their probabilities.
        chance: (N,) probabilities of the true classes.
    """

    labels: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray
    chance: np.ndarray

    @classmethod
    def of(cls, run: Run) -> "Judged":
        """From the logits that the run has stored.

        Raises:
            RunError: they cannot be read, or are not predictions.
        """
        from scipy.special import softmax

        labels, logits = run.truth, run.logits
        if logits.ndim != 2 or labels.shape != logits.shape[:1] or not len(labels) or labels.max() >= logits.shape[1]:
            shapes = f"labels {labels.shape} and logits {logits.shape}"
            raise RunError(f"the predictions of {run.name} are damaged: {shapes} do not belong together")
        probabilities = softmax(np.nan_to_num(logits), axis=1)  # of a run that diverged: every class alike
        predicted = probabilities.argmax(axis=1)
        every = np.arange(len(labels))
        return cls(labels, predicted, probabilities[every, predicted], probabilities[every, labels])

    @property
    def right(self) -> np.ndarray:
        """(N,) bool."""
        return self.predicted == self.labels


@dataclass(frozen=True)
class Calibration:
    """How far confidence is from being right, over equally wide bins of confidence (arXiv:1706.04599, section 2).

    Attributes:
        error: expected calibration error: the mean distance of confidence and accuracy, bins weighted by their images;
            of several runs the mean of each one's, for taken together they may be wrong in opposite directions.
        confidence, accuracy, count: mean confidence, share right and number of images of each bin that has any, of all
            runs together.
    """

    error: float
    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray


def calibration(judged: Sequence[Judged]) -> Calibration:
    """Of one or several runs."""
    return replace(_binned(judged), error=float(np.mean([_binned([one]).error for one in judged])))


def _binned(judged: Sequence[Judged]) -> Calibration:
    confidence = np.concatenate([one.confidence for one in judged]).astype(np.float64)
    right = np.concatenate([one.right for one in judged])
    edges = np.linspace(0, 1, BINS + 1)
    inside = np.clip(np.digitize(confidence, edges[1:-1], right=True), 0, BINS - 1)
    count = np.bincount(inside, minlength=BINS)
    some = count > 0
    sure = np.bincount(inside, confidence, BINS)[some] / count[some]
    share = np.bincount(inside, right, BINS)[some] / count[some]
    error = float(np.average(np.abs(sure - share), weights=count[some]))
    return Calibration(error, sure, share, count[some])


def confusion(judged: Sequence[Judged], classes: int) -> np.ndarray:
    """(classes, classes) counts over several runs: true class by predicted class."""
    from sklearn.metrics import confusion_matrix

    return np.sum([confusion_matrix(one.labels, one.predicted, labels=range(classes)) for one in judged], axis=0)


def per_class(judged: Sequence[Judged], classes: int) -> np.ndarray:
    """(runs, classes) share of each class's images that are right; NaN for a class without images."""
    from sklearn.metrics import recall_score

    return np.stack(
        [
            recall_score(one.labels, one.predicted, labels=range(classes), average=None, zero_division=np.nan)
            for one in judged
        ]
    )


@dataclass(frozen=True)
class Hard:
    """An image that many runs get wrong.

    Attributes:
        index: among the test images.
        label: its true class.
        wrong: runs that get it wrong.
        taken_for: the class that most of these take it for.
    """

    index: int
    label: int
    wrong: int
    taken_for: int


def hardest(judged: Sequence[Judged], most: int) -> list[Hard]:
    """The images most often wrong; among equals those whose true class was given the least chance."""
    wrong = np.sum([~one.right for one in judged], axis=0)
    chance = np.mean([one.chance for one in judged], axis=0)
    order = np.lexsort((chance, -wrong))
    found = []
    for index in order[:most]:
        if wrong[index] == 0:
            break
        label = int(judged[0].labels[index])
        mistakes = [int(one.predicted[index]) for one in judged if not one.right[index]]
        found.append(Hard(int(index), label, int(wrong[index]), int(np.bincount(mistakes).argmax())))
    return found
