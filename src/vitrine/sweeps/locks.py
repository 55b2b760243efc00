"""The locks in a sweep's folder: of sweep.json, of a search and of its study. Those of trials are in runs/lock.py.

A lock file names its holder as filelock does where a file system has no locks, and its file itself is the lock: process
id and host, in two lines.
"""

import os
import socket
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from vitrine.errors import RunError
from vitrine.files import naming_failed_write
from vitrine.text import printable, report

SILENT_WAIT = 5.0  # seconds


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
            _acquire(lock, path)
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


def _acquire(lock: BaseFileLock, path: Path) -> None:
    """Acquire a lock; after a while a line says who holds it.

    Where the file system has no locks, a process of another machine that is killed leaves the file. Only the user
    knows that it is gone, so the line says to delete the file then.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "flock not supported")
            lock.acquire(timeout=SILENT_WAIT)
    except Timeout:
        hint = "; delete this file if that process is gone" if isinstance(lock, SoftFileLock) else ""
        report(f"waiting for {_holder(path)}, which holds {path}{hint}")
        lock.acquire()
    if not isinstance(lock, SoftFileLock):
        with suppress(OSError):  # as on a full disk
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:  # no link, which others may have made
                path.write_text(f"{os.getpid()}\n{socket.gethostname()}\n")


def _holder(path: Path) -> str:
    try:
        with path.open("rb") as file:
            process, host = file.read(1024).decode().split("\n")[:2]
        return f"process {int(process)} on {printable(host)}"
    except (OSError, ValueError):
        return "another process"


def _is_own(folder: Path) -> bool:
    return not folder.exists() or folder.stat().st_uid == os.geteuid()


def _owner(folder: Path) -> str:
    try:
        return folder.owner()
    except KeyError:  # a number without a name
        return "another user"
