"""What sweeps cost beside the training itself, and that killing them loses nothing.

python benchmarks/sweeps.py              # all of it, about ten minutes on two cores; writes docs/sweeps.json and the
                                         # table in docs/sweeps.md
python benchmarks/sweeps.py kills        # one of PARTS; what is known of the others stays
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
from pathlib import Path
from statistics import median

from running import ROOT, write_between

OUT = ROOT / "outputs" / "sweeps_benchmark"
JSON = ROOT / "docs" / "sweeps.json"
PAGE = ROOT / "docs" / "sweeps.md"
TINY = ["model=vit_nano", "depth=1", "data.batch_size=256", "accelerator=cpu"]
START_UP = 9.0  # seconds, of importing everything once
TWO = ["hydra/launcher=process", "launcher.workers=2", "launcher.threads=1"]


def train(*words: str, folder: Path) -> float:
    """Seconds that ``python train.py WORDS`` takes."""
    begin = time.perf_counter()
    command = [sys.executable, "train.py", *words, f"paths.output_dir={folder}"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def check() -> dict[str, object]:
    """A grid of 1,000 trials, checked: the last of them cannot work, so that nothing starts."""
    grid = ["patch=2,4", "depth=1,2,3,4", "position=none,learned,sincos2d,rope,relative", "seed=range(25)"]
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "train.py", "-m", "model=vit_nano", *grid, "optimizer.weight_decay=-1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    return {
        "what": "checking a grid of 1,000 trials",
        "value": time.perf_counter() - begin,
        "unit": "s",
    }


def again() -> dict[str, object]:
    """A sweep of 100 finished trials, given again."""
    words = [*TINY, "trainer.max_epochs=1", "debug.limit_batches=1", "position=learned,none", "seed=range(50)"]
    train("-m", *words, *TWO, folder=OUT / "hundred")
    seconds = min(train("-m", *words, folder=OUT / "hundred") for _ in range(3))
    return {"what": "a finished sweep of 100 trials, given again", "value": seconds, "unit": "s"}


def overhead() -> dict[str, object]:
    """Trials in processes, one at a time, beside the same commands typed one after the other."""
    words = [*TINY, "trainer.max_epochs=10"]
    shutil.rmtree(OUT / "overhead", ignore_errors=True)
    one = ["hydra/launcher=process", "launcher.workers=1", f"launcher.threads={os.cpu_count()}"]
    apart = train("-m", *words, "seed=range(6)", *one, folder=OUT / "overhead")
    by_hand = sum(train(*words, f"seed={seed}", folder=OUT / "overhead" / "by_hand") for seed in range(6))
    return {
        "what": "what each trial in a process of its own takes beyond the same command typed by hand",
        "value": (apart - by_hand) / 6,
        "unit": "s a trial",
    }


def two_workers() -> dict[str, object]:
    """Sixteen trials of vit_nano on digits: two at a time against one after the other in one process."""
    words = ["model=vit_nano", "accelerator=cpu", "seed=range(16)"]
    shutil.rmtree(OUT / "sixteen", ignore_errors=True)
    together = train("-m", *words, *TWO, folder=OUT / "sixteen" / "two")
    alone = train("-m", *words, folder=OUT / "sixteen" / "one")
    return described_workers(together / alone)


def described_workers(ratio: float) -> dict[str, object]:
    """The figure, and what it would be by training alone: two trials on a thread each, against one on both."""
    thread, threads = (
        median(json.loads(path.read_text())["train_seconds"] for path in (OUT / "sixteen" / name).rglob("metrics.json"))
        for name in ("two", "one")
    )
    return {
        "what": "16 trials of `vit_nano` on digits, 2 workers against hydra/launcher=basic",
        "value": ratio,
        "unit": f"of the time; a trial trains {thread:.1f} s on one thread and {threads:.1f} s on both, so that "
        f"{thread / 2 / threads:.2f} is what training alone would take",
    }


def kills() -> dict[str, object]:
    """A sweep killed at ten random moments and given again each time, against one that was left alone."""
    words = ["-m", *TINY, "trainer.max_epochs=40", "trainer.deterministic=true", "seed=range(8)", *TWO]
    for name in ("whole", "killed"):
        shutil.rmtree(OUT / name, ignore_errors=True)
    whole = train(*words, folder=OUT / "whole")
    draw = random.Random(0)
    killed = 0
    while killed < 10:
        command = [sys.executable, "train.py", *words, f"paths.output_dir={OUT / 'killed'}"]
        running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            running.wait(draw.uniform(1, START_UP + (whole - START_UP) / 12))  # so that ten of them don't finish it
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
            running.wait()
            killed += 1
        else:
            raise AssertionError(f"it came to its end after {killed} kills")
    train(*words, folder=OUT / "killed")
    same, different = 0, []
    for path in sorted((OUT / "whole").glob("sweeps/*/*/metrics.json")):
        other = OUT / "killed" / path.relative_to(OUT / "whole")
        left, right = (json.loads(one.read_text()) for one in (path, other))
        if all(left[name] == right[name] for name in left if name != "train_seconds"):
            same += 1
        else:
            different.append(path.parent.name)
    logs = [path.read_text() for path in (OUT / "killed").glob("sweeps/*/logs/*.txt")]
    trainings = sum(log.count("chosen checkpoint") for log in logs)
    assert not different, different
    assert trainings == same, f"{trainings} trainings came to an end, for {same} trials"
    return {
        "what": f"trials equal to those of a sweep that was left alone, after {killed} times kill -9",
        "value": same,
        "unit": "of 8",
    }


PARTS = {"check": check, "again": again, "overhead": overhead, "two_workers": two_workers, "kills": kills}


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all, if none is named")
    options = parser.parse_args()
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(PARTS)}")
    known = json.loads(JSON.read_text()) if JSON.exists() else {}
    for name in options.parts or PARTS:
        known[name] = PARTS[name]()
        print(name, known[name]["value"], flush=True)
        JSON.write_text(json.dumps(known, indent=1) + "\n")
    write_table(known)


def write_table(known: dict) -> None:
    """Put the table between its two marks in docs/sweeps.md."""
    lines = ["| what | measured |", "|---|---|"]
    for name in PARTS:
        if one := known.get(name):
            lines.append(f"| {one['what']} | {one['value']:.3g} {one['unit']} |")
    write_between(PAGE, "sweeps", lines)


if __name__ == "__main__":
    main()
