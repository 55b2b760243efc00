"""The decision that README and docs/first_steps.md show, as the command prints it. Takes two minutes of two cores.

python benchmarks/studies/first_decision.py           # trains, unless that is done; writes both pages
python benchmarks/studies/first_decision.py --table   # only writes the pages
"""

import argparse
import json
import subprocess
import sys
from typing import Any

from seeds import ROOT, STUDIES, commit_of, device_name, write_between

from vitrine.config.sweep import SweepConfig
from vitrine.runs import RunRecord

OUT = ROOT / "outputs" / "first_decision"
JSON = STUDIES / "first_decision.json"
PAGES = [ROOT / "README.md", ROOT / "docs" / "first_steps.md"]
COMMAND = ["-m", "sweep=decide", "model=vit_nano", "position=learned,none", "sweep.difference=0.01"]
COMMAND += ["hydra/launcher=process", "launcher.workers=2", "launcher.threads=1"]


def main() -> None:
    """Let the command decide, keep its line and every run's values, and write both pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="train nothing, only write the pages")
    if not parser.parse_args().table:
        JSON.write_text(json.dumps(decided(), indent=1) + "\n")
    results = json.loads(JSON.read_text())
    for page in PAGES:
        ended = f"It ended after {len(results['runs'])} of at most {results['most']} trainings:"
        write_between(page, "decision", [ended, "", "```text", results["line"], "```"])


def decided() -> dict[str, Any]:
    """The line that the sweep ends with, and the runs it rests on."""
    command = [sys.executable, "train.py", *COMMAND, f"hydra.sweep.dir={OUT.relative_to(ROOT)}"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    (line,) = (line for line in printed.splitlines() if line.startswith("position=none "))
    records = [RunRecord(path.parent) for path in sorted(OUT.glob("*/run.json"))]
    most = 2 * SweepConfig().max_seeds  # of two configurations
    return {"line": line, "most": most, "runs": [measured(record) for record in records]}


def measured(record: RunRecord) -> dict[str, Any]:
    """A run's entry in the record; one that diverged has no metrics."""
    return {
        "position": record.config["model"]["position"],
        "seed": record.config["seed"],
        **{name: record.metrics.get(name) for name in ("val/acc", "val/loss")},
        "device": device_name(record.facts),
        "commit": commit_of(record),
    }


if __name__ == "__main__":
    main()
