"""From Enter to the first training step, and where the time goes: python benchmarks/timing/startup.py.

Every time is that of a fresh process, on a warm disk. ``python benchmarks/timing/startup.py modules`` lists the
packages that a training imports beside torch, with the seconds that each takes by itself.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from measure import ROOT, in_turn, publish, run_command

ROUNDS = 11
TRAINING = ["model=vit_nano", "accelerator=cpu", "debug.limit_batches=1", "trainer.max_epochs=1"]
# What every training needs: torch, a layer, a loss and an optimiser's step.
TORCH = """
import torch
layer = torch.nn.Linear(64, 10)
optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
torch.nn.functional.cross_entropy(layer(torch.zeros(64, 64)), torch.zeros(64, dtype=torch.int64)).backward()
optimizer.step()
"""
PROGRAMS = {
    "`import torch`": "import torch",
    "torch, with an optimiser's step": TORCH,
    "`import lightning.pytorch`": "import lightning.pytorch",
    "`import vitrine.training.fit`": "import vitrine.training.fit",
}


def main() -> None:
    """Time a training beside what it is built on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["modules"], help="only list the packages; nothing is stored")
    if parser.parse_args().part == "modules":
        for package, seconds in import_seconds("vitrine.training.fit").items():
            print(f"{seconds:6.3f} s  {package}")
        return
    starts: list[float] = []
    programs: dict[str, Callable[[], object]] = {name: partial(run, code) for name, code in PROGRAMS.items()}
    in_all = in_turn(programs | {"train": lambda: starts.append(first_step()[0])}, rounds=ROUNDS)
    starts = starts[1:]  # but for the warm-up
    times = {name: in_all[name] for name in PROGRAMS} | {"`python train.py`, to its first step": starts}
    over = [ours - bare for ours, bare in zip(starts, in_all["torch, with an optimiser's step"], strict=True)]
    publish(
        "startup",
        title="From Enter to the first step",
        text="Seconds of a fresh process, on a warm disk. `train.py` trains `vit_nano` on digits; its seconds end as "
        "the first step begins, with its batch ready. An optimiser's first step imports PyTorch's compiler, which "
        "`train.py` leaves for later. At commit ddcfa8c, before it did, `train.py` took 7.13 s on an AMD EPYC with 2 "
        "cores; at f079532, when it also imported scikit-learn, 3.87 s on an Intel Xeon with 2 cores, torch with an "
        "optimiser 2.56 s.",
        columns=["what", "median", "fastest", "slowest"],
        rows=[
            [name, *(f"{value:.2f} s" for value in (median(all_), min(all_), max(all_)))]
            for name, all_ in times.items()
        ],
        claims={
            "from Enter to the first training step of `train.py`": f"{median(starts):.2f} s; in the same round "
            f"{abs(median(over)):.2f} s {'more' if median(over) > 0 else 'less'} than torch with an optimiser (median)"
        },
        rounds={"fresh process": times},
    )


def run(code: str) -> None:
    """Run Python code in a fresh process."""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def first_step(*overrides: str) -> tuple[float, int]:
    """Seconds from the start of ``python train.py`` to its first training step, and its peak memory in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"paths.output_dir={folder}", f"paths.cache_dir={folder}/cache"]
        cost = run_command("train.py", *TRAINING, *overrides, *paths)
        assert cost.code == 0, f"the training ended with exit code {cost.code}"
        (record,) = Path(folder).glob("runs/*/run.json")
        speed = json.loads(record.read_text())["speed"]
        return float(speed["startup_seconds"] + speed["compile_seconds"]), cost.memory


def import_seconds(module: str) -> dict[str, float]:
    """Seconds that the packages imported by ``module`` take beside torch, each without those it imports."""
    command = [sys.executable, "-X", "importtime", "-c", f"import torch; import {module}"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    seconds: dict[str, float] = {}
    for own, name in re.findall(r"import time: +(\d+) \| +\d+ \| +([\w.]+)", done.stderr):
        package = ".".join(name.split(".")[: 2 if name.startswith(("torch.", "vitrine.")) else 1])
        seconds[package] = seconds.get(package, 0.0) + int(own) / 1e6
    return dict(sorted(seconds.items(), key=lambda entry: -entry[1])[:30])


if __name__ == "__main__":
    main()
