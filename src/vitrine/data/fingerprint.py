"""Fingerprint of a data set: enough to notice that it has changed, and to say how.

For each split: the number of images, in all and by class, and checksums of the labels and of

- image files: their names below the split's folder, and their sizes in bytes. No file is opened, so the cost is that of
  a listing; an image edited without a change of its size is not noticed. Images inside larger files have no names.
  Names are in Unicode's form NFC.
- images in memory: their pixels, before they are resized.

runs/data_changes.py compares fingerprints.
"""

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitrine.data.decode import ImageFile, ImageFiles
from vitrine.data.image_dataset import ImageDataset, Split
from vitrine.errors import DataError
from vitrine.runs.data_changes import SPLITS, Fingerprint
from vitrine.text import nfc


def fingerprint(dataset: ImageDataset) -> Fingerprint:
    """Compute the fingerprint of a data set whose images are not resized yet.

    Raises:
        DataError: an image file has disappeared.
    """
    splits = {name: getattr(dataset, name) for name in SPLITS}
    count = len(dataset.classes)
    return {name: _of_split(split, count) for name, split in splits.items() if split is not None}


def outline(dataset: ImageDataset) -> Fingerprint:
    """Compute the part of a fingerprint that needs neither pixels nor a look at the disk: labels and names."""
    count = len(dataset.classes)
    found = {}
    for name in SPLITS:
        split: Split | None = getattr(dataset, name)
        if split is not None:
            found[name] = _of_labels(split, count) | _of_names(_paths(dataset.files.get(name, ())))
    return found


def _of_split(split: Split, classes: int) -> dict[str, Any]:
    images = split.images
    common = _of_labels(split, classes)
    return common | (_of_pixels(images) if isinstance(images, Tensor) else _of_files(images))


def _of_labels(split: Split, classes: int) -> dict[str, Any]:
    labels = split.labels.cpu().numpy().astype(np.int64)
    return {
        "images": len(labels),
        "per_class": split.per_class(classes).tolist(),
        "labels": _digest(labels.tobytes()),
    }


def _of_pixels(images: Tensor) -> dict[str, Any]:
    return {"shape": list(images.shape[1:]), "pixels": _digest(images.contiguous().numpy().reshape(-1).data)}


def _paths(files: Sequence[ImageFile]) -> list[str]:
    paths = [os.fspath(path) for path in files if isinstance(path, Path)]
    if len({os.path.isabs(path) for path in paths}) > 1:  # noqa: PTH117 - pathlib is slow
        paths = [os.path.abspath(path) for path in paths]  # noqa: PTH100
    return paths


def _of_files(files: ImageFiles) -> dict[str, Any]:
    paths = _paths(files.paths)
    try:
        found = [os.stat(path).st_size for path in paths]  # noqa: PTH116 - pathlib is slow
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from None
    found += [image.size() for image in files.paths if not isinstance(image, Path)]
    sizes = np.array(found, np.int64)
    return {**_of_names(paths), "bytes": int(sizes.sum()), "sizes": _digest(sizes.tobytes())}


def _of_names(paths: Sequence[str]) -> dict[str, str]:
    if not paths:
        return {}
    start = len(os.path.commonpath([Path(min(paths)).parent, Path(max(paths)).parent]))
    names = nfc("\0".join(path[start:] for path in paths))
    return {"names": _digest(os.fsencode(names))}


def _digest(content: bytes | memoryview) -> str:
    return sha256(content).hexdigest()[:16]
