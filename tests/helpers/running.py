"""Running the project's commands as users do, and image folders to run them on."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from helpers import forking
from helpers.forking import Forked

ROOT = Path(__file__).parents[2]

WITH_HELPERS = {"PYTHONPATH": str(ROOT / "tests")}  # the environment of a script that imports them

TIMEOUT = 600.0  # seconds: for what hangs, not for what is slow

# Overrides of the smallest training with every step: two epochs of a narrow model on the bundled digits.
SMALL = ["model=vit_nano", "depth=1", "trainer.max_epochs=2", "data.batch_size=256"]


def python(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run python with the given arguments in ``cwd``; return its exit code and output.

    For what the start of a process is part of; otherwise :func:`run_script` is faster.
    """
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=_environment(env),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=TIMEOUT,
    )


def run_script(
    script: str, *arguments: str, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script in ``cwd``, in a process forked from one that has imported PyTorch and Lightning.

    Its path is relative to the checkout. Variables that libraries read while imported have no effect in ``env``.
    """
    return forking.run(ROOT / script, *arguments, cwd=cwd, env=_environment(env), timeout=TIMEOUT)


def start_script(script: str, *arguments: str, cwd: Path, env: dict[str, str] | None = None) -> Forked:
    """Start a script as :func:`run_script` does, in a session of its own, and return while it runs."""
    return forking.start(ROOT / script, *arguments, cwd=cwd, env=_environment(env))


def _environment(changes: dict[str, str] | None) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "100", **(changes or {})}


def own_file_systems():
    """Whether this user may mount a file system that only his own processes see."""
    mounting = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(mounting, capture_output=True).returncode == 0


def descendants(pid: int | str) -> list[str]:
    """Return the ids of every process that a process has started, and of those that they have."""
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
    return [*children, *(other for child in children for other in descendants(child))]


def wait_until_gone(processes: Sequence[str], seconds: float = 60) -> None:
    """Fail if one of these processes still exists after so long."""
    deadline = time.monotonic() + seconds
    while left := [pid for pid in processes if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def only_run(folder: Path) -> Path:
    """Return the only run folder under ``folder``."""
    (record,) = folder.glob("**/run.json")
    return record.parent


def write_image_folder(
    root: Path, *splits: str, classes: tuple[str, ...] = ("a", "b"), size: tuple[int, int] = (8, 8)
) -> None:
    """Write 20 noisy images per class, brighter from class to class, to ``root/SPLIT/CLASS``."""
    generator = np.random.default_rng(0)
    for split in splits or ("train",):
        for label, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(20):
                pixels = generator.integers(0, 128, (size[1], size[0], 3)) + 127 * label
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.png")
