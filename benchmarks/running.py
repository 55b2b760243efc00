"""Running the project's commands over seeds to measure them, and reading the run folders they leave."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Took:
    """What a command took: ``seconds`` from start to end, ``memory`` in bytes at its peak, and its exit code."""

    seconds: float
    memory: int
    code: int


def take(*words: str) -> Took:
    """Run a script of the project as a user would; its output is dropped."""
    start = time.perf_counter()
    quiet = subprocess.DEVNULL
    running = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=quiet, stderr=quiet)
    _, status, usage = os.wait4(running.pid, 0)
    return Took(time.perf_counter() - start, usage.ru_maxrss * 1024, os.waitstatus_to_exitcode(status))


def train_seeds(folder: Path, words: Sequence[str]) -> None:
    """``python train.py WORDS`` for each seed, under ``folder``; seeds that are there already are left."""
    for seed in SEEDS:
        place = folder / f"seed-{seed}"
        if not finished_runs(place):
            print(f"{time.strftime('%H:%M:%S')} {' '.join(words)} seed={seed}", flush=True)
            took = take("train.py", *words, f"seed={seed}", f"paths.output_dir={place.relative_to(ROOT)}")
            if took.code:
                raise SystemExit(f"ended with code {took.code}; the run folder under {place} says why")
            (place / "took.json").write_text(json.dumps(asdict(took)))


def finished_runs(folder: Path) -> list[dict[str, Any]]:
    """run.json, metrics.json, and what the command took, of each finished run under ``folder``, by seed."""
    found = []
    for path in sorted(folder.glob("**/took.json")):
        (record,) = path.parent.glob("runs/*/run.json")
        facts, metrics = json.loads(record.read_text()), json.loads((record.parent / "metrics.json").read_text())
        found.append({**json.loads(path.read_text()), **facts, **metrics, "folder": record.parent})
    return found
