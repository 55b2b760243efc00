"""What a first hour with the project gives: accuracy, time and memory of the README's first commands, over seeds.

python benchmarks/first_runs.py              # runs what is missing under outputs/first_runs, then writes the table
python benchmarks/first_runs.py --table      # only writes the table, from the run folders that are there

The table goes to README.md, the numbers to benchmarks/first_runs.json, the pictures of the first run to docs/images.
"""

import argparse
import json
import shutil
import time
from pathlib import Path

from running import ROOT, finished_runs, mean_and_interval, measure, replace_between

OUT = ROOT / "outputs" / "first_runs"
SEEDS = (0, 1, 2)
SHARED = "data.root=../shared/data"  # MNIST and CIFAR-10 beside the checkout; without them, data/ and a download
COMMANDS = {
    "vit_tiny": ["model=vit_tiny"],
    "mnist": ["model=vit_nano", "data=mnist", "trainer.max_epochs=3"],
    "cifar10": ["model=vit_nano", "data=cifar10", "trainer.max_epochs=10"],
}
START_UP = {"--help": ["--help"], "--cfg job": ["--cfg", "job"], "a mistake": ["modle=vit_tiny"]}


def main() -> None:
    """Run, collect, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--only", choices=COMMANDS, help="run only this")
    options = parser.parse_args()
    for name, words in COMMANDS.items():
        for seed in SEEDS:
            if not options.table and options.only in (None, name):
                run(name, words, seed)
    results = {name: collect(name) for name in COMMANDS if (OUT / name).exists()}
    results["start-up"] = start_up()
    (ROOT / "benchmarks" / "first_runs.json").write_text(json.dumps(results, indent=2) + "\n")
    replace_between(ROOT / "README.md", "first_runs", table(results))
    first = Path(finished_runs(OUT / "vit_tiny" / "seed-0")[0]["folder"])
    for picture in ("curves.png", "confusion.png"):
        shutil.copy(first / picture, ROOT / "docs" / "images" / picture)


def run(name: str, words: list[str], seed: int) -> None:
    """One run, unless it is there already; what it took as a whole is kept beside it."""
    folder = OUT / name / f"seed-{seed}"
    if finished_runs(folder):
        return
    data = [SHARED] if name != "vit_tiny" and (ROOT / "../shared/data").exists() else []
    print(f"{time.strftime('%H:%M:%S')} {name}, seed {seed}", flush=True)
    took = measure("train.py", *words, *data, f"seed={seed}", f"paths.output_dir={folder.relative_to(ROOT)}")
    if took.code:
        raise SystemExit(f"{name} with seed {seed} ended with code {took.code}")
    (folder / "took.json").write_text(json.dumps({"seconds": took.seconds, "memory": took.memory}))


def collect(name: str) -> dict[str, object]:
    """Test accuracy, time and memory over the seeds of one command."""
    runs = finished_runs(OUT / name)
    took = [json.loads((OUT / name / f"seed-{seed}" / "took.json").read_text()) for seed in SEEDS]
    mean, half = mean_and_interval([one["test/acc"] for one in runs])
    return {
        "command": " ".join(["python train.py", *COMMANDS[name]]),
        "test/acc": [one["test/acc"] for one in runs],
        "mean": mean,
        "half_interval": half,
        "seconds": [round(one["seconds"], 1) for one in took],
        "memory": max(one["memory"] for one in took),
        "machine": f"{runs[0]['machine']['processor']}, {runs[0]['machine']['cores']} cores",
        "precision": runs[0]["precision"],
        "torch": runs[0]["versions"]["torch"],
    }


def start_up() -> dict[str, float]:
    """Seconds until a command that trains nothing has answered: the best of five, for the machine is shared."""
    return {
        name: round(min(measure("train.py", *words).seconds for _ in range(5)), 2) for name, words in START_UP.items()
    }


def table(results: dict[str, dict]) -> str:
    """The results as Markdown."""
    lines = ["| command | test accuracy | time, start to end | memory |", "|---|---|---|---|"]
    for name in COMMANDS:
        if (one := results.get(name)) is None:
            continue
        accuracy = f"{one['mean']:.4f} ± {one['half_interval']:.4f}"
        seconds = f"{min(one['seconds']):.0f} to {max(one['seconds']):.0f} s"
        lines.append(f"| `{one['command']}` | {accuracy} | {seconds} | {one['memory'] / 1e9:.2f} GB |")
    machine = next(iter(results.values()))
    answers = ", ".join(f"{name} in {seconds} s" for name, seconds in results["start-up"].items())
    return "\n".join(
        [
            *lines,
            "",
            f"Means over seeds {', '.join(map(str, SEEDS))} with their 95 % intervals (Student's t), on {machine['machine']},",
            f"torch {machine['torch']}. What trains nothing answers at once: {answers}. Measured by",
            "`python benchmarks/first_runs.py`.",
        ]
    )


if __name__ == "__main__":
    main()
