"""The lock file of a run folder: who holds the lock, as text, and the operating system's lock on the file."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from vitrine.runs.process import pid_namespace, process_exists

if sys.platform != "win32":
    import fcntl

NAME = ".lock"
SIZE_LIMIT = 4096  # bytes of a lock file that are read


@dataclass(frozen=True)
class Holder:
    """The content of a lock file: the process that holds the lock.

    Attributes:
        host: name of its machine.
        pid, process: its id and start time.
        kernel: identifies the running kernel.
        namespace: in which the process has its id.
        since: when it took the lock, in UTC.
        token: random, new each time the lock is taken.
        beat: signs of life so far.
    """

    host: str
    pid: int
    process: str
    kernel: str
    since: str
    token: str
    beat: int = 0
    namespace: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"

    @classmethod
    def parse(cls, content: bytes) -> "Holder | None":
        """Return the holder that a lock file names; ``None`` if it names none. Anyone may have written it."""
        try:
            values = json.loads(content)
            texts = {name: _printable(values[name]) for name in ("host", "process", "kernel", "since", "token")}
            namespace = _printable(values.get("namespace", ""))  # earlier versions wrote none
            return cls(pid=int(values["pid"]), beat=int(values["beat"]), namespace=namespace, **texts)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None


class LockState(Enum):
    """What is known of a lock."""

    FREE = auto()
    HELD = auto()
    DEAD = auto()  # held by a process that has ended
    UNKNOWN = auto()  # held by a process that cannot be looked up, as of another machine, or just being created


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int | None]:
    """Open a file; yield ``None`` if it does not exist. Opening it anew shows what another machine wrote (NFS)."""
    try:
        descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe in its place is not waited for
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def judge(descriptor: int, here: str, *, exclusive: bool) -> tuple[LockState, Holder | None]:
    """Judge the holder of an open lock file; where that is possible the file is then locked."""
    locked = flock(descriptor, exclusive=exclusive)
    holder = Holder.parse(os.read(descriptor, SIZE_LIMIT))
    if locked is False:
        return LockState.HELD, holder
    if holder is None or holder.kernel != here or (locked is None and holder.namespace != pid_namespace()):
        return LockState.UNKNOWN, holder
    alive = locked is None and process_exists(holder.pid, holder.process)
    return (LockState.HELD if alive else LockState.DEAD), holder


def flock(descriptor: int, *, exclusive: bool = True) -> bool | None:
    """Lock an open file; return whether that worked, or ``None`` if the file system has no locks."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def is_at(path: Path, descriptor: int) -> bool:
    """Whether ``path`` is still the open file: its holder may have removed it, or another process replaced it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def read(path: Path) -> Holder | None:
    """Read a lock file; ``None`` if there is none, or it names no holder."""
    try:
        with opened(path, os.O_RDONLY) as descriptor:
            return None if descriptor is None else Holder.parse(os.read(descriptor, SIZE_LIMIT))
    except OSError:
        return None


def write(descriptor: int, holder: Holder) -> None:
    """Write the content of a lock file that was just opened: it grows, and is never longer than a page."""
    os.write(descriptor, (json.dumps(asdict(holder)) + "\n").encode())
    os.fsync(descriptor)


def _printable(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError("not a text")
    return "".join(letter for letter in text if letter.isprintable())
