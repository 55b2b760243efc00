"""The locks in a sweep's folder: of sweep.json, of a search and of its study. Those of trials are in runs/lock.py."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from vitrine.files import naming_failed_write


@contextmanager
def held(lock: FileLock) -> Iterator[None]:
    """Hold a lock, whose folder is made if need be.

    Raises:
        RunError: the lock's file cannot be written; ``DiskFull``: for lack of space.
    """
    path = Path(lock.lock_file)
    with naming_failed_write(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
