"""What the defaults are worth: alternatives against them, one at a time, on digits' validation images.

python benchmarks/defaults.py                # runs what is missing under outputs/defaults, then writes docs/defaults.md
python benchmarks/defaults.py --table        # only writes the page

Each row changes one thing. Test accuracy is neither read nor shown here.
"""

import argparse
from pathlib import Path

from running import ROOT, SEEDS, finished_runs, train_seeds

from vitrine.compare.statistics import Interval

OUT = ROOT / "outputs" / "defaults"
BASE = "model=vit_tiny"
CHOICES = ["", "position=learned", "augment=none", "augment=light", "model.init=paper", "pool=cls"]
CHOICES += ["optimizer.lr=5e-4", "optimizer.lr=2e-3"]  # half and twice the default, 1.04e-3
HEAD = f"""# What the defaults are worth

`python train.py {BASE}` is what a newcomer types first: its defaults must learn {{train:,}} small images in {{epochs}}
epochs. Each row below changes one of them. Accuracy and loss are those of the chosen epoch on {{val}} validation
images, means over seeds {", ".join(map(str, SEEDS))} with 95 % intervals (Student's t); the last column is paired by
seed, and where its interval holds 0, {len(SEEDS)} seeds can't tell. The test images were not looked at. One image more
or less is {{image:.4f}}, so the loss says more than the accuracy.

| command | validation accuracy | validation loss (nats) | loss above the defaults' |
|---|---|---|---|
"""
TAIL = """
Written by `python benchmarks/defaults.py` from run folders; {precision} on {machine}; {device}.
"""


def main() -> None:
    """Run, collect, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="run nothing")
    if not parser.parse_args().table:
        for choice in CHOICES:
            train_seeds(folder(choice), [*BASE.split(), *choice.split()])
    (ROOT / "docs" / "defaults.md").write_text(page())


def folder(choice: str) -> Path:
    """Where the runs of a choice lie; those of the defaults themselves are first_runs.py's."""
    return OUT / choice if choice else ROOT / "outputs" / "first_runs" / "vit_tiny"


def page() -> str:
    """docs/defaults.md."""
    defaults = finished_runs(folder(""))
    if len(defaults) < len(SEEDS):
        raise SystemExit(f"{BASE} has {len(defaults)} of {len(SEEDS)} runs; without --table they are trained")
    first = defaults[0]
    val = first["images"]["val"]
    rows, devices = [], set()
    for choice in CHOICES:
        runs = finished_runs(folder(choice))
        if len(runs) < len(SEEDS):
            continue
        cells = [str(Interval.of([run[key] for run in runs])) for key in ("val/acc", "val/loss")]
        above = [run["val/loss"] - default["val/loss"] for run, default in zip(runs, defaults, strict=True)]
        cells.append(str(Interval.of(above)) if choice else "")
        devices |= {run["device"] for run in runs}
        rows.append(f"| `{f'{BASE} {choice}'.strip()}` | {' | '.join(cells)} |")
    head = HEAD.format(train=first["images"]["train"], epochs=first["epochs"], val=val, image=1 / val)
    machine = f"{first['machine']['processor']}, {first['machine']['cores']} cores"
    device = " or ".join(sorted(devices))
    return head + "\n".join(rows) + "\n" + TAIL.format(precision=first["precision"], device=device, machine=machine)


if __name__ == "__main__":
    main()
