"""The locks in a sweep's folder: of sweep.json, of a search and of its study. Those of trials are in runs/lock.py."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from vitrine.errors import RunError
from vitrine.files import naming_failed_write


@contextmanager
def held(lock: FileLock) -> Iterator[None]:
    """Hold a lock, whose folder is made if need be.

    Raises:
        RunError: the lock's file cannot be written, as in the sweep of another user; ``DiskFull``: for lack of space.
    """
    path = Path(lock.lock_file)
    try:
        with naming_failed_write(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
    except RunError as error:
        sweep = path.parent.parent
        if not isinstance(error.__cause__, PermissionError) or _is_own(sweep):
            raise
        hint = "sweep.name=NAME or paths.output_dir=DIR starts a sweep of your own"
        raise RunError(f"{error}; {sweep} belongs to {_owner(sweep)}: {hint}") from None
    try:
        yield
    finally:
        lock.release()


def _is_own(folder: Path) -> bool:
    return not folder.exists() or folder.stat().st_uid == os.geteuid()


def _owner(folder: Path) -> str:
    try:
        return folder.owner()
    except KeyError:  # a number without a name
        return "another user"
