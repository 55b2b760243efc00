"""Wall-clock time that recipes take to reach an accuracy: writes docs/time_to_accuracy.md with its table and figure.

Also writes the heads of the recipes.

python benchmarks/studies/time_to_accuracy.py cifar10/cpu                        # trains missing seeds, then writes
python benchmarks/studies/time_to_accuracy.py cifar10/best trainer.max_time=10m  # in slices: exit code 75, then rerun
python benchmarks/studies/time_to_accuracy.py --table                            # only writes
python benchmarks/studies/time_to_accuracy.py --quick cifar10/best               # a check of two steps; writes nothing
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seeds import (
    NEUTRAL,
    ROOT,
    SEEDS,
    STUDIES,
    commits_of,
    cost_table,
    finished_runs,
    format_result,
    had_other_weights,
    other_weights_note,
    split_arguments,
    summarize,
    train_seeds,
    write_recipe_heads,
)

from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.runs import RunRecord

OUT = ROOT / "outputs" / "time_to_accuracy"
JSON = STUDIES / "time_to_accuracy.json"
PAGE = ROOT / "docs" / "time_to_accuracy.md"
FIGURE = ROOT / "docs" / "images" / "time_to_accuracy.png"
RECIPES = ("cifar10/cpu", "cifar10/fast", "cifar10/best", "cifar10/stem")
QUICK = ["debug.limit_batches=2", "trainer.max_epochs=1", "accelerator=cpu"]
THRESHOLDS = (0.80, 0.90, 0.93, 0.94, 0.95)
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377")
HEAD = """# Time to accuracy

Wall-clock time from the start of a command until its model reaches an accuracy on the validation images, which are
split off the training images and evaluated after each epoch. The first epoch at or above the threshold counts. The test
images are used once, at the end of each run, with the epoch that was best on the validation images.

The time includes importing libraries, reading the data, compiling, training, and validating each epoch. Two parts of it
are also shown on their own: start-up (until training is set up) and compiling. A run trained in slices counts the
start-up of each slice. Values are means over seeds with a 95 % interval (Student's t); where only some seeds reach a
threshold, over those that do.

"""

Curve = list[tuple[float, float]]  # (seconds since the command's start, validation accuracy) after each epoch


def main() -> None:
    """Train what is missing, then write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="train nothing, only write")
    parser.add_argument("--quick", action="store_true", help="two steps, to check that it works; writes nothing")
    parser.add_argument("--data-root", default="data", help="folder of CIFAR-10; downloaded if missing")
    parser.add_argument("--at-once", type=int, default=1, help="seeds that train side by side and share the device (1)")
    parser.add_argument(
        "arguments", nargs="*", metavar="RECIPE|KEY=VALUE", help=f"of {', '.join(RECIPES)}; then overrides"
    )
    options = parser.parse_intermixed_args()
    recipes, overrides = split_arguments(parser, options.arguments, RECIPES, NEUTRAL)
    if bool(recipes) == options.table:
        parser.error(f"name recipes to train ({', '.join(RECIPES)}), or pass --table")
    if options.quick:
        for recipe in recipes:
            place = OUT / "quick" / recipe
            train_seeds(place, [f"experiment={recipe}", f"data.root={options.data_root}", *QUICK, *overrides])
            print(table_row(recipe, collect(recipe, place), 0))
        return
    results = json.loads(JSON.read_text()) if JSON.exists() else {}
    for recipe in recipes:
        arguments = [f"experiment={recipe}", f"data.root={options.data_root}", *overrides]
        train_seeds(OUT / recipe, arguments, options.at_once)
        results[recipe] = collect(recipe, OUT / recipe) | {"at_once": options.at_once}
        rows = [f'"{name}": {json.dumps(results[name])}' for name in RECIPES if name in results]
        JSON.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    PAGE.write_text(page(results))
    if results:
        draw(results)
    write_recipe_heads(results.values())


def collect(recipe: str, folder: Path) -> dict[str, Any]:
    """Results of a recipe's finished runs under ``folder``, with their curves."""
    runs = finished_runs(folder)
    return summarize(f"experiment={recipe}", runs) | {
        "val_images": runs[0]["images"]["val"],
        "start_up": [[session["seconds"] for session in run["start_ups"]] for run in runs],
        "compiling": [sum(session["compiling"] for session in run["start_ups"]) for run in runs],
        "curves": [curve(run["start_ups"], RunRecord(run["folder"]).history()) for run in runs],
    }


def curve(start_ups: Sequence[Mapping[str, float]], history: Sequence[Mapping[str, float]]) -> Curve:
    """Seconds since the command's start and validation accuracy, after each epoch.

    Seconds in metrics.csv start when training is set up and continue in the next session; the start-up of each session
    is added to them.
    """
    points = []
    for row in history:
        if "val/acc" in row:
            start_up = sum(session["seconds"] for session in start_ups if session["step"] < row["step"])
            points.append((round(row["seconds"] + start_up, 1), round(row["val/acc"], 4)))
    return points


