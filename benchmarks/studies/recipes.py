"""Ablations for the CIFAR-10 recipes: each question with the expectation and the result, in docs/recipes.md.

python benchmarks/studies/recipes.py cpu/augment    # runs the sweep of a question, then writes the page
python benchmarks/studies/recipes.py fast/muon hydra/launcher=process launcher.per_gpu=3 trainer.max_time=10m
python benchmarks/studies/recipes.py --table        # only writes the page
python benchmarks/studies/recipes.py --list         # prints the command of each question
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from seeds import (
    NEUTRAL_IN_SWEEPS,
    ROOT,
    STUDIES,
    commits_of,
    device_name,
    had_other_weights,
    markdown_table,
    other_weights_note,
    split_arguments,
    with_remaining_time,
)

from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.runs import RunRecord

OUT = ROOT / "outputs" / "recipes"
JSON = STUDIES / "recipes.json"
PAGE = ROOT / "docs" / "recipes.md"
# A question is studied on a recipe trained for a fraction of its epochs. On a CPU there is time for a single seed,
# which reveals differences of several points only.
SCALES = {
    "cpu": "experiment=cifar10/cpu trainer.max_epochs=3 seed=0",
    "whole": "experiment=cifar10/cpu seed=0",
    "fast": "experiment=cifar10/fast trainer.max_epochs=30 seed=0,1,2",
    "whole-fast": "experiment=cifar10/fast seed=0,1,2",
}


@dataclass(frozen=True)
class Question:
    """An ablation.

    Attributes:
        title: the question.
        expected: the expectation before any run, and its reason.
        sweep: overrides with comma-separated values, of which every combination is trained with each seed; or several
            sets of overrides, each of which is.
        scales: of ``SCALES``, those that it is asked at.
        found: what the rows say, and what they do not.
    """

    title: str
    expected: str
    sweep: str | tuple[str, ...]
    scales: tuple[str, ...] = ("cpu", "fast")
    found: str = ""


LONG = ("fast",)  # the scale of questions whose answers a single short training cannot tell apart


QUESTIONS = {
    "augment": Question(
        "Which augmentation of single images?",
        "Random crop for short trainings of small models, which do not overfit. TrivialAugment as well for long ones, "
        "where automatic augmentation brought the largest published gain.",
        "augment.crop=0,4 augment.trivial=false,true",
        LONG,
    ),
    "mix": Question(
        "MixUp, CutMix, both, or none?",
        "CutMix helps in long trainings and MixUp adds nothing to it, as published. Both cost accuracy in short ones.",
        "augment.mixup=0.0,0.8 augment.cutmix=0.0,1.0",
        LONG,
    ),
    "smoothing": Question(
        "Label smoothing?",
        "A small gain without mixing; little with CutMix, which smooths labels too.",
        "loss.label_smoothing=0.0,0.1",
        LONG,
    ),
    "depth": Question(
        "Stochastic depth?",
        "Costs accuracy with a small model and a short training, helps with a long one.",
        "model.drop_path=0.0,0.1,0.2",
        LONG,
    ),
    "ema": Question(
        "An exponential moving average of the weights?",
        "No gain at the end of a cosine schedule, which averages in its own way, but fewer epochs to an accuracy.",
        "callbacks=[default],[default,ema]",
        LONG,
    ),
    "rate": Question(
        "AdamW's learning rate?",
        "The default, 0.2 / width, is close to the best.",
        "optimizer=adamw optimizer.lr=1e-3,2e-3,4e-3",
    ),
    "muon": Question(
        "Muon instead of AdamW, and at which learning rate?",
        "Muon learns faster in the first epochs. Its best rate is AdamW's or twice that, because its updates are as "
        "large as AdamW's.",
        "optimizer=muon optimizer.lr=1e-3,2e-3,4e-3",
    ),
    "schedule": Question(
        "Which schedule, and how long a warm-up?",
        "Cosine is far better than constant; the length of the warm-up matters little from 5 % of the steps on.",
        "schedule=cosine,constant schedule.warmup=0.05,0.1,0.2",
        LONG,
    ),
    "positions": Question(
        "Which positional scheme?",
        "conv, which adds locality, beats rope_mixed, which acts on pairs of tokens, which beats tables; more so in "
        "shorter trainings. learned is slightly better than fixed tables in long trainings, as published. "
        "All schemes, with more seeds and a smaller model: [positions.md](positions.md).",
        "position=sincos2d,learned,rope_mixed,conv",
    ),
    "tokens": Question(
        "Patches by convolutions, smaller batches, or smaller images first?",
        "A stack of 3x3 convolutions brings locality, which short trainings gain most from: several points, at a tenth "
        "more time. Smaller images first gain a point.",
        (
            "trainer.max_epochs=3",
            "trainer.max_epochs=3 patch_embed=conv_stem",
            "trainer.max_epochs=5 patch_embed=conv_stem trainer.image_schedule=[16,0.5]",
            "trainer.max_epochs=3 patch_embed=conv_stem data.batch_size=64",
        ),
        ("cpu",),
        found="The stem gains several points, as expected. The row of smaller images computes 1.2 times as much as "
        "that of the stem alone, so it does not tell whether they gain anything at equal time; *Smaller images first, "
        "or fewer patches* asks that. Plain patches were timed beside other work; [variants.md](variants.md) has the "
        "cost of a stem. Whether a whole training keeps what three epochs gain: the next question.",
    ),
    "length": Question(
        "What is left of the stem's gain after half an hour, and does stronger augmentation keep it?",
        "Three points. After the second row had shown otherwise: TrivialAugment and label smoothing keep training and "
        "validation accuracy together, which gains two points over the recipe in fewer epochs.",
        (
            "trainer.max_epochs=18",
            "patch_embed=conv_stem trainer.max_epochs=20 trainer.image_schedule=[16,0.4]",
            "patch_embed=conv_stem trainer.max_epochs=14 augment.trivial=true loss.label_smoothing=0.1",
        ),
        ("whole",),
        found="Three points it is not. Whether anything is left, one seed cannot tell: those of the recipe alone, of "
        "[time_to_accuracy.md](time_to_accuracy.md) with seeds 0, 1 and 2, lie between 0.8430 and 0.8500. With crop "
        "and flip, training accuracy reaches 0.95, while validation loss rises from the seventeenth epoch on; "
        "TrivialAugment and smoothing prevent that. The last row was trained beside other work.",
    ),
    "fewer": Question(
        "Smaller images first, or fewer patches, and more epochs for the same computation?",
        "Smaller images first gain a point. Leaving patches out gains nothing in a training too short to overfit. "
        "Shifted copies of a patch bring less locality than convolutions.",
        (
            "patch_embed=conv_stem trainer.max_epochs=3",
            "patch_embed=conv_stem trainer.max_epochs=5 trainer.image_schedule=[16,0.6]",
            "patch_embed=conv_stem trainer.max_epochs=4 model.patch_dropout=0.25",
            "patch_embed=shifted trainer.max_epochs=3",
        ),
        ("cpu",),
        found="Against the expectation, a quarter of the patches left out pays for a fourth epoch that gains 1.9 "
        "points, and smaller images first lose 1.2: two epochs at full size are too few. How much of such gains a "
        "whole training keeps, the previous question leaves open.",
    ),
    "dropped": Question(
        "Do fewer patches keep the stem's gain through a whole training?",
        "One point above the recipe, at equal time. Leaving patches out regularises, as TrivialAugment does, but makes "
        "steps shorter in place of asking for more of them.",
        ("patch_embed=conv_stem trainer.max_epochs=22 model.patch_dropout=0.25",),
        ("whole",),
        found="One seed cannot tell: it is 1.0 point above the mean of the recipe's three seeds (the question on the "
        "stem's gain), which were trained in bfloat16 and from other initial weights. Accuracy on the training images "
        "still reaches 0.94. The training was interrupted twice and ran beside other work, so its seconds say nothing.",
    ),
    "twice": Question(
        "A faster processor has time for twice as many epochs in half an hour: what with them?",
        "0.87 to 0.88 with the stem, a quarter of the patches left out, and TrivialAugment: with crop and flip alone, "
        "accuracy on the training images reaches 0.94 in 22 epochs, and more of them would gain little.",
        ("trainer.max_epochs=35",),
        ("whole",),
        found="This is the recipe now; the seeds are those of [time_to_accuracy.md](time_to_accuracy.md). It is 2.9 "
        "points above the row of the previous question, with TrivialAugment and 13 more epochs, and 3.9 above the 18 "
        "epochs that were the recipe. Which part gains how much was not asked. Accuracy on the augmented training "
        "images is 0.83 in the last epoch, below that on validation images: more epochs should gain more.",
    ),
    "underfit": Question(
        "Why does `fast` end at 0.80, and what lifts it?",
        "0.9365, as published for a model and a length like these. After the first row had shown otherwise: Muon, "
        "which gains ten points on AdamW in the first epochs of `cpu`, and fewer mixed images, since a hundred epochs "
        "are too few for a model that never sees a whole one.",
        (
            "trainer.max_epochs=100",
            "optimizer=muon optimizer.lr=2e-3",
            "augment.mix_share=0.5",
            "optimizer=muon optimizer.lr=2e-3 augment.mix_share=0.5",
            "optimizer=muon optimizer.lr=2e-3 augment.cutmix=0.0 loss.label_smoothing=0.1",
            "trainer.max_epochs=300 augment.mix_share=0.5",
        ),
        ("whole-fast",),
        found="Training falls short, not generalisation: accuracy on the mixed and augmented training images is 0.55 "
        "to 0.57 in the last epoch (their loss 1.53 to 1.54), and validation accuracy still rises. On a CPU, "
        "uncompiled, the mean losses of the first 160 of 35,100 steps, all in the warm-up, 20 at a time, are the same "
        "within 0.4 %: no sign of an error of the GPU, but the other steps were not compared. No script writes these "
        "losses, which are in `recipes.json`. The code of arXiv:2112.13492, whose ViT of this size reaches 0.9358 in "
        "100 epochs, mixes half of its batches, not all, and passes three times over the images in each epoch "
        "(`len_factor` in utils/sampler.py): as many steps as three of these trainings. The other rows wait for a GPU: "
        "`python benchmarks/studies/recipes.py whole-fast/underfit hydra/launcher=process launcher.per_gpu=3`.",
    ),
    "parts": Question(
        "The parts of recent ViTs: registers, normalised queries and keys, RMSNorm, SwiGLU, rotary positions?",
        "Normalised queries and keys allow a larger learning rate, and change little at this one. The others change "
        "less than three seeds can tell in models this small.",
        (
            "model.registers=0",
            "model.registers=4",
            "model.qk_norm=true",
            "norm=rmsnorm",
            "mlp=swiglu model.mlp_ratio=1.375",
            "position=rope",
        ),
        LONG,
    ),
    "pool": Question(
        "Class token, mean pooling, or attention pooling before the head?",
        "No difference that three seeds can detect.",
        "pool=cls,mean,map",
        LONG,
    ),
    "shape": Question(
        "Width or depth at equal cost?",
        "Wide and shallow is better in short trainings; depth pays off in long ones.",
        "model.heads=4 model.dim=96,128,192 model.depth=4,6,9",
        LONG,
    ),
    "batch": Question(
        "Which batch size?",
        "Small batches are better, as published: they give more steps per epoch. Large ones are faster on a GPU.",
        "data.batch_size=64,128,256",
        LONG,
    ),
}

HEAD = """# Ablations for the CIFAR-10 recipes

