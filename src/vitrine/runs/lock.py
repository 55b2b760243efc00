"""The lock of a run folder: one process at a time writes to the folder, on whichever machine.

::

    outputs/runs/NAME/.lock     {"host": "node7", "pid": 4711, "since": "2026-01-31T12:00:00+00:00", "beat": 12, ...}

The file exists while the run is written to. On one machine the operating system's lock on it (flock) decides, which
ends with its process, however that was killed. Machines that share a folder may not see each other's locks, so the
holder also counts up ``beat`` every 15 seconds. A process on another machine watches it: the holder is dead if nothing
changes for 120 seconds of the watcher's own clock. Clocks of two machines are never compared.

A holder that was suspended that long finds another process's token in the file. It is interrupted, and writes nothing
more (:meth:`Claim.check`).
"""

import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from vitrine.errors import RunError
from vitrine.files import disk_full
from vitrine.runs.lock_file import NAME, SIZE_LIMIT, Holder, LockState, flock, is_at, judge, opened, read, write
from vitrine.runs.process import kernel, pid_namespace, process_start
from vitrine.signals import STOP_SIGNALS

BEAT_SECONDS = 15.0
LEASE_SECONDS = 120.0
CONTENTION_SECONDS = 0.3  # in which another process that only looks at the lock lets go of it


class RunLocked(RunError):
    """Another process writes to the run, or may do so.

    Args:
        folder: the run folder.
        process: that process.
        elsewhere: whether it is on another machine, which may be gone.
    """

    def __init__(self, folder: Path, process: object, *, elsewhere: bool) -> None:
        super().__init__(f"{folder} is still running, as {process or 'another process'}")
        self.elsewhere = elsewhere


@dataclass(frozen=True)
class Timing:
    """Durations of a lock, in seconds.

    Attributes:
        beat: between two signs of life.
        lease: without one, after which the holder on another machine is dead.
        settle: until a lock taken over from another machine is read again, as several machines may do so at once.
    """

    beat: float = BEAT_SECONDS
    lease: float = LEASE_SECONDS
    settle: float = 2.0


@dataclass(frozen=True)
class Claim:
    """A held lock, seen by those who write under it. Can be sent to other ranks of the run."""

    folder: Path
    token: str

    def taken_by(self) -> Holder | None:
        """Return the process that has taken the lock over; ``None`` if none has."""
        holder = read(self.folder / NAME)
        return None if holder is None or holder.token == self.token else holder

    def check(self) -> None:
        """Raise RunError if another process has taken the lock over."""
        if (holder := self.taken_by()) is not None:
            problem = "this process was suspended or cut off, and writes nothing more"
            raise RunError(f"{self.folder} was taken over by {holder}: {problem}")


class Watch:
    """Judges the locks of other machines by what changes from look to look.

    Args:
        lease: seconds without a change after which a holder is dead.
    """

    def __init__(self, lease: float = LEASE_SECONDS) -> None:
        self.lease = lease
        self._seen: dict[Path, tuple[Holder | None, float]] = {}

    def has_expired(self, folder: Path, holder: Holder | None) -> bool:
        """Note what the lock file of ``folder`` says now; return whether it has said so for the whole lease."""
        before, since = self._seen.get(folder, (None, time.monotonic()))
        if folder not in self._seen or holder != before:
            since = time.monotonic()
        self._seen[folder] = (holder, since)
        return time.monotonic() - since >= self.lease


