"""This machine and its processes: which kernel runs here, and whether a process still exists."""

import os
import socket
from functools import cache
from pathlib import Path
from typing import Any


@cache
def kernel() -> str:
    """Return what identifies the running kernel: equal in all containers of a machine, and new after each boot.

    Linux gives it (random(4), boot_id); elsewhere it is the host's name.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


@cache
def pid_namespace() -> str:
    """Return what identifies the processes whose ids this one can look up: containers of a machine have their own.

    Empty where the system does not give it (pid_namespaces(7)).
    """
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def process_start() -> str:
    """Return the start time of this process, which a later process of the same id does not have.

    Empty where the system does not give it.
    """
    stat = _stat(os.getpid())
    return stat[19] if stat else ""


def process_exists(pid: Any, start: Any) -> bool:
    """Return whether a process of this machine still exists.

    Args:
        pid: its id, as run.json has it; a value that is not a process id counts as one of a process that has ended.
        start: its :func:`process_start`; empty or ``None`` if unknown.
    """
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, TypeError, ValueError, OverflowError):
        return False
    except PermissionError:
        pass  # the process exists, and belongs to another user
    stat = _stat(int(pid))
    if stat is None:
        return True
    ended = stat[0] in "ZX"  # a zombie
    return not ended and start in ("", None, stat[19])


def _stat(pid: int) -> list[str] | None:
    """Fields of ``/proc/PID/stat`` from the state on (proc(5)); ``None`` if there is no such file."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
