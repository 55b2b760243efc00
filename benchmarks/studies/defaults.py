"""Defaults against alternatives, one change at a time, on the validation images of digits.

python benchmarks/studies/defaults.py            # trains what is missing, then writes docs/defaults.md
python benchmarks/studies/defaults.py --table    # only writes the page

Runs land in outputs/defaults. Test accuracy is neither read nor shown.
"""

import argparse
from pathlib import Path

from seeds import ROOT, SEEDS, finished_runs, train_seeds

from vitrine.compare.statistics import ConfidenceInterval

OUT = ROOT / "outputs" / "defaults"
BASE = "model=vit_tiny"
CHANGES = ["", "position=learned", "augment=none", "augment=light", "model.init=paper", "pool=cls"]
CHANGES += ["optimizer.lr=5e-4", "optimizer.lr=2e-3"]  # half and twice the default, 1.04e-3
HEAD = f"""# Defaults and their alternatives

`python train.py {BASE}` is the first command of a newcomer: its defaults have to learn from {{train:,}} small images in
{{epochs}} epochs. Each row changes one of them. Accuracy and loss belong to the selected epoch and are measured on
{{val}} validation images: means over seeds {", ".join(map(str, SEEDS))} with 95 % intervals (Student's t). The last
column is paired by seed; where its interval contains 0, {len(SEEDS)} seeds cannot separate the alternative from the
default. The test images were not used. One image changes the accuracy by {{image:.4f}}, so the loss is more
informative than the accuracy.

| command | validation accuracy | validation loss (nats) | loss minus the defaults' loss |
|---|---|---|---|
"""
TAIL = """
Written by `python benchmarks/studies/defaults.py` from run folders; {precision} on {machine}; {device}.
"""


def main() -> None:
    """Train what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="train nothing, only write the page")
    if not parser.parse_args().table:
        for change in CHANGES:
            train_seeds(runs_of(change), [*BASE.split(), *change.split()])
    (ROOT / "docs" / "defaults.md").write_text(page())


def runs_of(change: str) -> Path:
    """Folder with the runs of a change; those of the unchanged defaults belong to first_runs.py."""
    return OUT / change if change else ROOT / "outputs" / "first_runs" / "vit_tiny"


def page() -> str:
    """Text of docs/defaults.md, from the finished runs."""
    defaults = finished_runs(runs_of(""))
    if len(defaults) < len(SEEDS):
        raise SystemExit(f"{BASE} has {len(defaults)} of {len(SEEDS)} runs; run this without --table to train the rest")
    first = defaults[0]
    val = first["images"]["val"]
    rows, devices = [], set()
    for change in CHANGES:
        runs = finished_runs(runs_of(change))
        if len(runs) < len(SEEDS):
            continue
        cells = [str(ConfidenceInterval.of([run[key] for run in runs])) for key in ("val/acc", "val/loss")]
        above = [run["val/loss"] - default["val/loss"] for run, default in zip(runs, defaults, strict=True)]
        cells.append(str(ConfidenceInterval.of(above)) if change else "")
        devices |= {run["device"] for run in runs}
        rows.append(f"| `{f'{BASE} {change}'.strip()}` | {' | '.join(cells)} |")
    head = HEAD.format(train=first["images"]["train"], epochs=first["epochs"], val=val, image=1 / val)
    machine = f"{first['machine']['processor']}, {first['machine']['cores']} cores"
    device = " or ".join(sorted(devices))
    return head + "\n".join(rows) + "\n" + TAIL.format(precision=first["precision"], device=device, machine=machine)


if __name__ == "__main__":
    main()
