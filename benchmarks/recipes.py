"""What was tried for the CIFAR-10 recipes: what was asked, what was expected, and what came out, in docs/recipes.md.

python benchmarks/recipes.py cpu/augment                # carries out the sweep of a question, then writes the page
python benchmarks/recipes.py fast/muon hydra/launcher=process launcher.per_gpu=3 trainer.max_time=10m
python benchmarks/recipes.py --table                    # only writes
python benchmarks/recipes.py --list                     # the command of each question
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from running import ROOT, WITHOUT_EFFECT_ON_A_SWEEP, in_what_is_left, names_and_overrides, where
from timing import table

from vitrine.compare.statistics import Interval
from vitrine.runs import RunRecord

OUT = ROOT / "outputs" / "recipes"
JSON = ROOT / "benchmarks" / "recipes.json"
PAGE = ROOT / "docs" / "recipes.md"
# What a question is asked of: the recipe, in a part of its epochs. On a CPU there is time for one seed: it shows what
# is worth some points, and no less.
SCALES = {
    "cpu": "experiment=cifar10/cpu trainer.max_epochs=3 seed=0",
    "fast": "experiment=cifar10/fast trainer.max_epochs=30 seed=0,1,2",
}


@dataclass(frozen=True)
class Question:
    """One thing to find out.

    Attributes:
        asks: in a sentence.
        expected: what was expected before anything was run, and why.
        sweep: values with commas, as they are typed; every combination is run with each seed.
    """

    asks: str
    expected: str
    sweep: str


QUESTIONS = {
    "augment": Question(
        "Which augmentation of single images?",
        "Crop for short trainings of small models, which do not learn by heart; TrivialAugment beside it for long "
        "ones, where automatic augmentation was the largest of the published gains.",
        "augment.crop=0,4 augment.trivial=false,true",
    ),
    "mix": Question(
        "MixUp, CutMix, both, or none?",
        "CutMix gains in long trainings, MixUp beside it nothing, as published; both cost accuracy in short ones.",
        "augment.mixup=0.0,0.8 augment.cutmix=0.0,1.0",
    ),
    "smoothing": Question(
        "Label smoothing?",
        "A little, where labels are not mixed; little beside CutMix, which smooths them too.",
        "loss.label_smoothing=0.0,0.1",
    ),
    "depth": Question(
        "Stochastic depth?",
        "Costs accuracy where the model is small and the training short, gains where it is long.",
        "model.drop_path=0.0,0.1,0.2",
    ),
    "ema": Question(
        "An average over the weights?",
        "Nothing at the end of a cosine schedule, which averages by itself, but fewer epochs to the same accuracy.",
        "callbacks=[default],[default,ema]",
    ),
    "rate": Question(
        "AdamW's learning rate?",
        "The default, 0.2 over the width, is near the best.",
        "optimizer=adamw optimizer.lr=1e-3,2e-3,4e-3",
    ),
    "muon": Question(
        "Muon in AdamW's place, at which learning rate?",
        "It learns faster in the first epochs, and its best rate is AdamW's or twice that, its updates being as large.",
        "optimizer=muon optimizer.lr=1e-3,2e-3,4e-3",
    ),
    "schedule": Question(
        "Which schedule, how long a warm-up?",
        "Cosine far above constant; the warm-up matters little from a twentieth on.",
        "schedule=cosine,constant schedule.warmup=0.05,0.1,0.2",
    ),
    "positions": Question(
        "Which positions?",
        "conv, which brings locality, above rope_mixed, which acts between two tokens, above tables, and all the more "
        "the shorter the training; learned a little above fixed in long ones, as published. All schemes, with more "
        "seeds and a smaller model: [positions.md](positions.md).",
        "position=sincos2d,learned,rope_mixed,conv",
    ),
    "pool": Question(
        "Class token, mean or attention before the head?",
        "No difference that three seeds can show.",
        "pool=cls,mean,map",
    ),
    "shape": Question(
        "Width against depth, at what cost?",
        "At equal cost, wide and shallow in short trainings; depth pays in long ones.",
        "model.heads=4 model.dim=96,128,192 model.depth=4,6,9",
    ),
    "batch": Question(
        "How many images in a batch?",
        "Small batches gain, as published, for they make more steps of as many epochs; a GPU does larger ones faster.",
        "data.batch_size=64,128,256",
    ),
}

HEAD = """# What was tried for CIFAR-10

The recipes are `experiment=cifar10/cpu`, `fast`, `best` and `stem`; what they cost and reach stands at the head of
their files and in [time_to_accuracy.md](time_to_accuracy.md). `fast`, `best` and `stem` began as the
published ablations of plain ViTs on CIFAR-10 have it: automatic augmentation, CutMix and small batches matter most,
MixUp and the kind of positions least. `cpu` began with what a short training of a small model needs, crop and flip.

