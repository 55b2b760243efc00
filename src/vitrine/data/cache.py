"""Decoded images on disk, so that thousands of pictures are opened once. Every entry is checked before it is used.

An entry is an uncompressed ``.npz``: ``key`` says what it was made from (each file's name, size and time of change,
and the settings), ``images`` holds the pixels. Before it is used, the CRC-32 sums that the format has of every array
are checked.
An entry that is damaged or of another key is made anew; the folder can be deleted at any time.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from vitrine.errors import DataError
from vitrine.files import replacing


def cached(
    folder: Path,
    *,
    label: str,
    sources: Sequence[Path],
    settings: Mapping[str, Any],
    make: Callable[[], np.ndarray],
) -> np.ndarray:
    """What ``make()`` gives, from the cache where an equal call has left it there.

    Args:
        folder: where entries lie; made where it is missing.
        label: readable part of the entry's name.
        sources: the files that the result is made from.
        settings: what else decides the result.
        make: makes it; runs in one process at a time.

    Raises:
        DataError: ``folder`` cannot be written to.
    """
    key = _key(sources, settings)
    path = folder / f"{label}-{key[:16]}.npz"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            images = _read(path, key)
            if images is None:
                images = make()
                with replacing(path) as temporary, temporary.open("wb") as file:
                    np.savez(file, key=np.array(key), images=images)
            return images
    except OSError as error:
        raise DataError(f"cannot use {folder} for decoded images: {error.strerror}; set paths.cache_dir=DIR") from None


def _key(sources: Sequence[Path], settings: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode())
    for path in sources:
        facts = path.stat()
        digest.update(f"{path.absolute()}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _read(path: Path, key: str) -> np.ndarray | None:
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:  # numpy itself stops reading, unchecked, where a header says too little
                return None
        with np.load(path, allow_pickle=False) as entry:
            return entry["images"] if str(entry["key"]) == key else None
    except Exception:  # the readers raise whatever the damaged bytes lead to
        return None
