"""Where a run's numbers come from: command, code, versions and machine."""

import os
import platform
import shlex
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vitrine.redact import hide

PACKAGES = ("vitrine", "torch", "torchvision", "lightning", "hydra-core", "omegaconf", "numpy", "scikit-learn", "wandb")


COMMAND = "VITRINE_COMMAND"  # of the environment: what was typed, in processes that a sweep has made


def command() -> str:
    """What was typed to start this process, or the sweep that made it, to be typed again; without any secret in it."""
    # Quoting would change a secret that has a quote: it is hidden before.
    return os.environ.get(COMMAND) or shlex.join(["python", *map(hide, sys.orig_argv[1:])])


def command_began() -> float:
    """When this process began, as ``time.time()`` gives it; now, where the system doesn't say, as only Linux does."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError):
        return time.time()


def versions() -> dict[str, str]:
    """Python's version and that of each package that decides results; a package that is not there is left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, memory in bytes, and operating system."""
    return {
        "processor": _processor(),
        "cores": cores(),
        "memory": _memory(),
        "system": platform.platform(),
    }


def code() -> tuple[dict[str, Any], str]:
    """The commit that vitrine runs from, and the difference of the working tree to it (empty where there is none).

    Files that git does not track are named, not shown. Outside a git checkout all is empty.
    """
    source = Path(__file__).parents[3]
    if not (source / ".git").exists():
        return {}, ""
    commit = _git(source, "rev-parse", "HEAD")
    places = ("--", "src", "conf", "train.py", "eval.py")
    difference = _git(source, "diff", "--no-color", "--no-ext-diff", "HEAD", *places)
    new = _git(source, "ls-files", "--others", "--exclude-standard", *places)
    if commit is None or difference is None or new is None:
        return {}, ""
    return {"commit": commit.strip(), "changed": bool(difference or new), "untracked": new.splitlines()}, hide(
        difference
    )


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # a file in another encoding is no reason to stop
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
