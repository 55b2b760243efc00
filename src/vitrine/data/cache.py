"""Cache of decoded images on disk, so that thousands of files are decoded once.

An entry is an uncompressed ``.npz`` with two arrays: ``key``, a hash of the source files (path, size, modification
time) and settings, and ``images``, the pixels. Its key and the CRC-32 checksums of the zip format are verified before
use; a damaged or outdated entry is rebuilt. Pixels are mapped into memory: processes on a machine, as the workers of a
sweep, share them. The folder can be deleted at any time.
"""

import hashlib
import json
import math
import os
import struct
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from vitrine.errors import DataError
from vitrine.files import remove_leftovers, replacing
from vitrine.text import report
from vitrine.untrusted import refuse_pipe

SILENT_WAIT, ATTEMPT = 5.0, 0.25  # seconds of waiting for a lock: until it is reported, and between looks at the time


def entry_key(sources: Sequence[Path], settings: Mapping[str, Any]) -> str:
    """Return the key of an entry. Call it before the sources are read: an entry must not hold what they were later.

    Args:
        sources: files that the array is computed from.
        settings: everything else that affects the array, as JSON values.

    Raises:
        DataError: a source has disappeared.
    """
    digest = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode())
    for path in sources:
        try:
            stat = path.stat()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        digest.update(os.fsencode(f"{path.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\n"))
    return digest.hexdigest()


def cached(
    folder: Path,
    *,
    label: str,
    key: str,
    make: Callable[[], np.ndarray | None],
    seconds: float = math.inf,
    stop: Callable[[], bool] = lambda: False,
) -> np.ndarray | None:
    """Return the cached array of a key; call ``make`` and store its result if there is none.

    Args:
        folder: folder of the cache; created if missing.
        label: readable prefix of the entry's file name.
        key: from :func:`entry_key`.
        make: computes the array; called by one process at a time. ``None`` is returned, and not stored.
        seconds: longest wait for another process that makes the array; ``None`` is returned after it.
        stop: asked repeatedly whether to end the wait.

    Raises:
        DataError: ``folder`` is not writable, or ``make`` met an error of the operating system.
    """
    path = folder / f"{label}-{key[:16]}.npz"
    if (images := _read(path, key)) is not None:  # takes no lock, as the folder may be another user's
        return images
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock"), seconds, stop) as held:
            if not held:
                return None
            images = _read(path, key)
            if images is None:
                remove_leftovers(folder, path.name)
                images = _made(make)
                if images is None:
                    return None
                with replacing(path) as temporary, temporary.open("wb") as file:
                    np.savez(file, key=np.array(key), images=images)
                images = _map(path)
            return images
    except OSError as error:
        raise DataError(f"cannot cache decoded images in {folder}: {error.strerror}; set paths.cache_dir=DIR") from None


@contextmanager
def _locked(path: Path, seconds: float, stop: Callable[[], bool]) -> Iterator[bool]:
    """Hold the lock of an entry; yields whether it was free before ``seconds`` were over or ``stop`` said so.

    A line says why nothing happens while another process makes the entry, which can take minutes.
    """
    lock, begin, reported = FileLock(path), time.monotonic(), False
    while not lock.is_locked:
        try:
            lock.acquire(timeout=max(0.0, min(ATTEMPT, seconds)))
        except Timeout:
            waited = time.monotonic() - begin
            if waited >= seconds or stop():
                yield False
                return
            if waited >= SILENT_WAIT and not reported:
                report(f"waiting for another process, which decodes the same images ({path})")
                reported = True
    try:
        yield True
    finally:
        lock.release()


def _made(make: Callable[[], np.ndarray | None]) -> np.ndarray | None:
    try:
        return make()
    except OSError as error:  # not one of the cache
        raise DataError(f"cannot decode the images: {error.strerror or error}") from error


def _read(path: Path, key: str) -> np.ndarray | None:
    try:
        refuse_pipe(path)
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:  # np.load verifies no checksum when a header declares too few bytes
                return None
        with np.load(path, allow_pickle=False) as entry:
            return _map(path) if str(entry["key"]) == key else None
    except Exception:  # the readers raise many types of exceptions on damaged bytes
        return None


def _map(path: Path) -> np.ndarray:
    """Map the pixels of an entry: read when they are used, shared by processes, and copied where they are changed."""
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("images.npy")
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)  # the lengths of a name and of an extra field, which follow
        file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
        assert np.lib.format.read_magic(file) == (1, 0)
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
        assert not fortran_order
        return np.memmap(file, dtype, "c", file.tell(), shape)