def first_reached(points: Sequence[Sequence[float]], threshold: float) -> float | None:
    """Seconds until the accuracy first reached ``threshold``; None if it never did."""
    return next((seconds for seconds, accuracy in points if accuracy >= threshold), None)


def page(results: Mapping[str, Any]) -> str:
    """Text of docs/time_to_accuracy.md."""
    titles = [f"to {threshold:.0%}" for threshold in THRESHOLDS]
    columns = ["recipe", *titles, "whole command", "start-up", "compiling", "test accuracy", "on"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += [table_row(recipe, results.get(recipe), len(columns)) for recipe in RECIPES]
    text = HEAD + "\n".join(lines) + "\n"
    if results:
        images = ", ".join(sorted({f"{result['val_images']:,}" for result in results.values()}))
        text += f"\nValidation images: {images}.\n\n" + "".join(f"{line}\n" for line in cost_lines(results))
        text += f"\n![Validation accuracy over time](images/{FIGURE.name})\n"
    command = "python benchmarks/studies/time_to_accuracy.py RECIPE"
    return text + f"\n`{command}` measures a row; see `--help` for measuring in slices.\n"


def cost_lines(results: Mapping[str, Any]) -> list[str]:
    """The table of accuracy, time and memory, followed by the machine and the recipes that were not measured."""
    places = sorted({"{machine}, {device}, torch {torch}".format(**result) for result in results.values()})
    missing = ", ".join(f"`{recipe}`" for recipe in RECIPES if recipe not in results)
    seeds = ", ".join(map(str, SEEDS))
    commits = [commit for result in results.values() for commit in result["commits"]]
    lines = [*cost_table(results.values()), ""]
    lines.append(f"Means over seeds {seeds} with 95 % intervals (Student's t), on {'; '.join(places)}.")
    lines += [result["note"] for result in results.values() if "note" in result]  # of one measurement, written by hand
    lines += [f"Not yet measured: {missing}."] if missing else []
    return [*lines, *other_weights_note(commits)]


def table_row(recipe: str, result: Mapping[str, Any] | None, columns: int) -> str:
    """A recipe's row of the page's table; ``columns`` pads the row of a recipe without a result."""
    command = f"`python train.py experiment={recipe}`"
    if result is None:
        return f"| {command} | not yet measured |{' |' * (columns - 2)}"
    curves = result["curves"]
    cells = [command]
    for threshold in THRESHOLDS:
        times = [seconds for points in curves if (seconds := first_reached(points, threshold)) is not None]
        count = "" if len(times) == len(curves) else f" ({len(times)} of {len(curves)})"
        cells.append(f"{format_seconds(times)}{count}" if times else "not reached")
    start_ups = [sum(sessions) for sessions in result["start_up"]]
    cells += [format_seconds(values) for values in (result["seconds"], start_ups, result["compiling"])]
    where = f"{result['device']}, {result['precision']}, torch {result['torch']}"
    if result.get("at_once", 1) > 1:
        where += f", {result['at_once']} seeds at once"
    where += f", {commits_of([result])}"
    where = f"{result['machine']}, {where}" if result["device"].startswith("CPU") else where
    mark = " †" * had_other_weights(result["commits"])
    cells += [f"{format_result(result)[0]} ({len(curves)} seeds){mark}", where]
    return f"| {' | '.join(cells)} |"


def format_seconds(values: Sequence[float]) -> str:
    """Mean seconds, with the interval if there is one."""
    mean = ConfidenceInterval.of(values)
    digits = 0 if mean.mean >= 100 else 1
    return (
        f"{mean.mean:,.{digits}f} s"
        if math.isnan(mean.half_width)
        else f"{mean.mean:,.{digits}f} ± {mean.half_width:,.{digits}f} s"
    )


def draw(results: Mapping[str, Any]) -> None:
    """Draw validation accuracy over time, a line per seed of each recipe."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for recipe, colour in zip(RECIPES, COLOURS, strict=True):
        for index, points in enumerate(results.get(recipe, {}).get("curves", [])):
            label = recipe if index == 0 else None
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=1, alpha=0.8, label=label)
    for threshold in THRESHOLDS:
        axes.axhline(threshold, color="#bbbbbb", linewidth=0.8, linestyle="--", zorder=0)
    axes.set(xscale="log", xlabel="seconds since the command's start", ylabel="validation accuracy", ylim=(0.5, 1.0))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.legend(frameon=False, loc="lower right")
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, dpi=110)


if __name__ == "__main__":
    main()
