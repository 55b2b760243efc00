"""Fine-tuning on few and uneven pictures, beside training from scratch; writes a table to docs/finetuning.md.

Five classes of CIFAR-10 with 10:1 between the largest and the smallest, of which 5 % are trained on; a model that was
trained on the other five classes is what fine-tuning starts from.

python benchmarks/studies/finetuning.py --data-root ../shared/data   # resumes what was interrupted, skips the finished
python benchmarks/studies/finetuning.py --table                      # only writes the table
python benchmarks/studies/finetuning.py --list                       # prints the commands
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

from seeds import (
    NEUTRAL_IN_SWEEPS,
    ROOT,
    SEEDS,
    STUDIES,
    commits_of,
    device_name,
    markdown_table,
    split_arguments,
    write_between,
)

from vitrine.command.compose import points
from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.compare.difference import difference
from vitrine.compare.simultaneous import Family
from vitrine.data.image_folder import cifar10_folder
from vitrine.runs import RunRecord
from vitrine.sweeps.sweep import Sweep

OUT = ROOT / "outputs" / "finetuning"
JSON = STUDIES / "finetuning.json"
PAGE = ROOT / "docs" / "finetuning.md"
SOURCE = ("automobile", "cat", "deer", "horse", "ship")  # trained on first
PICTURES = 5000  # of each of its classes
TARGET = {"airplane": 5000, "truck": 2812, "bird": 1581, "frog": 889, "dog": 500}  # equal ratios, 10:1 in all
COMMON = ["model=vit_tiny", "data=imagefolder", "data.image_size=32", "patch=8", "trainer.compile=nothing"]
PRETRAINING = ["data.batch_size=128", "trainer.max_epochs=4", "optimizer.lr=5e-4", "seed=0"]
FEW = ["data.train_fraction=0.05", "loss.class_weights=balanced", "callbacks.monitor=val/balanced_acc"]
FEW += ["trainer.max_epochs=20"]
METHODS = {
    "from scratch": [],
    "linear probe": ["finetune=linear_probe", "augment=none"],
    "fine-tuned with layer decay": ["finetune=layer_decay", "optimizer.lr=1e-3"],
}
METRICS = {
    "test/balanced_acc": "balanced accuracy (%)",
    "test/macro_f1": "macro F1 (%)",
    "test/auroc": "AUROC (%)",
    "test/ece": "calibration error (%)",
    "test/class_acc/dog": "accuracy of the rarest class (%)",
}
KEPT = ("val/balanced_acc", "train_seconds")  # beside them


def main() -> None:
    """Train the source, then each method over seeds; write per-run values and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="train nothing, only write the table")
    parser.add_argument("--list", action="store_true", help="print the commands, and do nothing else")
    parser.add_argument("--data-root", default="data", help="folder with cifar10/{train,test}/<class>/*.png")
    parser.add_argument("arguments", nargs="*", metavar="KEY=VALUE", help="overrides that change no result")
    options = parser.parse_intermixed_args()
    _, overrides = split_arguments(parser, options.arguments, (), NEUTRAL_IN_SWEEPS)
    if options.list:
        print(f"python train.py {' '.join(pretraining())}")
        print("\n".join(f"python train.py {' '.join(command(name, 'RUN'))}" for name in METHODS))
        return
    if not options.table:
        link_pictures(Path(options.data_root))
        source = pretrained(overrides)
        sweeps = {name: [*command(name, source), f"paths.output_dir={folder(name)}", *overrides] for name in METHODS}
        for arguments in sweeps.values():
            train(["-m", *arguments])
        JSON.write_text(json.dumps(collect(source, sweeps), indent=1) + "\n")
    write_between(PAGE, "study", table(json.loads(JSON.read_text())))


def link_pictures(data_root: Path) -> None:
    """Lay out the pictures of both trainings as links to those of CIFAR-10's folders."""
    found = cifar10_folder(data_root)
    if found is None:
        raise SystemExit(f"{data_root} has no folder cifar10 of PNG files; --data-root DIR")
    for part, classes in (("source", dict.fromkeys(SOURCE, PICTURES)), ("target", TARGET)):
        for name, count in classes.items():
            for split, most in (("train", count), ("test", 1000)):
                place = OUT / "pictures" / part / split / name
                if not place.exists():
                    place.mkdir(parents=True)
                    for picture in sorted((found / split / name).iterdir())[:most]:
                        (place / picture.name).symlink_to(picture.resolve())


def pretraining() -> list[str]:
    """Arguments of the training that fine-tuning starts from."""
    return [*COMMON, f"data.root={pictures('source')}", *PRETRAINING]


def command(name: str, source: str) -> list[str]:
    """Arguments of a method's trainings, of all seeds."""
    start = [] if name == "from scratch" else [f"model.pretrained={source}"]
    seeds = ",".join(map(str, SEEDS))
    return [*COMMON, f"data.root={pictures('target')}", *FEW, *METHODS[name], *start, f"seed={seeds}"]


