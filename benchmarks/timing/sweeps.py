"""Overhead of sweeps beyond training itself, and a check that killing them loses nothing.

python benchmarks/timing/sweeps.py        # every part, about ten minutes on two cores; writes docs/sweeps.md
python benchmarks/timing/sweeps.py kills  # one part; the stored results of the others stay
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from measure import ROOT, TIMING, at_commit, measured_on, write_between, write_rounds

from vitrine.command.compose import points
from vitrine.config.serialize import to_plain
from vitrine.runs import RunRecord
from vitrine.sweeps.fingerprint import record_facts
from vitrine.sweeps.sweep import Sweep

OUT = ROOT / "outputs" / "sweeps_benchmark"
JSON = TIMING / "sweeps.json"
PAGE = ROOT / "docs" / "sweeps.md"
TINY = ["model=vit_nano", "depth=1", "data.batch_size=256", "accelerator=cpu"]
ROUNDS = 7
START_UP = 5.0  # seconds to import everything once
TWO_WORKERS = ["hydra/launcher=process", "launcher.workers=2", "launcher.threads=1"]


def train(*overrides: str, folder: Path) -> float:
    """Run ``python train.py OVERRIDES``; returns its seconds."""
    begin = time.perf_counter()
    command = [sys.executable, "train.py", *overrides, f"paths.output_dir={folder}"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def check() -> dict[str, Any]:
    """Check a grid of 1,000 trials, and print the first configuration instead of training."""
    grid = ["patch=2,4", "depth=1,2,3,4", "position=none,learned,sincos2d,rope,relative", "seed=range(25)"]
    command = [sys.executable, "train.py", "-m", "model=vit_nano", *grid, "--cfg", "job"]
    seconds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        seconds.append(time.perf_counter() - begin)
        assert done.stdout.startswith("# run 1 of 1,000:"), done.stderr
    return {"what": "checking a grid of 1,000 trials", **described(seconds)}


def rerun() -> dict[str, Any]:
    """Rerun a sweep of 1,000 finished trials: one that was trained, and copies of its results."""
    folder = OUT / "thousand"
    shutil.rmtree(folder, ignore_errors=True)
    overrides = [*TINY, "trainer.max_epochs=1", "debug.limit_batches=1"]
    grid = ["position=learned,none", "seed=range(500)"]
    train("-m", *overrides, "position=learned,none", "seed=0,1", folder=folder)
    finish_all([*overrides, *grid, f"paths.output_dir={folder}"])
    seconds = [train("-m", *overrides, *grid, folder=folder) for _ in range(ROUNDS)]
    return {"what": "rerunning a finished sweep of 1,000 trials", **described(seconds)}


def described(seconds: list[float]) -> dict[str, Any]:
    """The median of a command's rounds, with the fastest and slowest."""
    unit = f"s ({min(seconds):.2f} to {max(seconds):.2f})"
    return {"value": median(seconds), "unit": unit, "rounds": {"command": seconds}}


def finish_all(overrides: list[str]) -> None:
    """Give each trial of a grid the results of the first one, which has been trained."""
    sweep = Sweep.plan(points("train", overrides, multirun=True))
    first = RunRecord.open(sweep.trials[0].folder)
    for trial in sweep.trials[1:]:
        trial.folder.mkdir(exist_ok=True)
        record = RunRecord(trial.folder)
        record.update(**first.facts | record_facts(trial.config))
        record.write_config(to_plain(trial.config))
        record.write_metrics(first.metrics)


def overhead() -> dict[str, Any]:
    """Trials in processes, one at a time, against the same trainings as separate commands."""
    overrides = [*TINY, "trainer.max_epochs=10"]
    shutil.rmtree(OUT / "overhead", ignore_errors=True)
    one = ["hydra/launcher=process", "launcher.workers=1", f"launcher.threads={os.cpu_count()}"]
    apart = train("-m", *overrides, "seed=range(6)", *one, folder=OUT / "overhead")
    by_hand = [train(*overrides, f"seed={seed}", folder=OUT / "overhead" / "by_hand") for seed in range(6)]
    return {
        "what": "a trial of a sweep, in its own process, against a separate command",
        "value": (sum(by_hand) - apart) / 6,
        "unit": "s less",
        "rounds": {"sweep of six": [apart], "separate command": by_hand},
    }