Here is what was asked since: one question at a time, of a recipe in a part of its epochs, on validation images, with
the expectation as it was written down before, and of the recipe as it stood at the commit that is named. Means over
seeds with a 95 % interval (Student's t), the best first; the differences from it are paired by seed. One interval in
twenty is expected not to hold the truth, and the best of many is a little better here than it would be again. Where
one seed was all there was time for, only what is worth more than a point was taken for an answer. Seconds are those
that passed, several runs at a time and at times beside other work: [variants.md](variants.md) compares costs. `python
benchmarks/recipes.py NAME` carries out a question's sweep and writes this page.
"""


def main() -> None:
    """Carry out, collect, write."""
    names = [f"{scale}/{question}" for scale in SCALES for question in QUESTIONS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--list", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--data-root", default="data", help="where CIFAR-10 lies, or is downloaded to")
    parser.add_argument(
        "words", nargs="*", metavar="NAME|KEY=VALUE", help="SCALE/QUESTION, as --list has them; overrides"
    )
    options = parser.parse_args()
    asked, overrides = names_and_overrides(parser, options.words, names, WITHOUT_EFFECT_ON_A_SWEEP)
    if options.list:
        print("\n".join(f"{name:<16} python train.py {' '.join(command(name))}" for name in names))
        return
    if bool(asked) == options.table:
        parser.error("name a question, or --table, or --list")
    known = json.loads(JSON.read_text()) if JSON.exists() else {}
    for name in asked:
        place = f"paths.output_dir={(OUT / name).relative_to(ROOT)}"
        words = [*command(name), f"data.root={options.data_root}", place, *in_what_is_left(overrides)]
        done = subprocess.run([sys.executable, "train.py", *words], cwd=ROOT)
        if done.returncode:  # a part of a sweep says nothing yet
            raise SystemExit(done.returncode)
        known[name] = collect(OUT / name) | {"command": " ".join(command(name))}
        JSON.write_text(json.dumps({one: known[one] for one in names if one in known}, indent=1) + "\n")
    write_page(known)


def command(name: str) -> list[str]:
    """What follows ``python train.py`` for a question at a scale."""
    scale, _, question = name.partition("/")
    return ["-m", *SCALES[scale].split(), *QUESTIONS[question].sweep.split()]


def collect(folder: Path) -> dict[str, Any]:
    """Validation accuracy and training time of the runs of a sweep under ``folder``, by what varies and by seed."""
    records = [RunRecord(path.parent) for path in sorted(folder.glob("sweeps/**/metrics.json"))]
    first = records[0].facts
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for record in records:
        seed = str(record.config["seed"])
        words = ",".join(word for word in record.facts["varies"].split(",") if word != f"seed={seed}")
        one = {"val/acc": record.metrics["val/acc"], "seconds": record.metrics["train_seconds"]}
        rows.setdefault(words, {})[seed] = one
    return {
        "on": where(first),
        "commit": first["code"].get("commit"),
        "rows": rows,
    }


def write_page(known: Mapping[str, Any]) -> None:
    """Write docs/recipes.md."""
    parts = [HEAD]
    for question, one in QUESTIONS.items():
        parts.append(f"\n## {one.asks}\n\nExpected: {one.expected}\n")
        measured = [f"{scale}/{question}" for scale in SCALES if f"{scale}/{question}" in known]
        missing = [f"`{scale}/{question}`" for scale in SCALES if f"{scale}/{question}" not in known]
        parts += [section(known[name]) for name in measured]
        if missing:
            parts.append(f"\nNot yet measured: {', '.join(missing)}.\n")
    PAGE.write_text("".join(parts))


def section(found: Mapping[str, Any]) -> str:
    """The outcome of a question at a scale."""
    rows = found["rows"]
    means = {words: Interval.of([one["val/acc"] for one in seeds.values()]) for words, seeds in rows.items()}
    order = sorted(rows, key=lambda words: -means[words].mean)
    lines = []
    for words in order:
        seconds = Interval.of([one["seconds"] for one in rows[words].values()]).mean
        lines.append(
            [f"`{words}`", f"{means[words]} ({means[words].count})", behind(rows[order[0]], rows[words]), seconds]
        )
    columns = ("what", "validation accuracy (seeds)", "behind the best", "seconds of training")
    head = f"\n`python train.py {found['command']}`, on {found['on']}, at commit {found['commit'][:7]}:\n\n"
    return head + "\n".join(table(columns, lines)) + "\n"


def behind(best: Mapping[str, Mapping[str, float]], other: Mapping[str, Mapping[str, float]]) -> str:
    """Mean difference over the seeds that both have."""
    shared: Sequence[str] = sorted(best.keys() & other.keys())
    return (
        ""
        if best is other or not shared
        else str(Interval.of([best[s]["val/acc"] - other[s]["val/acc"] for s in shared]))
    )


if __name__ == "__main__":
    main()
