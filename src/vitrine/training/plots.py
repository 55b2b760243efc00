"""Figures of a run: curves, confusion matrix, and what the model attends to."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, NullFormatter
from torch import Tensor

from vitrine.data.image_dataset import Split
from vitrine.figure_style import (
    ATTENTION,
    COLOURS,
    INK,
    WRONG,
    bare,
    blues,
    colour_bar,
    evenly,
    save,
    short_class_names,
    shorten,
    styled,
    text_width,
)
from vitrine.models import VisionTransformer, attended_patches
from vitrine.runs import RunRecord
from vitrine.runs.predictions import confusion_counts, predicted_classes
from vitrine.text import class_name, report
from vitrine.training.lit_module import Classifier
from vitrine.training.lr_range import read_curve, smoothed
from vitrine.training.metrics import by_target

TRAIN, VAL, TEST = COLOURS[:3]
STAGES = (
    ("train", "training", TRAIN, "-", ""),
    ("val", "validation", VAL, "-", "o"),
    ("test", "test, not used for selection", TEST, "--", "."),
)
CURVES = {"loss": "loss (nats)", "acc": "accuracy"}
MAX_IMAGES = 8  # of attention.png
MAX_COUNTS = 12  # classes of a confusion matrix with a number in each cell
NAMES_PER_INCH = 4  # of one's width that fit beside it
MAX_CLASSES = 1000  # classes of one: of more, several share a pixel, and it takes 80 bytes for each pair of classes

Rows = Sequence[Mapping[str, float]]


def draw_curves(record: RunRecord) -> Path:
    """Draw curves.png: loss and accuracy by epoch on training, validation and, if measured, test images."""
    figure = curves(record.history(), list(CURVES), width=10, held_out=record.holds_out)
    return save(figure, record.path / "curves.png")


@styled()
def curves(rows: Rows, names: Sequence[str], width: float, *, held_out: bool = True) -> Figure:
    """Return curves of metrics side by side.

    Args:
        rows: of metrics.csv.
        names: keys of ``CURVES``.
        width: of the figure, in inches.
        held_out: whether the validation images were not trained on; otherwise the legend says that they were.
    """
    figure = Figure(figsize=(width, max(4.0, 0.7 * width) if len(names) == 1 else 4.0))
    steps_per_epoch = max((row["step"] / row["epoch"] for row in rows if "val/acc" in row), default=1.0)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for stage, label, colour, line, marker in STAGES:
            key = f"{stage}/{name}"
            points = [(row["step"] / steps_per_epoch, row[key]) for row in rows if key in row]
            if points:
                marker = marker or ("." if len(points) == 1 else "")  # a line has no end
                label += " (trained on)" if stage == "val" and not held_out else ""
                axes.plot(*zip(*points, strict=True), line, label=label, color=colour, marker=marker, markersize=3)
        axes.set_xlim(left=0)
        axes.set(xlabel="epoch", ylabel=CURVES[name])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid()
        if axes.lines:
            axes.legend()
    return figure


def draw_lr_range(record: RunRecord, found: float) -> Path:
    """Draw lr_range.png: the losses of lr_range.csv by learning rate, and the rate that was found."""
    return save(lr_range(*read_curve(record), found), record.path / "lr_range.png")


@styled()
def lr_range(rates: Sequence[float], losses: Sequence[float], found: float, width: float = 6.0) -> Figure:
    """Return the loss of each step of a range test as a dot, their running mean as a line, and the chosen rate."""
    figure = Figure(figsize=(width, 2 / 3 * width))
    axes = figure.subplots()
    axes.plot(rates, losses, ".", color=TRAIN, alpha=0.5, markersize=4, label="step")
    mean = smoothed(losses)
    axes.plot(rates[: len(mean)], mean, color=TRAIN, label="running mean")
    axes.axvline(found, color=VAL, linestyle="--", label=f"found: {found:g}")
    low, high = min(mean), max(mean[0], min(mean))
    axes.set(xscale="log", xlabel="learning rate", ylabel="training loss (nats)")
    axes.xaxis.set_major_formatter("{x:.0e}")  # others are in mathematical notation, which the style turns off
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(low - 0.3 * (high - low) - 0.1, high + 0.6 * (high - low) + 0.1)  # what has diverged is outside
    axes.grid()
    axes.legend()
    return figure


def draw_confusion(record: RunRecord, logits: np.ndarray, labels: np.ndarray, classes: list[str]) -> Path | None:
    """Draw confusion.png: test labels against predictions; with counts in the cells of up to twelve classes.

    Of more than ``MAX_CLASSES`` classes there is none, which a line reports.
    """
    path = record.path / "confusion.png"
    if len(classes) > MAX_CLASSES:
        path.unlink(missing_ok=True)  # of before the run was resumed
        report(f"confusion.png is drawn of up to {MAX_CLASSES:,} classes, not of {len(classes):,}")
        return None
    counts = confusion_counts(labels, predicted_classes(logits, labels), len(classes))
    sizes = np.bincount(labels, minlength=len(classes))[: len(classes)]
    figure = confusion(counts, sizes, classes, width=min(12.0, 3.5 + 0.45 * len(classes)))
    right = np.trace(counts) / max(1, len(labels))  # some may be taken for an output that is no class
    figure.suptitle(f"{len(labels):,} test images, {right:.2%} correct", fontsize=9)
    return save(figure, path)


@styled()
def confusion(
    counts: np.ndarray, sizes: np.ndarray, classes: Sequence[str], width: float, *, normalised: bool = False
) -> Figure:
    """Return a confusion matrix, coloured by the share of the true class; rare mistakes are emphasised.

    Args:
        counts: (classes, classes), true class by predicted class.
        sizes: (classes,) images of each class, also those that are taken for no class.
        classes: their names.
        width: of the figure, in inches.
        normalised: write shares of the true class, in per cent, in place of counts.
    """
    count = len(classes)
    shares = counts / np.maximum(sizes, 1)[:, None]
    figure = Figure(figsize=(width, 0.85 * width), layout="compressed")  # as is made for images
    axes = figure.subplots()
    image = axes.imshow(100 * shares, cmap=blues(), norm=PowerNorm(0.5, 0, 100))
    colour_bar(image, [axes], "share of the true class (%)").ax.set_yticks([0, 1, 5, 20, 50, 100])
    axes.set(xlabel="predicted", ylabel="true")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(True)
    if count <= MAX_COUNTS:
        texts = [[f"{100 * share:.0f}" for share in line] for line in shares] if normalised else counts.tolist()
        for row, column in zip(*np.nonzero(counts), strict=True):
            text = axes.text(column, row, str(texts[row][column]), ha="center", va="center", fontsize=8)
            text.set_in_layout(False)  # stands inside: measuring it takes time
    if count <= NAMES_PER_INCH * width:
        names = shorten(classes)
        long = max(map(text_width, names)) > 3
        axes.set_xticks(range(count), names, rotation=45 if long else 0)
        axes.set_yticks(range(count), names)
        if long:
            for label in axes.get_xticklabels():
                label.set(ha="right", rotation_mode="anchor")
    else:
        axes.set(xlabel="predicted (class number)", ylabel="true (class number)")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
    return figure


def draw_attention(record: RunRecord, module: Classifier, split: Split, classes: list[str]) -> Path:
    """Draw attention.png: up to eight images, evenly spaced in ``split``, and below them the model's attention rollout.

    Titles are true classes; predictions are below, in red if wrong.
    """
    module = module.cpu().eval()
    chosen = torch.tensor(evenly(len(split), MAX_IMAGES))
    ((images, labels),) = split.batches([chosen])
    maps: list[np.ndarray] = []
    found: list[Tensor] = []
    assert isinstance(module.model, VisionTransformer)  # rollout_problem
    with torch.no_grad():
        for image in images.cpu().split(1):
            found.append(module(image))
            maps.append(attended_patches(module.model, module.normalised(image))[0].numpy())
    logits, true = by_target(torch.cat(found), labels, module.config.data.classes_per_target)[0]
    predicted = logits > 0 if true.dim() == 2 else logits.argmax(dim=1)
    truth, guesses = ([class_name(classes, label) for label in given.tolist()] for given in (true, predicted))
    figure = attention(images.cpu().numpy(), np.stack(maps), truth, guesses, classes)
    return save(figure, record.path / "attention.png")


@styled()
def attention(
    images: np.ndarray, maps: np.ndarray, truth: Sequence[str], guesses: Sequence[str], classes: Sequence[str]
) -> Figure:
    """Return images in a row, and under each its map of attention, with a colour bar.

    Args:
        images: (B, C, H, W) uint8.
        maps: (B, rows, columns), shares that sum to 1 in each image.
        truth: names of the true classes.
        guesses: names of the predicted classes.
        classes: names of all classes.
    """
    height, width = images.shape[2:]
    figure = Figure(figsize=(1.05 * len(images) + 1.0, 2.1 * height / width + 0.6))
    above, below = figure.subplots(2)  # an axes for each image would take three times as long
    lefts = 1.09 * width * np.arange(len(images))
    relative = maps * maps[0].size
    for left, image, values in zip(lefts, images, relative, strict=True):
        show_image(above, image, left)
        extent = (left, left + width, height, 0)
        drawn = below.imshow(values, cmap=ATTENTION, vmin=0, vmax=relative.max(), extent=extent)
    bare(below)
    for axes, names, row in ((above, truth, "image"), (below, guesses, "attention")):
        axes.set(xlim=(0, lefts[-1] + width), ylabel=row)
        axes.set_xticks(lefts + width / 2, short_class_names(names, classes, 11))
        axes.tick_params(length=0, labelsize=9)
    above.xaxis.tick_top()
    for text, label, guess in zip(below.get_xticklabels(), truth, guesses, strict=True):
        text.set_color(INK if guess == label else WRONG)
    colour_bar(drawn, [below], "share, 1: uniform")
    for axes in (above, below):
        axes.set_anchor("W")
    return figure


@styled()
def previewed(rows: Sequence[np.ndarray], truth: Sequence[str], classes: Sequence[str]) -> Figure:
    """Return images in a row, and under each the same image in several epochs.

    Args:
        rows: (B, C, H, W) uint8 each, the images as they are first.
        truth: names of their classes.
        classes: names of all classes.
    """
    height, width = rows[0].shape[2:]
    figure = Figure(figsize=(1.05 * len(truth) + 0.6, 1.1 * len(rows) * height / width + 0.3))
    axes = figure.subplots()
    lefts, tops = 1.05 * width * np.arange(len(truth)), 1.05 * height * np.arange(len(rows))
    for top, images in zip(tops, rows, strict=True):
        for left, image in zip(lefts, images, strict=True):
            show_image(axes, image, left, top)
    axes.set(xlim=(0, lefts[-1] + width), ylim=(tops[-1] + height, 0))
    axes.set_xticks(lefts + width / 2, short_class_names(truth, classes, 11))
    axes.set_yticks(tops + height / 2, ["picture", *(f"epoch {number}" for number in range(1, len(rows)))])
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    return figure


def show_image(axes: Axes, image: np.ndarray, left: float = 0.0, top: float = 0.0) -> AxesImage:
    """Show (C, H, W) uint8 pixels without axes, from ``left`` and ``top`` on; of channels that are no colours, one."""
    bare(axes)
    height, width = image.shape[1:]
    pixels = image[:3].transpose(1, 2, 0) if len(image) in (3, 4) else image[0]
    return axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, extent=(left, left + width, top + height, top))