def two_workers() -> dict[str, Any]:
    """Sixteen trials of vit_nano on digits: two at a time against sequentially in one process."""
    overrides = ["model=vit_nano", "accelerator=cpu", "seed=range(16)"]
    shutil.rmtree(OUT / "sixteen", ignore_errors=True)
    together = train("-m", *overrides, *TWO_WORKERS, folder=OUT / "sixteen" / "two")
    alone = train("-m", *overrides, folder=OUT / "sixteen" / "one")
    return describe_workers(together, alone)


def describe_workers(together: float, alone: float) -> dict[str, Any]:
    """The ratio, and that of training alone: two trials on a thread each, against one on both threads."""
    trained = {
        name: [json.loads(path.read_text())["train_seconds"] for path in (OUT / "sixteen" / name).rglob("metrics.json")]
        for name in ("two", "one")
    }
    thread, threads = median(trained["two"]), median(trained["one"])
    return {
        "what": "16 trials of `vit_nano` on digits, 2 workers against hydra/launcher=basic",
        "value": together / alone,
        "rounds": {
            "2 workers": [together],
            "basic": [alone],
            "a trial's training, 2 workers": trained["two"],
            "a trial's training, basic": trained["one"],
        },
        "unit": f"of the time, measured once; a trial trains {thread:.1f} s on one thread and {threads:.1f} s on both: "
        f"by training time alone {thread / 2 / threads:.2f}",
    }


def kills() -> dict[str, Any]:
    """A sweep killed at ten random moments and rerun each time, against an undisturbed one."""
    overrides = ["-m", *TINY, "trainer.max_epochs=40", "trainer.deterministic=true", "seed=range(8)", *TWO_WORKERS]
    for name in ("whole", "killed"):
        shutil.rmtree(OUT / name, ignore_errors=True)
    whole = train(*overrides, folder=OUT / "whole")
    draw = random.Random(0)
    killed = 0
    while killed < 10:
        command = [sys.executable, "train.py", *overrides, f"paths.output_dir={OUT / 'killed'}"]
        running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            running.wait(
                draw.uniform(1, START_UP + (whole - START_UP) / 12)
            )  # short enough that ten of them do not finish it
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
            running.wait()
            killed += 1
        else:
            raise AssertionError(f"the sweep finished after {killed} kills")
    train(*overrides, folder=OUT / "killed")
    same, different = 0, []
    for path in sorted((OUT / "whole").glob("sweeps/*/*/metrics.json")):
        other = OUT / "killed" / path.relative_to(OUT / "whole")
        left, right = (json.loads(metrics.read_text()) for metrics in (path, other))
        if all(left[name] == right[name] for name in left if name != "train_seconds"):
            same += 1
        else:
            different.append(path.parent.name)
    logs = [path.read_text() for path in (OUT / "killed").glob("sweeps/*/logs/*.txt")]
    trainings = sum(log.count("chosen checkpoint") for log in logs)
    assert not different, different
    assert trainings == same, f"{trainings} trainings finished, for {same} trials"
    return {
        "what": f"trials equal to those of an undisturbed sweep, after {killed} times kill -9",
        "value": same,
        "unit": "of 8",
    }


PARTS = {"check": check, "again": rerun, "overhead": overhead, "two_workers": two_workers, "kills": kills}


def main() -> None:
    """Measure the parts, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    options = parser.parse_args()
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(PARTS)}")
    results = json.loads(JSON.read_text()) if JSON.exists() else {}
    for name in options.parts or PARTS:
        result = PARTS[name]()
        if rounds := result.pop("rounds", None):
            write_rounds(TIMING / "rounds" / f"sweeps_{name}.csv", {name: rounds})
        results[name] = result | measured_on()
        print(name, results[name]["value"], flush=True)
        JSON.write_text(json.dumps(results, indent=1) + "\n")
    write_table(results)


def write_table(results: Mapping[str, dict[str, Any]]) -> None:
    """Write the table between its markers in docs/sweeps.md."""
    lines = ["| what | measured | on |", "|---|---|---|"]
    for name in PARTS:
        if result := results.get(name):
            where = f"{result['machine']}{at_commit(result)}" if "machine" in result else "not recorded"
            lines.append(f"| {result['what']} | {result['value']:.3g} {result['unit']} | {where} |")
    write_between(PAGE, "sweeps", lines)


if __name__ == "__main__":
    main()
