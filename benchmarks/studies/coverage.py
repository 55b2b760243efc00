"""How often an interval of ``compare`` holds the truth, on real runs: new seeds *and* new test images.

python benchmarks/studies/coverage.py           # trains 80 small models, resumes, simulates; writes docs/decisions.md
python benchmarks/studies/coverage.py --page    # simulates with the stored predictions, only
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from seeds import (
    NEUTRAL_IN_SWEEPS,
    ROOT,
    STUDIES,
    commits_of,
    device_name,
    markdown_table,
    split_arguments,
    write_between,
)

from vitrine.compare.difference import difference
from vitrine.compare.load import load_results
from vitrine.compare.predictions import Predictions
from vitrine.files import write_text

RESULTS = STUDIES / "coverage.json"
PAGE = ROOT / "docs" / "decisions.md"
OUT = ROOT / "outputs" / "coverage"
POSITIONS = ("learned", "rope")
SEEDS = 40
COMMAND = ["-m", "model=vit_nano", "trainer.max_epochs=10", f"position={','.join(POSITIONS)}", f"seed=range({SEEDS})"]
SWEEPS = 4_000
SAMPLED = (3, 5, 10)  # seeds in a sweep


def train(overrides: list[str]) -> dict[str, Any]:
    """Train the models; return which test images each classifies correctly, as hexadecimal digits of packed bits."""
    places = [f"paths.output_dir={OUT.relative_to(ROOT)}", "sweep.name=runs"]
    done = subprocess.run([sys.executable, "train.py", *COMMAND, *places, *overrides], cwd=ROOT, check=False)
    if done.returncode:  # the same command finishes it
        raise SystemExit(done.returncode)
    runs = [run for run in load_results([OUT]).runs if run.status == "finished"]
    correct = {
        f"{run.config['model.position']}, seed {run.seed}": np.packbits(Predictions.of(run).correct).tobytes().hex()
        for run in runs
    }
    return {
        "command": f"python train.py {' '.join(COMMAND)}",
        "commits": sorted({(run.facts.get("code") or {}).get("commit") for run in runs}),
        "on": device_name(runs[0].facts),
        "images": len(runs[0].labels),
        "correct": dict(sorted(correct.items())),
    }


def unpacked(known: dict[str, Any]) -> np.ndarray:
    """Which images are classified correctly: (positions, seeds, images) bool."""
    rows = [
        [bytes.fromhex(known["correct"][f"{position}, seed {seed}"]) for seed in range(SEEDS)] for position in POSITIONS
    ]
    bits = np.unpackbits(np.array([[list(packed) for packed in row] for row in rows], np.uint8), axis=2)
    return bits[:, :, : known["images"]].astype(bool)


def samples(correct: np.ndarray, seeds: int, *, equal: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield sweeps of two configurations: seeds and images drawn from all, each as often as chance has it.

    Args:
        correct: (positions, seeds, images).
        seeds: in a sweep.
        equal: whether both sides are of the first configuration, with seeds of their own.
    """
    rng = np.random.default_rng((seeds, equal))
    _, most, count = correct.shape
    for _ in range(SWEEPS):
        first, images = rng.integers(most, size=seeds), rng.integers(count, size=count)
        second = rng.integers(most, size=seeds) if equal else first
        ours, theirs = correct[0] if equal else correct[1], correct[0]
        yield ours[second][:, images], theirs[first][:, images]


def covered(correct: np.ndarray, seeds: int, *, equal: bool) -> dict[str, float]:
    """Share of sweeps whose interval holds the difference of all models on all images; without an interval, none."""
    truth = 0.0 if equal else float(correct[1].mean() - correct[0].mean())
    found: dict[str, list[bool]] = {"new images": [], "these images": []}
    for ours, theirs in samples(correct, seeds, equal=equal):
        offset = 100 if equal else 0  # seeds of its own: no pairs
        sides = [dict(enumerate(theirs)), {seed + offset: row for seed, row in enumerate(ours)}]
        values = [{seed: float(row.mean()) for seed, row in side.items()} for side in sides]
        for name, images in (("new images", (sides[1], sides[0])), ("these images", None)):
            tested = difference(values[1], values[0], correct=images)
            found[name].append(tested.low <= truth <= tested.high)
    return {name: float(np.mean(held)) for name, held in found.items()}


def table(known: dict[str, Any]) -> list[str]:
    """The table of docs/decisions.md."""
    correct = unpacked(known)
    lines = []
    for seeds in SAMPLED:
        shares = [covered(correct, seeds, equal=equal) for equal in (False, True)]
        lines.append([f"{seeds} seeds", *(f"{share[name]:.1%}" for name in shares[0] for share in shares)])
    kinds = (f"{POSITIONS[1]} and {POSITIONS[0]}, by seed", "two groups of equal models")
    columns = ["", *(f"{kind}{fixed}" for fixed in ("", ", these images only") for kind in kinds)]
    accuracy = " and ".join(
        f"{position} {100 * value:.2f} %" for position, value in zip(POSITIONS, correct.mean((1, 2)), strict=True)
    )
    note = f"`{known['command']}`, on {known['on']}, at {commits_of([known])}: mean test accuracy {accuracy}."
    return [note, "", *markdown_table(columns, lines)]


def main() -> None:
    """Train, then simulate and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="train nothing")
    parser.add_argument("arguments", nargs="*", metavar="KEY=VALUE", help="overrides that change no result")
    options = parser.parse_intermixed_args()
    _, overrides = split_arguments(parser, options.arguments, (), NEUTRAL_IN_SWEEPS)
    if not options.page:
        write_text(RESULTS, json.dumps(train(overrides), indent=1) + "\n")
    write_between(PAGE, "coverage", table(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
