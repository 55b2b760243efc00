"""Fingerprint of a data set: enough to notice that it has changed, and to say how.

For each split: the number of images, in all and by class, and checksums of the labels and of

- image files: their names below the split's folder, and their sizes in bytes. No file is opened, so the cost is that of
  a listing; an image edited without a change of its size is not noticed. Images inside larger files have no names.
  Names are in Unicode's form NFC.
- images in memory: their pixels, before they are resized.

runs/data_changes.py compares fingerprints.
"""

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitrine.data.decode import ImageFiles
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


def _of_split(split: Split, classes: int) -> dict[str, Any]:
    labels = split.labels.cpu().numpy().astype(np.int64)
    common = {
        "images": len(labels),
        "per_class": split.per_class(classes).tolist(),
        "labels": _digest(labels.tobytes()),
    }
    images = split.images
    return common | (_of_pixels(images) if isinstance(images, Tensor) else _of_files(images))


def _of_pixels(images: Tensor) -> dict[str, Any]:
    return {"shape": list(images.shape[1:]), "pixels": _digest(images.contiguous().numpy().reshape(-1).data)}


def _of_files(files: ImageFiles) -> dict[str, Any]:
    paths = [os.fspath(path) for path in files.paths if isinstance(path, Path)]
    if len({os.path.isabs(path) for path in paths}) > 1:  # noqa: PTH117 - pathlib is slow
        paths = [os.path.abspath(path) for path in paths]  # noqa: PTH100
    try:
        found = [os.stat(path).st_size for path in paths]  # noqa: PTH116 - pathlib is slow
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from None
    found += [image.size() for image in files.paths if not isinstance(image, Path)]
    sizes = np.array(found, np.int64)
    described = {"bytes": int(sizes.sum()), "sizes": _digest(sizes.tobytes())}
    if not paths:
        return described
    start = len(os.path.commonpath([Path(min(paths)).parent, Path(max(paths)).parent]))
    names = nfc("\0".join(path[start:] for path in paths))
    return {"names": _digest(os.fsencode(names)), **described}


def _digest(content: bytes | memoryview) -> str:
    return sha256(content).hexdigest()[:16]
