"""Defaults against alternatives, one change at a time, on the validation images of digits.

python benchmarks/studies/defaults.py            # trains what is missing, then writes docs/defaults.md
python benchmarks/studies/defaults.py shorter    # likewise, of its second table: trainings of half as long
python benchmarks/studies/defaults.py recipe     # experiment=digits/quick, which was chosen there, beside the defaults
python benchmarks/studies/defaults.py --table    # only writes the page, and the recipe's head

Runs land in outputs/defaults; the values of every run are kept in defaults.json, which the page is written from. Test
accuracy is neither read nor shown, but for the recipe's, once it was chosen.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seeds import (
    OTHER_WEIGHTS,
    ROOT,
    SEEDS,
    STUDIES,
    commits_of,
    cost_table,
    finished_runs,
    run_command,
    summarize,
    train_seed,
    train_seeds,
    write_recipe_heads,
)

from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.runs import RunRecord
from vitrine.text import listed

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
SHORTER = {
    "vit_tiny": [
        "",
        "augment=none",
        "trainer.max_epochs=12",
        "trainer.max_epochs=12 data.batch_size=32",
        "trainer.max_epochs=12 data.batch_size=16",
        "trainer.max_epochs=12 data.batch_size=16 optimizer.lr=5e-4",
        "trainer.max_epochs=16 data.batch_size=32 optimizer.betas=[0.9,0.95]",
        "trainer.max_epochs=16 data.batch_size=32 optimizer.lr=5e-4 model.drop_path=0",
        "trainer.max_epochs=16 data.batch_size=32 optimizer.lr=5e-4 model.drop_path=0 optimizer.betas=[0.9,0.95]",
        "trainer.max_epochs=12 optimizer=muon optimizer.lr=2e-3",
        "trainer.max_epochs=12 optimizer=muon optimizer.lr=2e-3 data.batch_size=32",
        "trainer.max_epochs=12 optimizer=muon optimizer.lr=4e-3 model.drop_path=0 augment=none",
        "trainer.max_epochs=16 optimizer=muon optimizer.lr=2e-3",
        "trainer.max_epochs=16 optimizer=muon optimizer.lr=2e-3 augment=none",
        "trainer.max_epochs=16 optimizer=muon optimizer.lr=1e-3 model.drop_path=0",
        "trainer.max_epochs=16 optimizer=muon optimizer.lr=2e-3 model.drop_path=0",
        "trainer.max_epochs=16 optimizer=muon optimizer.lr=4e-3 model.drop_path=0",
        "trainer.max_epochs=16 optimizer=muon optimizer.lr=4e-3 model.drop_path=0 augment=none",
        "trainer.max_epochs=16 optimizer=muon optimizer.lr=4e-3 model.drop_path=0 model.patch_dropout=0.25",
        "trainer.max_epochs=16 optimizer=muon optimizer.lr=4e-3 model.drop_path=0 model.patch_dropout=0.5",
        "trainer.max_epochs=16 optimizer=muon optimizer.lr=4e-3 model.drop_path=0 trainer.image_schedule=[6,0.5]",
        "trainer.max_epochs=12 optimizer=muon optimizer.lr=4e-3 model.drop_path=0 model.patch_dropout=0.25",
    ],
    "vit_nano": [
        "",
        "trainer.max_epochs=16 optimizer=muon optimizer.lr=4e-3 model.drop_path=0",
        "trainer.max_epochs=16 optimizer=muon optimizer.lr=4e-3 model.drop_path=0 augment=none",
        "trainer.max_epochs=16 optimizer=muon optimizer.lr=4e-3 model.drop_path=0 model.patch_dropout=0.25",
        "trainer.max_epochs=16 optimizer=muon optimizer.lr=4e-3 model.drop_path=0 model.patch_dropout=0.5",
        "trainer.max_epochs=16 optimizer=muon optimizer.lr=4e-3 model.drop_path=0 trainer.image_schedule=[6,0.5]",
    ],
}
FOLDS = 5
OVERLAP = 1 / (FOLDS - 1)  # as vitrine.compare.folds has it
HALF = 0.52  # of the defaults' images; smaller batches leave fewer of an epoch out
SHORTER_HEAD = f"""
## In less time

