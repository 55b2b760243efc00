"""Learning rates that the range test finds, beside the defaults; writes a table to docs/schedules.md.

python benchmarks/studies/range_tests.py           # some minutes; runs what is missing
python benchmarks/studies/range_tests.py --table   # only writes the table
"""

import argparse
import json
from pathlib import Path
from typing import Any

from seeds import ROOT, STUDIES, commit_of, commits_of, device_name, markdown_table, run_command, write_between

from vitrine import compose
from vitrine.runs import RunRecord

OUT = ROOT / "outputs" / "range_tests"
JSON = STUDIES / "range_tests.json"
PAGE = ROOT / "docs" / "schedules.md"
OPTIMIZERS = {"adamw": (0, 1, 2), "sgd": (0,), "muon": (0,), "lion": (0,), "lamb": (0,), "schedule_free": (0,)}
BASE = ["model=vit_nano", "data=digits", "accelerator=cpu"]


def main() -> None:
    """Run the tests, each before a training of one epoch; write what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="run nothing, only write the table")
    if not parser.parse_args().table:
        runs = [tested(optimizer, seed) for optimizer, seeds in OPTIMIZERS.items() for seed in seeds]
        JSON.write_text(json.dumps(runs, indent=1) + "\n")
    write_between(PAGE, "range_tests", table(json.loads(JSON.read_text())))


def tested(optimizer: str, seed: int) -> dict[str, Any]:
    """The rate that the test finds with an optimiser, and the optimiser's default."""
    overrides = [*BASE, f"optimizer={optimizer}", f"seed={seed}"]
    folder = OUT / f"{optimizer}-{seed}"
    if not finished(folder):
        brief = ["optimizer.lr=auto", "trainer.max_epochs=1", f"paths.output_dir={folder.relative_to(ROOT)}"]
        if code := run_command("train.py", *overrides, *brief).code:
            raise SystemExit(f"exit code {code}; run `python train.py {' '.join([*overrides, *brief])}` to see why")
    record = finished(folder)[-1]
    facts = record.facts
    return {
        "optimizer": optimizer,
        "seed": seed,
        "found": facts["lr_range"]["found"],
        "default": compose(overrides).optimizer.lr,
        "device": device_name(facts),
        "precision": facts["precision"],
        "commit": commit_of(record),
    }


def finished(folder: Path) -> list[RunRecord]:
    """The finished runs below a folder; a test that fails leaves another."""
    records = [RunRecord(path.parent) for path in sorted(folder.glob("runs/*/run.json"))]
    return [record for record in records if record.status == "finished"]


def table(runs: list[dict[str, Any]]) -> list[str]:
    """The table, how far its rates are from the defaults, and where they were found."""
    rows = []
    for optimizer in OPTIMIZERS:
        own = [run for run in runs if run["optimizer"] == optimizer]
        others = "".join(f"; seed {run['seed']}: {run['found']:.1e}" for run in own[1:])
        rows.append([f"`optimizer={optimizer}`", f"{own[0]['found']:.1e}{others}", f"{own[0]['default']:.1e}"])
    factor = max(max(run["found"] / run["default"], run["default"] / run["found"]) for run in runs)
    where = " and ".join(sorted({f"{run['precision']} on {run['device']}" for run in runs}))
    commits = commits_of([{"commits": [run["commit"] for run in runs]}])
    return [
        *markdown_table(["`model=vit_nano data=digits`", "found, seed 0", "default"], rows),
        "",
        f"Found rate and default differ by a factor of at most {factor:.1f}.",
        f"Written by `python benchmarks/studies/range_tests.py`: {where}, at {commits}.",
    ]


if __name__ == "__main__":
    main()
