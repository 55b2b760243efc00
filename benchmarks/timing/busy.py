"""A training step beside other programs, for several times that threads wait: python benchmarks/timing/busy.py.

The times are those of fresh processes, since GNU OpenMP reads GOMP_SPINCOUNT when it is loaded. Run it alone on the
machine: it makes its own load.
"""

import os
import random
import subprocess
import sys
import time
from statistics import median

import torch
from measure import ROOT, publish
from step import as_trained, training_step

from vitrine import compose
from vitrine.cli.command import SPINS

ROUNDS, SECONDS = 3, 4.0  # of each process
COUNTS = {"OpenMP's own": None, SPINS: SPINS, "none": "0"}
BUSY = (0, 1)  # other programs


def main() -> None:
    """Time steps with each count beside no and one busy program, in random order."""
    cases = [(busy, name) for busy in BUSY for name in COUNTS]
    times: dict[tuple[int, str], list[float]] = {case: [] for case in cases}
    shuffle = random.Random(0)
    for _ in range(ROUNDS):
        for busy, name in shuffle.sample(cases, len(cases)):
            times[busy, name].append(milliseconds_beside(busy, COUNTS[name]))
    rows = []
    for busy in BUSY:
        cells = [times[busy, name] for name in COUNTS]
        rows.append([str(busy), *(f"{median(each):.0f} ({min(each):.0f} to {max(each):.0f})" for each in cells)])
    slower = {busy: median(times[busy, "OpenMP's own"]) / median(times[busy, SPINS]) for busy in BUSY}
    publish(
        "busy",
        title="Beside other programs",
        text=f"Milliseconds for a step of `vit_tiny` on 64 digits with {os.cpu_count()} threads, beside programs that "
        "keep a core busy: median of three processes, and the fastest and slowest. At the end of each parallel part of "
        "a step, a thread polls this many times for the others before it yields the core. The commands "
        "set `GOMP_SPINCOUNT`, unless it or `OMP_WAIT_POLICY` is set. At commit 3008d97, on another AMD EPYC with 2 "
        "cores, it was 0.69 of the time beside one busy program, and 1.05 alone.",
        columns=["busy programs", "OpenMP's own count", f"{int(SPINS):,} times, as here", "not at all"],
        rows=rows,
        claims={
            f"`vit_tiny` step with `GOMP_SPINCOUNT={SPINS}`, against OpenMP's own count": f"{1 / slower[1]:.2f} of the "
            f"time beside one busy program, {1 / slower[0]:.2f} alone"
        },
        rounds={f"milliseconds beside {busy}": {name: times[busy, name] for name in COUNTS} for busy in BUSY},
    )


def milliseconds_beside(busy: int, count: str | None) -> float:
    """Milliseconds of a step in a fresh process, beside ``busy`` others."""
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    if count is not None:
        environment["GOMP_SPINCOUNT"] = count
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        command = [sys.executable, __file__, "step"]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    finally:
        for other in others:
            other.kill()
            other.wait()
    return float(done.stdout)


def step_milliseconds() -> float:
    """Milliseconds of a step, over some seconds."""
    with as_trained():
        config = compose(["model=vit_tiny", "accelerator=cpu"])
        step = training_step(config, torch.randn(64, 1, 8, 8), torch.randint(0, 10, (64,)))
        step()
        count, begin = 0, time.perf_counter()
        while time.perf_counter() < begin + SECONDS:
            step()
            count += 1
        return 1000 * (time.perf_counter() - begin) / count


if __name__ == "__main__":
    if sys.argv[1:] == ["step"]:
        print(step_milliseconds())
    else:
        main()