The recipes are `experiment=cifar10/cpu`, `fast`, `best` and `stem`. Cost and accuracy of those that have been measured
are in their files and in [time_to_accuracy.md](time_to_accuracy.md). `fast`, `best` and `stem` start from published
ablations of plain ViTs on CIFAR-10: automatic augmentation, CutMix and small batches matter most, MixUp and the
positional scheme least. `cpu` began with crop and flip, enough for a short training of a small model; Muon, the stem,
fewer patches and TrivialAugment were added after questions below.

Each section asks one question about a recipe, trained for a fraction of its epochs and judged on validation images.
The expectation was written down beforehand; the recipe is the one at the commit named. Rows of several seeds are means
with a 95 % interval (Student's t), and their differences from the best row are paired by seed; rows of one seed, (1),
have no interval. Of a row with other seeds than the best, the difference is that of the means. The best row comes
first. Expect one interval in twenty to miss the true value, and the best of many rows to look slightly better than it
is. With a single seed, only differences above one point were acted on, and questions whose answers are expected to be
closer are asked of `fast` alone, which needs a GPU. Times were measured with several runs side by side; for costs see
[variants.md](variants.md). `python benchmarks/studies/recipes.py NAME` runs the sweep of a question and writes this
page.
"""


def main() -> None:
    """Run the sweeps, collect the results, and write the page."""
    names = [f"{scale}/{name}" for scale in SCALES for name, question in QUESTIONS.items() if scale in question.scales]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="train nothing, only write the page")
    parser.add_argument("--list", action="store_true", help="print the commands, and do nothing else")
    parser.add_argument("--data-root", default="data", help="folder of CIFAR-10; downloaded if missing")
    parser.add_argument("arguments", nargs="*", metavar="NAME|KEY=VALUE", help="SCALE/QUESTION as in --list; overrides")
    options = parser.parse_intermixed_args()
    asked, overrides = split_arguments(parser, options.arguments, names, NEUTRAL_IN_SWEEPS)
    if options.list:
        for name in names:
            for setting in folders(name):
                print(f"{name:<20} python train.py {' '.join([*command(name), *setting.split()])}")
        return
    if bool(asked) == options.table:
        parser.error("name a question, or pass --table or --list")
    results = json.loads(JSON.read_text()) if JSON.exists() else {}
    for name in asked:
        rows: dict[str, Any] = {}
        for setting, folder in folders(name).items():
            places = [f"data.root={options.data_root}", f"paths.output_dir={folder.relative_to(ROOT)}"]
            arguments = [*command(name), *setting.split(), *places, *with_remaining_time(overrides)]
            done = subprocess.run([sys.executable, "train.py", *arguments], cwd=ROOT)
            if done.returncode:  # nothing is concluded from an unfinished sweep
                raise SystemExit(done.returncode)
            found = collect(folder, setting)
            rows |= found["rows"]
        results = json.loads(JSON.read_text())  # another question may have been answered meanwhile
        found |= {"command": " ".join(command(name)), "rows": rows}
        results[name] = results.get(name, {}) | found  # keeps what was added by hand
        JSON.write_text(json.dumps({known: results[known] for known in names if known in results}, indent=1) + "\n")
    PAGE.write_text(page(results))


def command(name: str) -> list[str]:
    """Arguments of ``python train.py`` for a question at a scale; those of a setting follow."""
    scale, _, question = name.partition("/")
    sweep = QUESTIONS[question].sweep
    return ["-m", *SCALES[scale].split(), *(sweep.split() if isinstance(sweep, str) else [])]


def folders(name: str) -> dict[str, Path]:
    """Where the sweep of each setting of a question goes; a question without settings has an empty one."""
    sweep = QUESTIONS[name.partition("/")[2]].sweep
    if isinstance(sweep, str):
        return {"": OUT / name}
    return {setting: OUT / name / re.sub(r"[^a-z0-9.]+", "-", setting) for setting in sweep}


def collect(folder: Path, setting: str = "") -> dict[str, Any]:
    """Validation accuracy and training time of the sweep's runs under ``folder``, by choice, or setting, and seed."""
    records = [RunRecord(path.parent) for path in sorted(folder.glob("sweeps/**/metrics.json"))]
    first = records[0].facts
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for record in records:
        seed = str(record.config["seed"])
        varies = ",".join(part for part in record.facts["varies"].split(",") if part != f"seed={seed}")
        row = rows.setdefault(setting or varies, {})
        if seed in row or record.facts["code"].get("commit") != first["code"].get("commit"):
            raise SystemExit(f"{folder} has runs of an earlier recipe or other code; delete it to train them again")
        found = {"val/acc": record.metrics["val/acc"], "seconds": record.metrics["train_seconds"]}
        trained = [row for row in record.history() if "train/acc" in row]
        last = [row for row in trained if row["epoch"] == trained[-1]["epoch"]]
        found |= {key: round(fmean(row[key] for row in last), 4) for key in ("train/acc", "train/loss") if last}
        row[seed] = found | {"commit": first["code"].get("commit")}
        row[seed] |= {key: record.facts.get(key) for key in ("device", "precision")}
    shared = {"precision": first.get("precision"), "device": first.get("device")}
    return {"on": device_name(first), "commit": first["code"].get("commit"), **shared, "rows": rows}


def page(results: Mapping[str, Any]) -> str:
    """Text of docs/recipes.md."""
    parts, unanswered = [HEAD], []
    for name, question in QUESTIONS.items():
        keys = [f"{scale}/{name}" for scale in question.scales]
        missing = ", ".join(f"`{key}`" for key in keys if key not in results)
        if not results.keys() & set(keys):
            unanswered.append([question.title, question.expected, missing])
            continue
        parts.append(f"\n## {question.title}\n\nExpected: {question.expected}\n")
        rest = "" if isinstance(question.sweep, str) else ", followed by a row's overrides"
        parts += [section(results[key], rest) for key in keys if key in results]
        parts += [f"\n{question.found}\n"] if question.found else []
        parts += [f"\nNot yet measured: {missing}.\n"] if missing else []
    if unanswered:
        table = "\n".join(markdown_table(("question", "expected", "name"), unanswered))
        parts.append(f"\n## Not yet measured\n\n{table}\n")
    return "".join(parts)


def section(result: Mapping[str, Any], rest: str = "") -> str:
    """The table of a question at a scale; ``rest`` says what follows its command."""
    rows = result["rows"]
    means = {
        choice: ConfidenceInterval.of([run["val/acc"] for run in seeds.values()]) for choice, seeds in rows.items()
    }
    order = sorted(rows, key=lambda choice: -means[choice].mean)
    lines, commits = [], []
    for choice in order:
        runs = rows[choice].values()
        own = [run.get("commit", result["commit"]) for run in runs]
        commits += own
        seconds = ConfidenceInterval.of([run["seconds"] for run in runs]).mean
        accuracy = f"{means[choice]} ({means[choice].count})" + " †" * had_other_weights(own)
        on = "; ".join(sorted({trained_on(run, result) for run in runs}))
        lines.append([f"`{choice}`", accuracy, gap(rows[order[0]], rows[choice]), seconds, on])
    columns = ("choice", "validation accuracy (seeds)", "behind the best", "seconds of training", "device, precision")
    by = commits_of([{"commits": commits}])
    head = f"\n`python train.py {result['command']}`{rest}, on {result['on']}, at {by}:\n\n"
    note = [f"\n{line}" for line in other_weights_note(commits)]
    return head + "\n".join([*markdown_table(columns, lines), *note]) + "\n"


def trained_on(run: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Device and precision of a run, or those of all runs of its question."""
    known = [run.get(key, result.get(key)) for key in ("device", "precision")]
    return ", ".join(value for value in known if value) or "not recorded"


def gap(best: Mapping[str, Mapping[str, float]], other: Mapping[str, Mapping[str, float]]) -> str:
    """Mean difference from the best, paired by seed if both have the same; empty for the best itself."""
    if best is other:
        return ""
    if best.keys() != other.keys():
        means = [ConfidenceInterval.of([run["val/acc"] for run in row.values()]).mean for row in (best, other)]
        return f"{means[0] - means[1]:.4f}"
    return str(ConfidenceInterval.of([best[seed]["val/acc"] - other[seed]["val/acc"] for seed in best]))


if __name__ == "__main__":
    main()
