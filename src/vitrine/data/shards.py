"""A data set as a few files of a chosen size, for machines that reach no data server: written here, and read back.

::

    ROOT/cifar10-packed/
        index.json       classes, and for each split its parts in order, each with its SHA-256 sum
        train-00.npz     images (N, C, H, W) uint8 and labels (N,) int64, uncompressed
        train-01.npz
        test-00.npz

The index is written last: a folder without one was not packed to its end.
"""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.errors import DataError
from vitrine.files import replacing, write_text

OVERHEAD = 1024  # bytes, at most, that the format adds to a part's images and labels

Arrays = tuple[np.ndarray, np.ndarray]


def folder_of(root: str | Path, name: str) -> Path:
    """Where the packed data set ``name`` lies under ``root``."""
    return Path(root) / f"{name}-packed"


def pack(folder: Path, name: str, classes: Sequence[str], splits: Mapping[str, Arrays], part_size: int) -> list[Path]:
    """Write the images and labels of each split in parts of at most ``part_size`` bytes; gives all files.

    Raises:
        DataError: ``folder`` holds a packed data set already, or cannot be written to, or a part cannot hold an image.
    """
    index = folder / "index.json"
    if index.exists():
        raise DataError(f"{folder} holds a packed data set already; delete it to pack it anew")
    parts: dict[str, list[dict[str, Any]]] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for split, (images, labels) in splits.items():
            each = images[0].nbytes + labels[0].nbytes
            count = (part_size - OVERHEAD) // each
            if count < 1:
                raise DataError(f"a part of {part_size:,} bytes cannot hold an image, which takes {each + OVERHEAD:,}")
            parts[split] = []
            for start in range(0, len(images), count):
                file = f"{split}-{len(parts[split]):02}.npz"
                stop = start + count
                sha256 = _write(folder / file, images[start:stop], labels[start:stop])
                parts[split].append({"file": file, "sha256": sha256})
        write_text(index, json.dumps({"data": name, "classes": list(classes), "splits": parts}, indent=1) + "\n")
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error.strerror}") from None
    return [*(folder / part["file"] for split in parts.values() for part in split), index]


def read_packed(folder: Path, name: str) -> tuple[list[str], dict[str, Arrays]]:
    """Classes, and images and labels of each split, as they were given to :func:`pack`.

    Raises:
        DataError: something is missing, damaged or of another packing; the message names all of it.
    """
    classes, parts = _read_index(folder, name)
    read = {split: [_read(folder / file, known) for file, known in files] for split, files in parts.items()}
    if wrong := [problem for split in read.values() for problem in split if isinstance(problem, str)]:
        raise DataError(f"{folder} is not as it was packed: {'; '.join(wrong)}. Copy it again, or pack it anew")
    whole = {split: [part for part in some if not isinstance(part, str)] for split, some in read.items()}
    splits = {}
    for split, some in whole.items():
        images, labels = (np.concatenate(arrays) for arrays in zip(*some, strict=True))
        splits[split] = images, labels
    return classes, splits


def _write(path: Path, images: np.ndarray, labels: np.ndarray) -> str:
    """Write a part; gives its sum."""
    with replacing(path) as temporary:
        with temporary.open("wb") as file:
            np.savez(file, images=images, labels=labels)
        return hashlib.sha256(temporary.read_bytes()).hexdigest()


def _read(path: Path, known: str) -> Arrays | str:
    """Images and labels of a part; or what is wrong with it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror})"
    if hashlib.sha256(content).hexdigest() != known:
        return f"{path.name} is damaged or of another packing (index.json has another SHA-256 sum)"
    with np.load(io.BytesIO(content), allow_pickle=False) as part:
        return part["images"], part["labels"]


def _read_index(folder: Path, name: str) -> tuple[list[str], dict[str, list[tuple[str, str]]]]:
    """Classes, and name and sum of each part."""
    path = folder / "index.json"
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        parts = {split: [(one["file"], one["sha256"]) for one in some] for split, some in index["splits"].items()}
        given, classes = index["data"], [str(word) for word in index["classes"]]
    except FileNotFoundError:
        raise DataError(f"{folder} has no index.json: it was not packed, or not copied, to its end") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise DataError(f"{path} is damaged; copy it again, or pack the data anew") from None
    if given != name:
        raise DataError(f"{path} is of data={given}, not of data={name}")
    return classes, parts
