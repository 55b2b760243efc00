"""Running commands to measure them: wall time, peak memory, and what the run folder says."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Measured:
    """What a command took.

    Attributes:
        seconds: from its start to its end, Python's start-up included.
        memory: most that its process had resident, in bytes.
        code: its exit code.
    """

    seconds: float
    memory: int
    code: int


def measure(*words: str) -> Measured:
    """Run ``python train.py ...`` or another script from the project's folder; its output is dropped."""
    start = time.perf_counter()
    running = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(running.pid, 0)
    return Measured(time.perf_counter() - start, usage.ru_maxrss * 1024, os.waitstatus_to_exitcode(status))


def finished_runs(folder: Path) -> list[dict[str, Any]]:
    """run.json and metrics.json of each finished run under ``folder``, in the order they started."""
    found = []
    for path in sorted(folder.glob("**/run.json")):
        facts = json.loads(path.read_text())
        if facts["status"] == "finished":
            found.append(
                {**facts, "folder": str(path.parent), **json.loads((path.parent / "metrics.json").read_text())}
            )
    return found


def mean_and_interval(values: list[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval (Student's t)."""
    import numpy as np
    from scipy import stats

    mean, error = float(np.mean(values)), float(stats.sem(values))
    return mean, float(stats.t.ppf(0.975, len(values) - 1)) * error


def replace_between(path: Path, name: str, text: str) -> None:
    """Put ``text`` between the two marks ``<!-- NAME: ... -->`` and ``<!-- /NAME -->`` of a Markdown file."""
    lines = path.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"<!-- {name}"))
    last = lines.index(f"<!-- /{name} -->")
    path.write_text("\n".join([*lines[: first + 1], *text.splitlines(), *lines[last:]]) + "\n")
