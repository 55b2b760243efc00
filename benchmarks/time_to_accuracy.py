"""How long recipes take to an accuracy, from the command's start: docs/time_to_accuracy.md, with a table and a picture.

Also a table in README.md, and the heads of the recipes.

python benchmarks/time_to_accuracy.py cifar10/cpu                        # runs the seeds that are missing, then writes
python benchmarks/time_to_accuracy.py cifar10/best trainer.max_time=10m  # in slices: ends with 75, the same goes on
python benchmarks/time_to_accuracy.py --table                            # only writes
python benchmarks/time_to_accuracy.py --quick cifar10/best               # two steps, to see it work; writes nothing
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from running import (
    ROOT,
    SEEDS,
    WITHOUT_EFFECT,
    costs,
    finished_runs,
    in_words,
    names_and_overrides,
    summary,
    train_seeds,
    write_between,
    write_heads,
)

from vitrine.compare.statistics import Interval
from vitrine.runs import RunRecord

OUT = ROOT / "outputs" / "time_to_accuracy"
JSON = ROOT / "benchmarks" / "time_to_accuracy.json"
PAGE = ROOT / "docs" / "time_to_accuracy.md"
PICTURE = ROOT / "docs" / "images" / "time_to_accuracy.png"
RECIPES = ("cifar10/cpu", "cifar10/fast", "cifar10/best", "cifar10/stem")
QUICK = ["debug.limit_batches=2", "trainer.max_epochs=1", "accelerator=cpu"]
THRESHOLDS = (0.80, 0.90, 0.93, 0.94, 0.95)
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377")
HEAD = """# Time to accuracy

How long a command takes, from its start, until the model it trains reaches an accuracy. The accuracy is that on the
validation images, which are held out of the training images and measured after each epoch; the first epoch that reaches
it counts. The test images choose nothing: each run tests them once, at its end, with the epoch that was best on the
validation images.

