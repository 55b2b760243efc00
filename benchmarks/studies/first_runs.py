"""Accuracy, time and memory of README's first commands, over seeds; longer recipes are those of time_to_accuracy.py.

python benchmarks/studies/first_runs.py              # trains what is missing under outputs/first_runs, then writes
python benchmarks/studies/first_runs.py mnist_fast   # only this command; the stored results of the others stay
python benchmarks/studies/first_runs.py --table      # only writes: the table in README.md, the heads of recipes
                                                     # in conf/, the plots of the first run in docs/images
"""

import argparse
import json
import shutil
from collections.abc import Mapping
from typing import Any

from seeds import (
    ROOT,
    SEEDS,
    STUDIES,
    commits_of,
    cost_table,
    finished_runs,
    other_weights_note,
    run_command,
    summarize,
    train_seeds,
    write_between,
    write_recipe_heads,
)

from vitrine.runs.provenance import code_state

OUT = ROOT / "outputs" / "first_runs"
COMMANDS = {
    "vit_nano": "model=vit_nano",
    "vit_tiny": "model=vit_tiny",
    "mnist": "experiment=mnist/quick",
    "mnist_fast": "experiment=mnist/fast",
    "mnist_best": "experiment=mnist/best",
    "cifar10": "model=vit_nano data=cifar10 trainer.max_epochs=2",
}
START_UP = {"`--help`": ["--help"], "`--cfg job`": ["--cfg", "job"], "a mistake": ["modle=vit_tiny"]}
JSON = STUDIES / "first_runs.json"
BUNDLED = ("vit_nano", "vit_tiny")  # on digits, which need no folder
LONGER = ("cifar10/cpu",)  # recipes whose runs time_to_accuracy.py trains


def main() -> None:
    """Train what is missing, then write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="train nothing, only write")
    parser.add_argument("--data-root", default="data", help="folder of MNIST and CIFAR-10; downloaded if missing")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(COMMANDS)}; default: all")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(COMMANDS)):
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(COMMANDS)}")
    results = json.loads(JSON.read_text())
    names = [] if options.table else options.names or list(COMMANDS)
    for name in names:
        root = [] if name in BUNDLED else [f"data.root={options.data_root}"]
        train_seeds(OUT / name, [*COMMANDS[name].split(), *root])
        results["runs"][name] = summarize(COMMANDS[name], finished_runs(OUT / name))
    if not options.names and not options.table:
        results["start_up"] = {"commit": code_state()[0]["commit"], "seconds": start_up()}
    results["runs"] = {name: results["runs"][name] for name in COMMANDS if name in results["runs"]}
    JSON.write_text(json.dumps(results, indent=2) + "\n")
    write_table(results)
    write_recipe_heads(results["runs"].values())
    if runs := finished_runs(OUT / "vit_tiny"):
        for plot in ("curves.png", "confusion.png", "attention.png"):
            shutil.copy(runs[0]["folder"] / plot, ROOT / "docs" / "images" / plot)


def start_up() -> dict[str, list[float]]:
    """Seconds of commands that train nothing, five times each."""
    return {
        name: [round(run_command("train.py", *arguments).seconds, 2) for _ in range(5)]
        for name, arguments in START_UP.items()
    }


def write_table(results: Mapping[str, Any]) -> None:
    """Write the table between its markers in README.md."""
    longer = json.loads((STUDIES / "time_to_accuracy.json").read_text())
    summaries = [*results["runs"].values(), *(longer[recipe] for recipe in LONGER)]
    lines = cost_table(summaries)
    first = results["runs"]["vit_tiny"]
    began = results["start_up"]
    times = ", ".join(f"{name} {min(seconds)} s" for name, seconds in began["seconds"].items())
    lines += [
        "",
        f"Means over seeds {', '.join(map(str, SEEDS))} with 95 % intervals (Student's t), on {first['machine']},",
        f"torch {first['torch']}. Times are those of whole commands.",
        f"Commands that train nothing: {times}; the fastest of five each, as of commit {began['commit'][:7]}.",
        "Measured by `python benchmarks/studies/first_runs.py` and, in the last row, "
        f"`python benchmarks/studies/time_to_accuracy.py {' '.join(LONGER)}`,",
        f"at {commits_of(summaries)}.",
    ]
    lines += other_weights_note(commit for summary in summaries for commit in summary["commits"])
    write_between(ROOT / "README.md", "first_runs", lines)


if __name__ == "__main__":
    main()