def pictures(part: str) -> Path:
    """Folder of the pictures, relative to the repository."""
    return (OUT / "pictures" / part).relative_to(ROOT)


def folder(name: str) -> Path:
    """Output folder of a method, relative to the repository."""
    return (OUT / name.replace(" ", "-")).relative_to(ROOT)


def pretrained(overrides: list[str]) -> str:
    """Train what fine-tuning starts from, or what is left of it; return its run folder."""
    place = folder("source")
    runs = sorted((ROOT / place).glob("runs/*/run.json"))
    if not runs:
        train([*pretraining(), f"paths.output_dir={place}", *overrides])
    elif json.loads(runs[-1].read_text())["status"] != "finished":
        train([f"resume={runs[-1].parent.relative_to(ROOT)}"])
    return str(max((ROOT / place).glob("runs/*/run.json")).parent.relative_to(ROOT))


def train(arguments: list[str]) -> None:
    """Run ``python train.py``; nothing is concluded from an unfinished training."""
    done = subprocess.run([sys.executable, "train.py", *arguments], cwd=ROOT)
    if done.returncode:
        raise SystemExit(done.returncode)


def collect(source: str, sweeps: Mapping[str, list[str]]) -> dict[str, Any]:
    """Per-run values of the finished trainings, of each method those of the sweep with these arguments."""
    record = RunRecord(ROOT / source)
    found: dict[str, Any] = {
        "on": device_name(record.facts),
        "commits": [],
        "source": {"command": " ".join(pretraining()), "test/acc": record.metrics["test/acc"]},
        "methods": {},
    }
    commits = {(record.facts.get("code") or {}).get("commit")}
    for name, arguments in sweeps.items():
        with chdir(ROOT):  # which the folders in the arguments are relative to
            sweep = Sweep.plan(points("train", arguments, multirun=True))
            records = [RunRecord(trial.folder.absolute()) for trial in sweep.trials]
        by_seed = {record.config["seed"]: record for record in records if record.status == "finished"}
        if sorted(by_seed) != list(SEEDS):
            raise SystemExit(f"{name}: seeds {sorted(by_seed)} are finished, not {list(SEEDS)}")
        facts = by_seed[0].facts
        commits |= {(by_seed[seed].facts.get("code") or {}).get("commit") for seed in SEEDS}
        found["methods"][name] = {
            "command": " ".join(command(name, "RUN")),
            "images": facts["images"],
            "trained_parameters": facts["trained_parameters"],
            "device": facts["device"],
            "precision": facts["precision"],
            "seeds": list(SEEDS),
            **{key: [by_seed[seed].metrics[key] for seed in SEEDS] for key in (*METRICS, *KEPT)},
        }
    found["commits"] = sorted(commits)
    return found


def format_percent(mean: ConfidenceInterval) -> str:
    """Mean in per cent, with the interval if there is one."""
    interval = "" if math.isnan(mean.half_width) else f" ± {100 * mean.half_width:.1f}"
    return f"{100 * mean.mean:.1f}{interval}"


def table(results: Mapping[str, Any]) -> list[str]:
    """The lines of the page: commands, table, and differences from training from scratch."""
    methods = results["methods"]
    images = methods["from scratch"]["images"]
    rows = []
    for name, values in methods.items():
        cells = [ConfidenceInterval.of(values[key]) for key in METRICS]
        rows.append([name, f"{values['trained_parameters']:,}", *map(format_percent, cells)])
    lines = [
        f"{images['train']:,} training pictures, {images['val']:,} for validation, {images['test']:,} for testing; on "
        f"{results['on']}, at {commits_of([results])}. Means over {len(SEEDS)} seeds; 95 % intervals (Student's t).",
        *([results["note"]] if "note" in results else []),  # of one measurement, written by hand
        "",
        *markdown_table(["", "trained weights", *METRICS.values()], rows),
        "",
    ]
    key, reference = "test/balanced_acc", methods["from scratch"]["test/balanced_acc"]
    for name, values in methods.items():
        if name != "from scratch":
            tested = difference(dict(enumerate(values[key])), dict(enumerate(reference)), Family(len(methods) - 1))
            interval = f"{100 * tested.low:+.1f} to {100 * tested.high:+.1f}"
            lines.append(
                f"- {name}: {100 * tested.mean:+.1f} points of balanced accuracy from training from scratch "
                f"(simultaneous 95 % interval {interval}, paired by seed)"
            )
    source = f"python train.py {results['source']['command']}"
    commands = [f"python train.py -m {values['command']}" for values in methods.values()]
    accuracy = f"{100 * results['source']['test/acc']:.1f} %"
    lines += ["", f"The model to start from reaches {accuracy} on its own five classes. The commands:", ""]
    return [*lines, "```", source, *commands, "```"]


if __name__ == "__main__":
    main()
