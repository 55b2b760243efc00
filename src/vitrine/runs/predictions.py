"""Write and read predictions.npz, the logits and labels of a run's test images."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from vitrine.errors import RunError, first_line
from vitrine.files import replacing
from vitrine.text import file_size

MAX_PREDICTIONS = 4e9  # bytes; those for the 50,000 test images of ImageNet are 0.2 GB


def write_predictions(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name: ``logits``, (N, classes), and ``labels``; of further targets ``logits/NAME`` as well."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type] # its stub takes every keyword for allow_pickle


def read_predictions(path: Path, *names: str) -> list[np.ndarray]:
    """Return arrays by their names: ``logits``, (N, classes), and ``labels``, (N,) int64 or (N, classes) uint8.

    Raises:
        RunError: the file cannot be read, lacks an array, or unpacks to more than ``MAX_PREDICTIONS``.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_PREDICTIONS:
                raise ValueError(f"it unpacks to more than {file_size(MAX_PREDICTIONS)}")
        with np.load(path, allow_pickle=False) as stored:
            return [stored[name] for name in names]
    except Exception as error:  # reading a damaged file can fail in any way
        raise RunError(f"cannot read {path}: {first_line(error)}") from None
