"""Provenance of a run: command, code, package versions and machine."""

import math
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vitrine.redact import redact
from vitrine.runs.cgroups import GROUPS, PROC, core_limit
from vitrine.runs.process import process_start

PACKAGES = ("vitrine", "torch", "torchvision", "lightning", "hydra-core", "omegaconf", "numpy", "scikit-learn", "wandb")

CHECKOUT = Path(__file__).parents[3]  # the top folder, unless vitrine was installed from a wheel
COMMAND = "VITRINE_COMMAND"  # environment variable: the user's command, in processes that a sweep started


def command() -> str:
    """Return the shell command that started this process, or the sweep it belongs to, with secrets redacted."""
    # Redact before quoting, which would change a secret that contains a quote.
    return os.environ.get(COMMAND) or shlex.join(_typed([redact(argument) for argument in sys.orig_argv]))


def same_command() -> str:
    """``the same command``, as a message tells a user what to rerun: ``rerun=true`` would start over."""
    starts_over = re.compile(r"\+{0,2}rerun=(true|yes|on|y|1)", re.IGNORECASE).fullmatch
    return f"the same command{' without rerun=true' if any(map(starts_over, shlex.split(command()))) else ''}"


def program(name: str) -> str:
    """Return how to start the command ``name``: ``vitrine NAME``, or its script, whichever the user runs."""
    started = shlex.split(command())
    for start in (["vitrine"], ["python", "-m", "vitrine"]):
        if started[: len(start)] == start:
            return shlex.join([*start, name])
    script = f"{name}.py" if name in ("train", "eval", "predict") else f"scripts/{name.replace('-', '_')}.py"
    return f"python {script}" if (CHECKOUT / script).is_file() else f"vitrine {name}"


def is_command() -> bool:
    """Whether the user started a command of vitrine, and not a program or notebook of their own that imports it."""
    first, *others = shlex.split(command())
    script = next((word for word in others if word.endswith(".py")), "")
    is_ours = first == "vitrine" or others[:2] == ["-m", "vitrine"] or Path(script).resolve() == CHECKOUT / "train.py"
    return is_ours or COMMAND in os.environ


def _typed(arguments: list[str]) -> list[str]:
    """Return a command line without the paths of Python and of the installed ``vitrine``."""
    installed = len(arguments) > 1 and Path(arguments[1]).name == "vitrine"
    return ["vitrine", *arguments[2:]] if installed else ["python", *arguments[1:]]


def process_started_at() -> float:
    """Return when this process started, on the clock of ``time.time()``; outside Linux, the current time."""
    try:
        ticks = int(process_start())  # of the system's clock, since it was booted
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError, ValueError):
        return time.time()


def user() -> str | None:
    """Return the name of the user whose process this is, whatever LOGNAME says; its number if it has no name."""
    try:
        import pwd
    except ImportError:  # Windows
        return os.environ.get("USERNAME")
    with suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return str(os.getuid())


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that affect results."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def available_cores(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Return the number of processor cores this process may use, at least 1, within the limits of its control groups.

    Args:
        proc: mount point of procfs.
        groups: mount point of the cgroup file system.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, core_limit(proc, groups))))


def machine() -> dict[str, Any]:
    """Return the processor's name, available cores, memory in bytes, and operating system."""
    return {
        "processor": _processor(),
        "cores": available_cores(),
        "memory": _memory(),
        "system": platform.platform(),
    }


def code_state() -> tuple[dict[str, Any], str]:
    """Return the commit that vitrine runs from, and the diff of the working tree against it (empty if clean).

    Untracked files are listed by name only. Outside a git checkout, both are empty.
    """
    if not (CHECKOUT / ".git").exists():
        return {}, ""
    commit = _git(CHECKOUT, "rev-parse", "HEAD")
    places = ("--", "src", "conf", "train.py", "eval.py", "predict.py")
    difference = _git(CHECKOUT, "diff", "--no-color", "--no-ext-diff", "HEAD", *places)
    new = _git(CHECKOUT, "ls-files", "--others", "--exclude-standard", *places)
    if commit is None or difference is None or new is None:
        return {}, ""
    facts = {"commit": commit.strip(), "changed": bool(difference or new), "untracked": new.splitlines()}
    return facts, redact(difference)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # a file may be in another encoding
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
