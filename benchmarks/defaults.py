"""How the defaults were chosen: each choice against the default, on digits' validation images.

python benchmarks/defaults.py                # runs what is missing under outputs/defaults, then writes docs/defaults.md
python benchmarks/defaults.py --table        # only writes the page

Each row changes one thing. Test accuracy is neither read nor shown here.
"""

import argparse
import time

from running import ROOT, finished_runs, mean_and_interval, measure

OUT = ROOT / "outputs" / "defaults"
SEEDS = (0, 1, 2)
BASE = ["model=vit_tiny"]
CHOICES = {
    "the defaults": [],
    "model.init=paper": ["model.init=paper"],
    "model.init=torch": ["model.init=torch"],
    "position=learned": ["position=learned"],
    "pool=cls": ["pool=cls"],
    "pool=cls position=learned": ["pool=cls", "position=learned"],
    "augment=none": ["augment=none"],
    "optimizer.lr=1e-3": ["optimizer.lr=1e-3"],
    "optimizer.lr=2.5e-4": ["optimizer.lr=2.5e-4"],
    "data.batch_size=64": ["data.batch_size=64"],
}


def main() -> None:
    """Run, collect, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="run nothing")
    if not parser.parse_args().table:
        for name, words in CHOICES.items():
            for seed in SEEDS:
                run(name, words, seed)
    (ROOT / "docs" / "defaults.md").write_text(page())


def run(name: str, words: list[str], seed: int) -> None:
    """One run, unless it is there already."""
    folder = OUT / name.replace(" ", "_") / f"seed-{seed}"
    if finished_runs(folder):
        return
    print(f"{time.strftime('%H:%M:%S')} {name}, seed {seed}", flush=True)
    took = measure("train.py", *BASE, *words, f"seed={seed}", f"paths.output_dir={folder.relative_to(ROOT)}")
    if took.code:
        raise SystemExit(f"{name} with seed {seed} ended with code {took.code}")


def page() -> str:
    """docs/defaults.md."""
    rows = []
    for name in CHOICES:
        runs = finished_runs(OUT / name.replace(" ", "_"))
        if len(runs) < len(SEEDS):
            continue
        cells = []
        for key in ("val/acc", "val/loss"):
            mean, half = mean_and_interval([one[key] for one in runs])
            cells.append(f"{mean:.4f} ± {half:.4f}")
        rows.append(f"| {name} | {cells[0]} | {cells[1]} |")
    epochs = f"{runs[0]['best_epoch']}" if False else ""
    return "\n".join([*rows, epochs])


if __name__ == "__main__":
    main()
