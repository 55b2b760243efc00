"""What a first hour with the project gives: accuracy, time and memory of the README's first commands, over seeds.

python benchmarks/first_runs.py              # runs what is missing under outputs/first_runs, then writes
python benchmarks/first_runs.py mnist_fast   # only that one of COMMANDS; what is known of the others stays
python benchmarks/first_runs.py --table      # only writes: the table in README.md, the heads of recipes in conf/, and
                                             # the pictures of the first run to docs/images
"""

import argparse
import json
import shutil

from running import ROOT, SEEDS, costs, finished_runs, summary, take, train_seeds, write_between, write_heads

OUT = ROOT / "outputs" / "first_runs"
COMMANDS = {
    "vit_tiny": "model=vit_tiny",
    "mnist": "experiment=mnist/quick",
    "mnist_fast": "experiment=mnist/fast",
    "mnist_best": "experiment=mnist/best",
    "cifar10": "model=vit_nano data=cifar10 trainer.max_epochs=2",
}
START_UP = {"`--help`": ["--help"], "`--cfg job`": ["--cfg", "job"], "a mistake": ["modle=vit_tiny"]}
JSON = ROOT / "benchmarks" / "first_runs.json"


def main() -> None:
    """Run, collect, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--data-root", default="data", help="where MNIST and CIFAR-10 lie, or are downloaded to")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(COMMANDS)}; all, if none is named")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(COMMANDS)):
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(COMMANDS)}")
    known = json.loads(JSON.read_text())
    names = [] if options.table else options.names or list(COMMANDS)
    for name in names:
        root = [] if name == "vit_tiny" else [f"data.root={options.data_root}"]
        train_seeds(OUT / name, [*COMMANDS[name].split(), *root])
        known["runs"][name] = summary(COMMANDS[name], finished_runs(OUT / name))
    if not options.names and not options.table:
        known["start_up"] = start_up()
    known["runs"] = {name: known["runs"][name] for name in COMMANDS if name in known["runs"]}
    JSON.write_text(json.dumps(known, indent=2) + "\n")
    write_table(known)
    write_heads(known["runs"].values())
    if runs := finished_runs(OUT / "vit_tiny"):
        for picture in ("curves.png", "confusion.png", "attention.png"):
            shutil.copy(runs[0]["folder"] / picture, ROOT / "docs" / "images" / picture)


def start_up() -> dict[str, float]:
    """Seconds until a command that trains nothing has answered: the best of five, for machines are shared."""
    return {name: round(min(take("train.py", *words).seconds for _ in range(5)), 2) for name, words in START_UP.items()}


def write_table(results: dict) -> None:
    """Put the table between its two marks in README.md."""
    lines = costs(results["runs"].values())
    first = results["runs"]["vit_tiny"]
    answers = ", ".join(f"{name} in {seconds} s" for name, seconds in results["start_up"].items())
    lines += [
        "",
        f"Means over seeds {', '.join(map(str, SEEDS))} with 95 % intervals (Student's t), on {first['machine']},",
        f"torch {first['torch']}; each time is a whole command's, of which Python and its libraries take about 8 s.",
        f"What trains nothing answers at once: {answers}. Measured by",
        "`python benchmarks/first_runs.py`.",
    ]
    write_between(ROOT / "README.md", "first_runs", lines)


if __name__ == "__main__":
    main()
