"""Write and read predictions.npz, the logits and labels of a run's test images, and count what was predicted."""

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from vitrine.errors import RunError, first_line
from vitrine.files import replacing
from vitrine.text import file_size, report
from vitrine.untrusted import refuse_pipe

BINS = 15  # of the expected calibration error, as in arXiv:1706.04599
MAX_PREDICTIONS = 4e9  # bytes; those for the 50,000 test images of ImageNet are 0.2 GB
HEADER = 128  # bytes before each array, of up to two dimensions


def write_predictions(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name: ``logits``, (N, classes), and ``labels``; of further targets ``logits/NAME`` as well.

    ``groups``, (N,), numbers the groups of the images, if they have any. There is no file where it would unpack to more
    than ``MAX_PREDICTIONS``, which would not be read; a line reports it.
    """
    if sum(HEADER + array.nbytes for array in arrays.values()) > MAX_PREDICTIONS:
        path.unlink(missing_ok=True)  # of before the run was resumed
        report(f"{path.name} is not written, as it would unpack to more than {file_size(MAX_PREDICTIONS)}")
        return
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type] # its stub takes every keyword for allow_pickle


def read_predictions(path: Path, *names: str) -> list[np.ndarray]:
    """Return arrays by their names: ``logits``, (N, classes), and ``labels``, (N,) int64 or (N, classes) uint8.

    Raises:
        RunError: the file cannot be read, lacks an array, or unpacks to more than ``MAX_PREDICTIONS``.
    """
    with _opened(path) as stored:
        return [stored[name] for name in names]


def read_groups(path: Path) -> np.ndarray | None:
    """Return the number of each image's group, (N,) from 0; ``None`` if the images have no groups.

    Raises:
        RunError: the file cannot be read, or its groups are of another shape than its labels, or no whole numbers.
    """
    with _opened(path) as stored:
        if "groups" not in stored:
            return None
        groups, images = stored["groups"], len(stored["labels"])
        if groups.dtype.kind not in "iu" or groups.shape != (images,):
            raise ValueError(f"groups are {groups.dtype} {groups.shape}, of {images:,} images")
        return np.unique(groups, return_inverse=True)[1]


@contextmanager
def _opened(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    try:
        refuse_pipe(path)
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_PREDICTIONS:
                raise ValueError(f"it unpacks to more than {file_size(MAX_PREDICTIONS)}")
        with np.load(path, allow_pickle=False) as stored:
            yield stored
    except Exception as error:  # reading a damaged file can fail in any way
        raise RunError(f"cannot read {path}: {first_line(error)}") from None


def check_predictions(logits: np.ndarray, labels: np.ndarray, name: object) -> None:
    """Raise RunError unless there are logits of each label, and labels are classes that have one.

    Args:
        logits: as :func:`read_predictions` returns them.
        labels: likewise.
        name: of the run, for the message.
    """
    if labels.dtype.kind not in "iu" or logits.dtype.kind != "f":
        types = f"labels are {labels.dtype} and logits {logits.dtype}"
        raise RunError(f"the predictions of {name} are damaged: {types}")
    fit = logits.ndim == 2 and labels.ndim in (1, 2) and labels.shape == logits.shape[: labels.ndim] and labels.size
    if not fit or labels.min() < 0 or labels.max() >= (2 if labels.ndim == 2 else logits.shape[1]):
        shapes = f"labels {labels.shape} and logits {logits.shape}"
        raise RunError(f"the predictions of {name} are damaged: {shapes} do not match")


def predicted_classes(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the class of each image's largest logit, (N,) int64; of equal ones the first.

    Where images have several labels, the classes with a probability above 0.5, (N, classes) bool.
    """
    return np.asarray(logits > 0 if labels.ndim == 2 else logits.argmax(axis=1))


def is_correct(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return whether each image is classified correctly, with all of its labels; (N,) bool.

    Args:
        predicted: as :func:`predicted_classes` returns it.
        labels: (N,), or (N, classes) of 0 and 1.
    """
    same = predicted == labels
    return np.asarray(same.all(axis=1) if labels.ndim == 2 else same)


def confusion_counts(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Count images by true and predicted class, both (N,): (classes, classes); those of other classes are left out."""
    known = (labels < classes) & (predicted < classes)
    pairs = np.bincount(labels[known].astype(int) * classes + predicted[known], minlength=classes**2)
    return pairs.reshape(classes, classes)


def class_counts(labels: np.ndarray, predicted: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count the images that are taken for their class, those of a class, and those taken for it, (classes,) each.

    ``labels`` and ``predicted`` are (N,); where images have several labels, (N, classes) bool.
    """
    if labels.ndim == 2:
        return (labels & predicted).sum(axis=0), labels.sum(axis=0), predicted.sum(axis=0)
    correct, of_class, taken = (
        np.bincount(chosen, minlength=classes)[:classes] for chosen in (labels[labels == predicted], labels, predicted)
    )
    return correct, of_class, taken