class RunLock:
    """Exclusive lock of a run folder. Between threads, too; it is not reentrant.

    Args:
        folder: the run folder; must exist.
        timing: durations.

    Attributes:
        taken_from: the dead holder that it was taken over from, if any.
    """

    def __init__(self, folder: Path, timing: Timing | None = None) -> None:
        self.folder = folder
        self.timing = Timing() if timing is None else timing
        self.taken_from: Holder | None = None
        self._path = folder / NAME
        self._kernel = kernel()
        self._descriptor = -1
        self._released = threading.Event()
        self._thread: threading.Thread | None = None
        self._holder = Holder(
            socket.gethostname(),
            os.getpid(),
            process_start(),
            self._kernel,
            datetime.now(UTC).isoformat(timespec="seconds"),
            secrets.token_hex(8),
            namespace=pid_namespace(),
        )

    @property
    def claim(self) -> Claim:
        """The lock as those see it who write under it."""
        return Claim(self.folder, self._holder.token)

    def acquire(self, *, force: bool = False, notify: Callable[[str], None] | None = None) -> None:
        """Take the lock, over from a dead process if need be.

        Args:
            force: also take it over from a process of another machine of which nothing is known.
            notify: called with a line before watching such a process for the lease; ``None`` does not watch.

        Raises:
            RunLocked: another process holds it, or may hold it.
            RunError: the folder cannot be written to; ``DiskFull``: for lack of space.
        """
        try:
            while not self._create() and not self._take_over(force, notify):
                pass
        except OSError as error:
            problem = f"cannot lock {self.folder}: {error.strerror or error}"
            raise disk_full(error, self.folder) or RunError(problem) from None
        self._thread = threading.Thread(target=self._keep_alive, args=(_in_main_thread(),), daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Give the lock back, and remove the folder if nothing else is in it."""
        if os.getpid() != self._holder.pid:
            return  # in a forked process
        self._released.set()
        if self._thread is not None:
            self._thread.join(timeout=1)  # a network file system may hang
        with suppress(OSError):
            holder = read(self._path)
            if holder is not None and holder.token == self._holder.token:
                self._path.unlink()
        self._close()
        with suppress(OSError):
            self.folder.rmdir()

    def _create(self) -> bool:
        """Create the lock file, which one process can, on any file system; return whether it was this one."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return False
        try:
            self._fill(descriptor)
        except OSError:
            self._path.unlink()
            raise
        return True

    def _fill(self, descriptor: int) -> None:
        """Lock a new file and write the holder to it."""
        begin = time.monotonic()
        while flock(descriptor) is False and time.monotonic() - begin < CONTENTION_SECONDS:
            time.sleep(0.005)  # another process has opened it and finds it empty
        try:
            write(descriptor, self._holder)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _descriptors.add(descriptor)

    def _take_over(self, force: bool, notify: Callable[[str], None] | None) -> bool:
        """Take the lock over from a process that is dead; return ``False`` if it is free by now.

        Raises:
            RunLocked: it is not known to be dead.
        """
        watch, begin = Watch(self.timing.lease), time.monotonic()
        watched: list[Holder | None] = []  # whose sign of life is awaited, once that is reported
        while True:
            with opened(self._path, os.O_RDWR) as descriptor:
                if descriptor is None:
                    return False
                state, holder = judge(descriptor, self._kernel, exclusive=True)
                foreign = state is LockState.UNKNOWN or holder is None or holder.kernel != self._kernel
                is_dead = state is LockState.DEAD or (foreign and (force or watch.has_expired(self.folder, holder)))
                if is_dead and is_at(self._path, descriptor):
                    self._replace(settle=self.timing.settle if foreign else 0.0)
                    self.taken_from = holder
                    return True
            if is_dead:  # the file was replaced meanwhile
                continue
            if state is LockState.HELD and time.monotonic() - begin < CONTENTION_SECONDS:
                time.sleep(0.02)
                continue
            if state is LockState.HELD or notify is None or watched not in ([], [holder]):
                raise RunLocked(self.folder, holder, elsewhere=foreign)
            if not watched:
                watched.append(holder)
                watching = f"watching it for a sign of life, up to {self.timing.lease:g} s (force=true does not wait)"
                notify(f"{self.folder} was left running, as {holder or 'another process'}: {watching}")
            time.sleep(min(1.0, self.timing.lease / 10))

    def _replace(self, settle: float) -> None:
        """Replace the lock file of a dead holder. Of several machines that do so at once, the last one has the lock."""
        temporary = self._path.with_name(f"{NAME}.{self._holder.token}.tmp")
        try:
            self._fill(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
            temporary.replace(self._path)
        finally:
            temporary.unlink(missing_ok=True)
        time.sleep(settle)
        if (holder := self.claim.taken_by()) is not None:
            self._close()
            raise RunLocked(self.folder, holder, elsewhere=True)

    def _keep_alive(self, in_main_thread: bool) -> None:
        """Count up the beat until the lock is released or lost: then interrupt the thread that writes to the run."""
        while not self._released.wait(self.timing.beat):
            # It may fail on a full disk, or while the network is down.
            with suppress(OSError), opened(self._path, os.O_RDWR) as descriptor:
                if descriptor is None and not self._released.is_set():  # someone has deleted the lock file
                    self._close()
                    self._create()
                elif descriptor is not None and not self._renew(descriptor):
                    # A program in the background ignores SIGINT; where nothing handles a signal, it ends the process.
                    handled = [number for number in STOP_SIGNALS if callable(signal.getsignal(number))]
                    if in_main_thread and handled and sys.platform != "win32":
                        signal.pthread_kill(threading.main_thread().ident or 0, handled[0])
                    return

    def _renew(self, descriptor: int) -> bool:
        """Count up the beat in the open lock file, unless it is another process's: return whether it is not.

        The file that was read is written to, even if this process is suspended in between and loses the lock.
        """
        holder = Holder.parse(os.read(descriptor, SIZE_LIMIT))
        if holder is None or holder.token != self._holder.token:
            return holder is None
        self._holder = replace(self._holder, beat=self._holder.beat + 1)
        os.lseek(descriptor, 0, os.SEEK_SET)
        write(descriptor, self._holder)
        return True

    def _close(self) -> None:
        if self._descriptor in _descriptors:
            _descriptors.discard(self._descriptor)
            os.close(self._descriptor)


def lock_state(folder: Path) -> tuple[LockState, Holder | None]:
    """Return what is known of the lock of a run folder, which need not exist, without taking it."""
    try:
        with opened(folder / NAME, os.O_RDONLY) as descriptor:
            if descriptor is None:
                return LockState.FREE, None
            return judge(descriptor, kernel(), exclusive=False)
    except OSError:
        return LockState.UNKNOWN, None


_descriptors: set[int] = set()  # of the locks that this process holds


def _forget_locks() -> None:
    """Close the files of a parent's locks, in a forked process: they would outlive the parent."""
    for descriptor in _descriptors:
        with suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
