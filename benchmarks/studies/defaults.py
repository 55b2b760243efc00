"""Defaults against alternatives, one change at a time, on the validation images of digits.

python benchmarks/studies/defaults.py            # trains what is missing, then writes docs/defaults.md
python benchmarks/studies/defaults.py --table    # only writes the page

Runs land in outputs/defaults; the values of every run are kept in defaults.json, which the page is written from. Test
accuracy is neither read nor shown.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seeds import ROOT, SEEDS, STUDIES, finished_runs, train_seeds

from vitrine.compare.statistics import ConfidenceInterval

OUT = ROOT / "outputs" / "defaults"
JSON = STUDIES / "defaults.json"
PAGE = ROOT / "docs" / "defaults.md"
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
Written by `python benchmarks/studies/defaults.py`; {precision} on {machine}; {device}; {commit}.
"""


def main() -> None:
    """Train what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="train nothing, only write the page")
    if not parser.parse_args().table:
        for change in CHANGES:
            train_seeds(runs_of(change), [*BASE.split(), *change.split()])
        JSON.write_text(json.dumps(collect(), indent=1) + "\n")
    PAGE.write_text(page(json.loads(JSON.read_text())))


def runs_of(change: str) -> Path:
    """Folder with the runs of a change; those of the unchanged defaults belong to first_runs.py."""
    return OUT / change if change else ROOT / "outputs" / "first_runs" / "vit_tiny"


def collect() -> dict[str, Any]:
    """The values of every finished run, and what all of them share."""
    found = {change: finished_runs(runs_of(change)) for change in CHANGES}
    first = found[""][0]
    return {
        "machine": f"{first['machine']['processor']}, {first['machine']['cores']} cores",
        "epochs": first["epochs"],
        "images": first["images"],
        "runs": [
            {"change": change, "seed": SEEDS[number], "commit": run["code"].get("commit"), "device": run["device"]}
            | {key: run[key] for key in ("precision", "val/acc", "val/loss")}
            for change, runs in found.items()
            if len(runs) == len(SEEDS)
            for number, run in enumerate(runs)
        ],
    }


def page(results: Mapping[str, Any]) -> str:
    """Text of docs/defaults.md."""
    val = results["images"]["val"]
    head = HEAD.format(train=results["images"]["train"], epochs=results["epochs"], val=val, image=1 / val)
    if "runs" not in results:  # measured before the values of runs were kept
        rows, shared = results["rows"], results
        commit = f"at commit {results['commit']}, before initial weights were drawn by parameter name"
    else:
        runs = results["runs"]
        rows = table(runs)
        shared = {name: " or ".join(sorted({run[name] for run in runs})) for name in ("device", "precision")}
        commit = f"at commit {' and '.join(sorted({str(run['commit'])[:7] for run in runs}))}"
    facts = {"precision": shared["precision"], "device": shared["device"]}
    return head + "\n".join(rows) + "\n" + TAIL.format(machine=results["machine"], commit=commit, **facts)


def table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table's rows: a change each, and its loss beside that of the defaults."""
    rows = []
    defaults = [run for run in runs if not run["change"]]
    for change in dict.fromkeys(run["change"] for run in runs):
        own = [run for run in runs if run["change"] == change]
        cells = [str(ConfidenceInterval.of([run[key] for run in own])) for key in ("val/acc", "val/loss")]
        above = [run["val/loss"] - default["val/loss"] for run, default in zip(own, defaults, strict=True)]
        cells.append(str(ConfidenceInterval.of(above)) if change else "")
        rows.append(f"| `{f'{BASE} {change}'.strip()}` | {' | '.join(cells)} |")
    return rows


if __name__ == "__main__":
    main()