A minute or two is long for a first command, and so are five minutes without bfloat16. Each row is trained {FOLDS} times
with seed 0, on four fifths of the training images, and measured on the fifth that is left. The second column is the
number of images that a training sees, next to the defaults'. The last two are paired by fold. The 95 % intervals
(Student's t) are [corrected for shared training images](uneven_data.md#cross-validation). The best of many rows looks
better than it is. The test images were not used. Rows with a † were trained later, in float32 on a processor without
bfloat16, where the defaults were not: they have no differences. With `model.patch_dropout` and
`trainer.image_schedule`, an image takes less time as well.

| command | images seen | validation accuracy | above the defaults' | loss minus the defaults' loss |
|---|---|---|---|---|
"""
RECIPE = "experiment=digits/quick"
# The row of each model that was chosen, and its defaults.
RECIPES = {RECIPE: BASE, f"{RECIPE} model=vit_nano model.patch_dropout=0": "model=vit_nano"}
RECIPE_SEEDS = range(5)
KEPT = f"""
Without `model.patch_dropout`, that row was trained on another processor: the choice between the two rests on processors
as well. The chosen one is a recipe, `{RECIPE}`, and not what `model=vit_tiny` does by itself: defaults have
to work with every other choice, but Muon trains the matrices inside the blocks, of which a linear probe and a model of
your own have none, and `position=conv` needs all patches of an image.
"""
RECIPE_HEAD = """
The recipe beside the defaults, in turn, seed by seed, on the test images:
"""
RECIPE_TEXT = """
{table}

Accuracy minus the defaults' with the same seed: {above}; time: {share} of theirs. {precision} on {machine}; {device};
{commits}.
"""
RECIPE_TAIL = """
Half the epochs are more than half the time, as a step with Muon is longer
([speed.md](speed.md#what-muon-adds-to-a-step)). Written by `python benchmarks/studies/defaults.py recipe`.
"""
TAIL = """
Written by `python benchmarks/studies/defaults.py`; {precision} on {machine}; {device}; {commit}.
"""


def main() -> None:
    """Train what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=list(PARTS), default="changes", help="which table")
    parser.add_argument("--table", action="store_true", help="train nothing, only write the page")
    options = parser.parse_args()
    if not options.table:
        known = json.loads(JSON.read_text())
        JSON.write_text(json.dumps(known | PARTS[options.part](known), indent=1) + "\n")
    results = json.loads(JSON.read_text())
    PAGE.write_text(page(results))
    if measured := results.get("recipe"):
        write_recipe_heads(measured[:1])


def train_changes(known: Mapping[str, Any]) -> dict[str, Any]:
    """Train the changes of the first table, and return their values."""
    for change in CHANGES:
        train_seeds(runs_of(change), [*BASE.split(), *change.split()])
    return collect()


def train_shorter(known: Mapping[str, Any]) -> dict[str, Any]:
    """Train the sweeps of the second table that are not among the ``known`` results, and return the values of all."""
    folds = [f"data.folds={FOLDS}", f"data.fold={','.join(map(str, range(FOLDS)))}"]
    workers = ["hydra/launcher=process", "launcher.workers=2", "launcher.threads=1"]
    found = []
    for model, change in shorter_trainings():
        if own := [run for run in known["shorter"] if (run["model"], run["change"]) == (model, change)]:
            found += own
            continue
        sweep = ["-m", f"model={model}", *change.split(), *folds, *workers]
        sweep.append(f'hydra.sweep.dir="{shorter_folder(model, change).relative_to(ROOT)}"')
        if run_command("train.py", *sweep).code:
            raise SystemExit(f"run `python train.py {' '.join(sweep)}` to see why it failed")
        found += collect_shorter(model, change)
    return {"shorter": found}


def train_recipe(known: Mapping[str, Any]) -> dict[str, Any]:
    """Train each recipe and its defaults over seeds, in turn, unless ``known``, and return what they came to."""
    results = {result["command"].removeprefix("python train.py "): result for result in known["recipe"]}
    for pair in RECIPES.items():
        if pair[0] in results:
            continue
        folders = {command: OUT / "recipe" / "_".join(command.split()) for command in pair}
        for seed in RECIPE_SEEDS:
            for command, folder in folders.items():
                train_seed(folder / f"seed-{seed}", seed, command.split())
        results |= {command: summarize(command, finished_runs(folder)) for command, folder in folders.items()}
    return {"recipe": list(results.values())}


def shorter_trainings() -> list[tuple[str, str]]:
    """Model and change of each row of the second table."""
    return [(model, change) for model, changes in SHORTER.items() for change in changes]


def shorter_folder(model: str, change: str) -> Path:
    """Folder of the sweep of a row of the second table."""
    return OUT / "shorter" / "_".join([model, *change.split()])


def collect_shorter(model: str, change: str) -> list[dict[str, Any]]:
    """The values of the runs of a row of the second table."""
    found = []
    for record in map(RunRecord, sorted(shorter_folder(model, change).glob("data.fold-*"))):
        facts, metrics, data = record.facts, record.metrics, record.config["data"]
        images = facts["epochs"] * facts["steps_per_epoch"] * data["batch_size"]
        run = {"model": model, "change": change, "fold": data["fold"], "images": images}
        run |= {"commit": facts["code"].get("commit"), "device": facts["device"], "precision": facts["precision"]}
        found.append(run | {key: metrics[key] for key in ("val/acc", "val/loss")})
    return found


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


PARTS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "changes": train_changes,
    "shorter": train_shorter,
    "recipe": train_recipe,
}


def page(results: Mapping[str, Any]) -> str:
    """Text of docs/defaults.md."""
    val = results["images"]["val"]
    head = HEAD.format(train=results["images"]["train"], epochs=results["epochs"], val=val, image=1 / val)
    if "runs" not in results:  # measured before the values of runs were kept
        rows, shared = results["rows"], results
        commit = f"at commit {results['commit']}, {OTHER_WEIGHTS}"
    else:
        runs = results["runs"]
        rows = table(runs)
        shared = {name: " or ".join(sorted({run[name] for run in runs})) for name in ("device", "precision")}
        commit = f"at commit {' and '.join(sorted({str(run['commit'])[:7] for run in runs}))}"
    facts = {"precision": shared["precision"], "device": shared["device"]}
    text = head + "\n".join(rows) + "\n" + TAIL.format(machine=results["machine"], commit=commit, **facts)
    if shorter := results.get("shorter"):
        commits = listed(sorted({run["commit"][:7] for run in shorter}))
        text += SHORTER_HEAD + "\n".join(shorter_table(shorter)) + "\n"
        text += f"\nOf the rows with at most {HALF} of the images, `{shortest(shorter)}` has the lowest loss.\n"
        text += KEPT
        text += f"\nWritten by `python benchmarks/studies/defaults.py shorter`, at commits {commits}.\n"
    if measured := results.get("recipe"):
        pairs = zip(measured[::2], measured[1::2], strict=True)
        text += RECIPE_HEAD + "".join(recipe_text(*pair) for pair in pairs) + RECIPE_TAIL
    return text


def recipe_text(recipe: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """What a recipe gained over the defaults of its model, and what it took."""
    pairs = zip(recipe["test/acc"], defaults["test/acc"], strict=True)
    above = ConfidenceInterval.of([own - other for own, other in pairs])
    times = zip(recipe["seconds"], defaults["seconds"], strict=True)
    share = sorted(own / other for own, other in times)
    return RECIPE_TEXT.format(
        table="\n".join(cost_table([recipe, defaults])),
        above=above,
        share=f"{share[0]:.2f} to {share[-1]:.2f}",
        commits=f"at {commits_of([recipe, defaults])}",
        **{key: recipe[key] for key in ("precision", "machine", "device")},
    )


def shortest(runs: Sequence[Mapping[str, Any]]) -> str:
    """The change of the first model with the lowest mean loss, of those that take few enough images."""
    first = [run for run in runs if run["model"] == runs[0]["model"]]
    most = HALF * first[0]["images"]
    losses: dict[str, list[float]] = {}
    for run in first:
        if run["images"] <= most:
            losses.setdefault(run["change"], []).append(run["val/loss"])
    return min(losses, key=lambda change: sum(losses[change]) / len(losses[change]))


def shorter_table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The second table's rows: each beside the defaults of its model."""
    rows = []
    for model, change in dict.fromkeys((run["model"], run["change"]) for run in runs):
        own, defaults = (
            [run for run in runs if (run["model"], run["change"]) == (model, wanted)] for wanted in (change, "")
        )
        cells = [
            f"{own[0]['images'] / defaults[0]['images']:.2f}",
            str(ConfidenceInterval.of([run["val/acc"] for run in own], OVERLAP)),
        ]
        for key in ("val/acc", "val/loss"):
            above = [run[key] - default[key] for run, default in zip(own, defaults, strict=True)]
            paired = change and own[0].get("precision") == defaults[0].get("precision")
            cells.append(str(ConfidenceInterval.of(above, OVERLAP)) if paired else "")
        mark = " †" if own[0].get("precision") == "32-true" else ""
        rows.append(f"| `{f'model={model} {change}'.strip()}`{mark} | {' | '.join(cells)} |")
    return rows


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