The time is what passes on the wall: Python and its libraries, reading the data, compiling, training, and validating
each epoch. Start-up (until training is set up) and compiling stand apart as well; both are in the times before them. A
run in slices has the start-up of each slice in its times. Means over seeds with a 95 % interval (Student's t); where
not every seed gets there, of those that do.

"""

Curve = list[tuple[float, float]]


def main() -> None:
    """Run, collect, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--quick", action="store_true", help="small, to see that it works; writes nothing")
    parser.add_argument("--data-root", default="data", help="where CIFAR-10 lies, or is downloaded to")
    parser.add_argument("words", nargs="*", metavar="RECIPE|KEY=VALUE", help=f"of {', '.join(RECIPES)}; then overrides")
    options = parser.parse_args()
    recipes, overrides = names_and_overrides(parser, options.words, RECIPES, WITHOUT_EFFECT)
    if bool(recipes) == options.table:
        parser.error(f"name recipes to run ({', '.join(RECIPES)}), or --table")
    if options.quick:
        for recipe in recipes:
            place = OUT / "quick" / recipe
            train_seeds(place, [f"experiment={recipe}", f"data.root={options.data_root}", *QUICK, *overrides])
            print(row(recipe, collect(recipe, place), 0))
        return
    known = json.loads(JSON.read_text()) if JSON.exists() else {}
    for recipe in recipes:
        train_seeds(OUT / recipe, [f"experiment={recipe}", f"data.root={options.data_root}", *overrides])
        known[recipe] = collect(recipe, OUT / recipe)
        rows = [f'"{name}": {json.dumps(known[name])}' for name in RECIPES if name in known]
        JSON.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    write_page(known)
    write_between(ROOT / "README.md", "time_to_accuracy", told(known))
    write_heads(known.values())


def collect(recipe: str, folder: Path) -> dict[str, Any]:
    """What the finished runs of a recipe under ``folder`` reached, and when."""
    runs = finished_runs(folder)
    return summary(f"experiment={recipe}", runs) | {
        "val_images": runs[0]["images"]["val"],
        "start_up": [[one["seconds"] for one in run["start_ups"]] for run in runs],
        "compiling": [sum(one["compiling"] for one in run["start_ups"]) for run in runs],
        "curves": [curve(run["start_ups"], RunRecord(run["folder"]).history()) for run in runs],
    }


def curve(start_ups: Sequence[dict[str, float]], history: Sequence[dict[str, float]]) -> Curve:
    """After each epoch, seconds since the command's start and validation accuracy.

    Seconds in metrics.csv begin where training is set up, and go on in the next session; start-ups are added to them.
    """
    return [
        (
            round(row["seconds"] + sum(one["seconds"] for one in start_ups if one["step"] < row["step"]), 1),
            round(row["val/acc"], 4),
        )
        for row in history
        if "val/acc" in row
    ]


def reached(points: Sequence[Sequence[float]], accuracy: float) -> float | None:
    """When ``accuracy`` was first there."""
    return next((seconds for seconds, there in points if there >= accuracy), None)


def write_page(known: dict[str, Any]) -> None:
    """Write the table, and the picture if there is anything to draw."""
    titles = [f"to {accuracy:.0%}" for accuracy in THRESHOLDS]
    columns = ["recipe", *titles, "whole command", "start-up", "compiling", "test accuracy", "on"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += [row(recipe, known.get(recipe), len(columns)) for recipe in RECIPES]
    text = HEAD + "\n".join(lines) + "\n"
    if known:
        draw(known)
        images = sorted({f"{one['val_images']:,}" for one in known.values()})
        text += (
            f"\nValidation images: {', '.join(images)}.\n\n![Validation accuracy over time](images/{PICTURE.name})\n"
        )
    text += "\n`python benchmarks/time_to_accuracy.py RECIPE` measures a row; `--help` says how to do so in slices.\n"
    PAGE.write_text(text)


def told(known: dict[str, Any]) -> list[str]:
    """What README.md says of it: what was measured, and which recipes were not yet."""
    places = "; ".join(sorted({f"{one['machine']}, {one['device']}, torch {one['torch']}" for one in known.values()}))
    missing = ", ".join(f"`{recipe}`" for recipe in RECIPES if recipe not in known)
    seeds = ", ".join(map(str, SEEDS))
    said = [f"Means over seeds {seeds} with 95 % intervals (Student's t), on {places}."]
    return [*costs(known.values()), "", *said, *([f"Not yet measured: {missing}."] if missing else [])]


def row(recipe: str, one: dict[str, Any] | None, columns: int) -> str:
    """A recipe's line of the table."""
    command = f"`python train.py experiment={recipe}`"
    if one is None:
        return f"| {command} | not yet measured |{' |' * (columns - 2)}"
    cells = [command]
    for accuracy in THRESHOLDS:
        times = [when for points in one["curves"] if (when := reached(points, accuracy)) is not None]
        count = "" if len(times) == len(one["curves"]) else f" ({len(times)} of {len(one['curves'])})"
        cells.append(f"{seconds(times)}{count}" if times else "not reached")
    cells += [seconds(one["seconds"]), seconds([sum(some) for some in one["start_up"]]), seconds(one["compiling"])]
    where = f"{one['device']}, {one['precision']}, torch {one['torch']}"
    where = f"{one['machine']}, {where}" if one["device"].startswith("CPU") else where
    cells += [f"{in_words(one)[0]} ({len(one['curves'])} seeds)", where]
    return f"| {' | '.join(cells)} |"


def seconds(values: Sequence[float]) -> str:
    """A mean time with its interval."""
    mean = Interval.of(values)
    digits = 0 if mean.mean >= 100 else 1
    return f"{mean.mean:,.{digits}f} s" if mean.count == 1 else f"{mean.mean:,.{digits}f} ± {mean.half:,.{digits}f} s"


def draw(known: dict[str, Any]) -> None:
    """A line for each seed of each recipe."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for recipe, colour in zip(RECIPES, COLOURS, strict=True):
        for index, points in enumerate(known.get(recipe, {}).get("curves", [])):
            label = recipe if index == 0 else None
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=1, alpha=0.8, label=label)
    for accuracy in THRESHOLDS:
        axes.axhline(accuracy, color="#bbbbbb", linewidth=0.8, linestyle="--", zorder=0)
    axes.set(xscale="log", xlabel="seconds since the command's start", ylabel="validation accuracy", ylim=(0.5, 1.0))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.legend(frameon=False, loc="lower right")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
