"""Sections of the page on a run's results: curves, confusion, classes, calibration, images that it gets wrong."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitrine.compare.metric import MISSING
from vitrine.compare.predictions import INDEPENDENT, Calibration, Predictions, calibration, confusion
from vitrine.data.decode import ImageFile
from vitrine.errors import VitrineError, joined_lines
from vitrine.explain.run_images import RunImages
from vitrine.explain.scores import ClassScores, class_scores, wilson
from vitrine.explain.section import DrawnFigure, Numbers, RunSection
from vitrine.figure_style import COLOURS, QUIET, WIDTH, evenly, short_class_names, shorten, styled
from vitrine.inference.load import LoadedRun
from vitrine.runs import RunRecord
from vitrine.runs.predictions import BINS
from vitrine.text import class_name, isolated, listed, plural, printable
from vitrine.training import plots
from vitrine.training.lr_range import CURVE, read_curve
from vitrine.training.plots import CURVES

MAX_CLASSES = 100  # of a confusion matrix and of a table of classes
MAX_ROWS = 25  # of the figure of classes
SHOWN_WRONG = 12
MAX_EPOCHS = 60  # of a table
TITLES = {"loss": "Loss", "acc": "Accuracy"}


def curve_section(record: RunRecord) -> RunSection:
    """Curves by epoch, and by learning rate those of a range test."""
    if not (history := record.history()):
        return RunSection("curves", "Curves", "No step has been logged yet.")
    figures = []
    held_out = record.holds_out
    kind = "validation images" if held_out else "validation images, which are trained on"
    for name, title in TITLES.items():
        values = [(row["epoch"], row[f"val/{name}"]) for row in history if f"val/{name}" in row and "epoch" in row]
        alt = f"{title} by epoch, on training and {kind}."
        if values:
            best_epoch, best = (min if name == "loss" else max)(values, key=lambda pair: pair[1])
            alt += f" On validation images it is best at epoch {best_epoch:.0f}: {best:.4g}."
        figure = plots.curves(history, [name], width=WIDTH, held_out=held_out)
        caption = f"{CURVES[name].capitalize()} by epoch."
        caption += "" if held_out else " Validation images are training images here."
        figures.append(DrawnFigure(f"curve_{name}", title, caption, alt, figure, _by_epoch(history, name)))
    found = (record.facts.get("lr_range") or {}).get("found")
    if found is None or not (record.path / CURVE).is_file():
        return RunSection("curves", "Curves", figures=figures)
    try:
        figures.append(_range_figure(*read_curve(record), found))
    except (OSError, ValueError, LookupError, TypeError) as error:
        return RunSection("curves", "Curves", f"{CURVE} is damaged: {joined_lines(error)}.", figures)
    return RunSection("curves", "Curves", figures=figures)


def _by_epoch(history: plots.Rows, name: str) -> Numbers:
    """A metric as a table: for epochs evenly spaced, the means of what was logged in each."""
    labels = {f"{stage}/{name}": label.partition(",")[0] for stage, label, *_ in plots.STAGES}
    logged: dict[int, dict[str, list[float]]] = {}
    for row in (row for row in history if "epoch" in row):
        for key in labels.keys() & row.keys():
            logged.setdefault(int(row["epoch"]), {}).setdefault(key, []).append(row[key])
    keys = [key for key in labels if any(key in found for found in logged.values())]
    numbers = [["epoch", *(labels[key] for key in keys)]]
    epochs = sorted(logged)
    for epoch in (epochs[index] for index in evenly(len(epochs), MAX_EPOCHS)):
        means = [f"{np.mean(logged[epoch][key]):.4g}" if key in logged[epoch] else MISSING for key in keys]
        numbers.append([str(epoch), *means])
    return numbers if keys else []


def _range_figure(rates: Sequence[float], losses: Sequence[float], found: float) -> DrawnFigure:
    """The range test that found the learning rate."""
    alt = f"Loss in each of {plural(len(rates), 'step')} in which the learning rate rose from {rates[0]:.1e} to "
    alt += f"{rates[-1]:.1e}, and its running mean; {found:g} was found."
    caption = "Loss while the learning rate rose, before training. Half the rate of the lowest mean was taken."
    numbers = [["learning rate", "loss"], *([f"{x:.2e}", f"{y:.4g}"] for x, y in zip(rates, losses, strict=True))]
    figure = plots.lr_range(rates, losses, found, WIDTH)
    return DrawnFigure("lr_range", "Learning rate", caption, alt, figure, numbers)


def prediction_sections(images: RunImages, predictions: Predictions, names: Sequence[str]) -> list[RunSection]:
    """Sections on the predictions for the images."""
    found = [
        confusion_section(predictions, names, images.kind),
        class_section(predictions, names, images.kind),
        calibration_section(calibration([predictions]), multi_label=predictions.multi_label),
        wrong_section(images, predictions, names),
    ]
    if images.result.config.get("data.group") and predictions.groups is None:
        classes = found[1]
        alike = f"They take each {images.kind} as independent, which those of one group are not."
        found[1] = replace(classes, text=f"{classes.text} {alike}")
    if images.stage == "test":
        return found
    note = f"The data set has no test images: these are validation images, {_role(images.run)}."
    found[0] = replace(found[0], text=f"{note} {found[0].text}")
    return [replace(section, title=f"{section.title} (validation images)") for section in found]


def _role(run: LoadedRun) -> str:
    """What validation images were used for in training."""
    if not run.record.holds_out:
        return "which were trained on"
    return "which selected nothing" if run.config.callbacks.monitor == "last" else "on which the epoch was selected"


def confusion_section(predictions: Predictions, names: Sequence[str], kind: str = "test image") -> RunSection:
    """The confusion matrix, as counts and as shares of the true class; ``kind`` is what an image is called."""
    if predictions.multi_label:
        text = "There is no matrix: an image has several labels, or none. The scores of the classes are below."
        return RunSection("confusion", "Confusion", text)
    if len(names) > MAX_CLASSES:
        text = f"A matrix of {len(names):,} classes is too large to be read; the scores of the classes are below."
        return RunSection("confusion", "Confusion", text)
    counts = confusion([predictions], len(names))
    sizes = np.bincount(predictions.labels, minlength=len(names))[: len(names)]
    wrong = counts - np.diag(np.diag(counts))
    text, to_hundred = f"Every {kind} is classified correctly.", ": each row sums to 100"
    if mistakes := int((~predictions.correct).sum()):
        pairs = np.dstack(np.unravel_index(np.argsort(-wrong, axis=None, kind="stable")[:3], wrong.shape))[0]
        in_text = list(map(isolated, names))
        often = [f"{in_text[a]} as {in_text[b]} ({wrong[a, b]})" for a, b in pairs if wrong[a, b]]
        text = f"{plural(mistakes, 'mistake')} in {plural(len(predictions.labels), kind)}."
        text += f" Most often: {listed(often)}." if often else ""
    most = int(sizes.argmax())
    always = 100 * sizes[most] / len(predictions.labels)
    text += f" Always answering {isolated(names[most])} would be right for {always:.2f} %."
    if outside := int((predictions.predicted >= len(names)).sum()):
        text += f" {plural(outside, 'image was', 'images were')} taken for an output without a class."
        to_hundred = ""
    table = [
        ["true \\ predicted", *names],
        *([name, *map(str, line)] for name, line in zip(names, counts, strict=True)),
    ]
    shares = counts / np.maximum(sizes, 1)[:, None]
    in_percent = [[f"{100 * share:.1f}" for share in line] for line in shares]
    caption = "Coloured by the share of the true class, on a scale on which rare mistakes can be seen."
    figures = [
        DrawnFigure(
            "confusion",
            "Counts",
            caption,
            f"Confusion matrix in counts. {text}",
            plots.confusion(counts, sizes, names, WIDTH),
            table,
        ),
        DrawnFigure(
            "confusion_normalised",
            "Normalised",
            f"In per cent of the true class{to_hundred}.",
            f"Confusion matrix in per cent of the true class. {text}",
            plots.confusion(counts, sizes, names, WIDTH, normalised=True),
            [table[0], *([name, *line] for name, line in zip(names, in_percent, strict=True))],
        ),
    ]
    return RunSection("confusion", "Confusion", text, figures)


def class_section(predictions: Predictions, names: Sequence[str], kind: str = "test image") -> RunSection:
    """Recall, precision and F1 of each class with intervals, the lowest F1 first; an image is called ``kind``."""
    scores = class_scores(predictions.labels, predictions.predicted, len(names), predictions.groups)
    order = np.argsort(np.nan_to_num(scores.f1[:, 0], nan=2.0), kind="stable")[:MAX_CLASSES]
    known = [index for index in order if scores.support[index] > 0]
    if not known:
        return RunSection("classes", "Classes", f"No class has {kind}s.")
    what = "the share of its images that are taken for it" if predictions.multi_label else "a class's accuracy"
    text = f"Recall is {what}; precision is the share of the images taken for it that are of it. "
    over = f"{kind}s" if predictions.groups is None else f"groups of {kind}s"
    text += f"95 % intervals over {over}: Wilson's; that of F1 follows from it."
    if len(names) > MAX_CLASSES:
        text += f" Of {len(names):,} classes, the {MAX_CLASSES} with the lowest F1 are listed."
    table = [["class", "images", "recall (%)", "precision (%)", "F1 (%)"]]
    for index in order:
        cells = [_with_interval(values[index]) for values in (scores.recall, scores.precision, scores.f1)]
        table.append([names[index], f"{scores.support[index]:,}", *cells])
    worst = known[0]
    alt = f"Recall, precision and F1 of {plural(min(len(known), MAX_ROWS), 'class', 'classes')}, the lowest F1 on top: "
    alt += f"{isolated(names[worst])}, {_with_interval(scores.f1[worst])} %."
    caption = "Bars are 95 % intervals." + (f" The {MAX_ROWS} lowest." if len(known) > MAX_ROWS else "")
    figure = draw_scores(scores, known[:MAX_ROWS], names)
    return RunSection("classes", "Classes", text, [DrawnFigure("classes", "", caption, alt, figure, table)])


@styled()
def draw_scores(scores: ClassScores, shown: Sequence[int], names: Sequence[str]) -> Figure:
    """Draw recall, precision and F1 of the classes ``shown``, from top to bottom."""
    figure = Figure(figsize=(WIDTH, 1.0 + 0.32 * len(shown)))
    axes = figure.subplots()
    drawn = {"recall": (scores.recall, "o"), "precision": (scores.precision, "s"), "F1": (scores.f1, "D")}
    for place, (label, (values, marker)) in enumerate(drawn.items()):
        value, low, high = 100 * values[shown].T
        heights = np.arange(len(shown)) + 0.25 * (place - 1)
        axes.errorbar(
            *(value, heights, None, [value - low, high - value], marker),
            color=COLOURS[place],
            markersize=4,
            elinewidth=1.2,
            label=label,
        )
    short_names = shorten(names)
    axes.set_yticks(range(len(shown)), [short_names[index] for index in shown])
    axes.set(xlabel="%", ylim=(len(shown) - 0.5, -0.5))
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def calibration_section(calibrated: Calibration, *, multi_label: bool = False) -> RunSection:
    """The reliability diagram and the expected calibration error; ``multi_label`` says what confidence is then."""
    below = float(np.average(calibrated.confidence - calibrated.accuracy, weights=calibrated.count))
    kind, points = "over" if below > 0 else "under", 100 * abs(below)
    how = f"{kind}confident by {points:.2f} points" if points >= 0.005 else "as confident as it is accurate"
    text = f"Expected calibration error (ECE, {BINS} bins): {100 * calibrated.error:.2f} points. "
    text += f"On average, the model is {how}."
    text += f" {INDEPENDENT}" if multi_label else ""
    table = [["confidence (%)", "accuracy (%)", "images"]]
    values = zip(calibrated.confidence, calibrated.accuracy, calibrated.count, strict=True)
    table += [
        [f"{100 * confidence:.1f}", f"{100 * accuracy:.1f}", f"{count:,}"] for confidence, accuracy, count in values
    ]
    caption = (
        "Accuracy of images by the model's confidence in them, with 95 % intervals (Wilson). On the dotted line, "
        "confidence is accuracy; below it, the model is overconfident. Bars: share of the images in each bin."
    )
    figure = draw_reliability(calibrated)
    return RunSection(
        "calibration", "Calibration", text, [DrawnFigure("reliability", "", caption, text, figure, table)]
    )


@styled()
def draw_reliability(calibrated: Calibration) -> Figure:
    """Draw the reliability diagram, above the share of the images in each bin."""
    figure = Figure(figsize=(WIDTH, 4.4))
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
    confidence = 100 * calibrated.confidence
    value, low, high = 100 * wilson(np.rint(calibrated.accuracy * calibrated.count), calibrated.count).T
    axes.plot([0, 100], [0, 100], ":", color=QUIET, linewidth=1)
    axes.errorbar(
        confidence, value, [value - low, high - value], fmt="o-", color=COLOURS[0], markersize=4, linewidth=1.5
    )
    axes.set(ylabel="accuracy (%)", ylim=(-3, 103))
    axes.grid()
    share = 100 * calibrated.count / calibrated.count.sum()
    below.bar(100 * calibrated.centre, share, width=100 / BINS - 1, color=COLOURS[0])
    below.set(xlabel="confidence (%)", ylabel="images (%)", xlim=(-1, 104))
    below.yaxis.set_major_locator(MaxNLocator(3))
    return figure


def wrong_section(run_images: RunImages, predictions: Predictions, names: Sequence[str]) -> RunSection:
    """The images with the largest loss, and the mistakes that the model is most confident of."""
    wrong, kind = np.flatnonzero(~predictions.correct), run_images.kind
    if not len(wrong):
        return RunSection("wrong", "Wrong images", f"Every {kind} is classified correctly.")
    worst = wrong[np.argsort(predictions.true_probability[wrong], kind="stable")][:SHOWN_WRONG]
    confident = predictions.mistakes[:SHOWN_WRONG]
    try:
        shown = [*worst.tolist(), *confident.tolist()]
        pixels, files = run_images.pixels(shown), dict(zip(shown, run_images.files(shown), strict=False))
    except (VitrineError, OSError, ImportError) as error:
        return RunSection("wrong", "Wrong images", f"The pixels are not available: {joined_lines(error)}.")
    true, guessed = ("labels", "wrong labels") if predictions.multi_label else ("class", "wrong class")
    kinds = {
        "worst": ("Largest loss", f"The true {true} got the lowest probability.", worst, pixels[: len(worst)]),
        "confident": (
            "Most confident",
            f"The {guessed} got the highest probability.",
            confident,
            pixels[len(worst) :],
        ),
    }
    figures = []
    for key, (title, what, chosen, images) in kinds.items():
        rows = [
            [
                str(index),
                class_name(names, predictions.labels[index].tolist()),
                class_name(names, predictions.predicted[index].tolist()),
                f"{100 * predictions.confidence[index]:.1f}",
                f"{100 * predictions.true_probability[index]:.1f}",
            ]
            for index in chosen.tolist()
        ]
        taken = [f"{isolated(row[1])} taken for {isolated(row[2])}, {row[3]} %" for row in rows]
        alt = f"{title}: {'; '.join(taken)}."
        caption = f"{what} Above each image its {true}, below what it was taken for and with which probability."
        caption += " That of several labels is as if they were independent." if predictions.multi_label else ""
        named = [files[index] for index in chosen.tolist() if files]
        heads = [kind, true, "taken for", "probability (%)", f"of the {true} (%)"]
        figure, table = draw_images(images, rows, names, named), [heads, *rows]
        if named:
            table = [[*row, file] for row, file in zip(table, ["file", *map(printable, named)], strict=True)]
        figures.append(DrawnFigure(f"wrong_{key}", title, caption, alt, figure, table))
    text = f"Of {plural(len(predictions.labels), kind)}, {plural(len(wrong), 'is', 'are')} wrong."
    text += " An image is right if all of its labels are." if predictions.multi_label else ""
    return RunSection("wrong", "Wrong images", text, figures)


@styled()
def draw_images(
    images: np.ndarray, rows: Sequence[Sequence[str]], classes: Sequence[str], files: Sequence[ImageFile] = ()
) -> Figure:
    """Draw images (B, C, H, W) uint8 in rows of four, each with its class, what it was taken for, and its file."""
    lines = -(-len(images) // 4)
    figure = Figure(figsize=(WIDTH, (1.6 if files else 1.45) * lines))
    grid = figure.subplots(lines, 4, squeeze=False).ravel()
    for axes in grid[len(images) :]:
        axes.set_axis_off()
    _, truth, guesses, shares, _ = zip(*rows, strict=True)
    true_names, guessed_names = short_class_names(truth, classes, 12), short_class_names(guesses, classes, 9)
    below = [f"{guess}, {float(share):.0f} %" for guess, share in zip(guessed_names, shares, strict=True)]
    if files:
        own_names = [file.name if isinstance(file, Path) else str(file) for file in files]
        below = [f"{text}\n{name}" for text, name in zip(below, short_class_names(own_names, (), 15), strict=True)]
    for axes, image, true, text in zip(grid, images, true_names, below, strict=False):
        plots.show_image(axes, image)
        axes.set_title(true, fontsize=8, pad=2)
        axes.set_xlabel(text, fontsize=7 if files else 8, labelpad=2)
    return figure


def _with_interval(values: np.ndarray) -> str:
    """A share with its interval, in per cent: ``97.2 [91.3, 99.1]``."""
    value, low, high = 100 * values
    return "—" if np.isnan(value) else f"{value:.1f} [{low:.1f}, {high:.1f}]"
