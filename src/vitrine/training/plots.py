"""Plots of a run: curves, confusion matrix, attention."""

from pathlib import Path

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitrine.config import ViTConfig
from vitrine.config.parts import is_dotted
from vitrine.data.image_dataset import Split
from vitrine.files import replacing
from vitrine.models import VisionTransformer, attended_patches
from vitrine.runs import RunRecord
from vitrine.training.lit_module import Classifier

TRAIN, VAL, TEST = "#4477aa", "#ee6677", "#228833"  # colour-blind safe (Paul Tol's "bright")
STAGES = (
    ("train", "training", TRAIN, ""),
    ("val", "validation", VAL, "o"),
    ("test", "test, not used for selection", TEST, "."),
)


def draw_curves(record: RunRecord) -> Path:
    """Draw curves.png: loss and accuracy by epoch on training, validation and, if measured, test images."""
    rows = record.history()
    figure = Figure(figsize=(10, 4), layout="constrained")
    steps_per_epoch = max((row["step"] / row["epoch"] for row in rows if "val/acc" in row), default=1.0)
    for axes, name, title in zip(figure.subplots(1, 2), ("loss", "acc"), ("loss (nats)", "accuracy"), strict=True):
        for stage, label, colour, marker in STAGES:
            key = f"{stage}/{name}"
            points = [(row["step"] / steps_per_epoch, row[key]) for row in rows if key in row]
            if points:
                axes.plot(*zip(*points, strict=True), label=label, color=colour, marker=marker, markersize=3)
        axes.set_xlim(left=0)
        axes.set_xlabel("epoch")
        axes.set_ylabel(title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.lines:
            axes.legend(frameon=False)
    return _save(figure, record.path / "curves.png")


def draw_confusion(record: RunRecord, logits: np.ndarray, labels: np.ndarray, classes: list[str]) -> Path:
    """Draw confusion.png: test labels against predictions; with counts in the cells up to 25 classes."""
    from sklearn.metrics import ConfusionMatrixDisplay, confusion_matrix

    count = len(classes)
    predictions = logits.argmax(axis=1)
    counts = confusion_matrix(labels, predictions, labels=range(count))
    size = min(12.0, 3.5 + 0.45 * count)
    figure = Figure(figsize=(size, size), layout="constrained")
    axes = figure.subplots()
    readable = count <= 25
    display = ConfusionMatrixDisplay(counts, display_labels=classes)
    display.plot(ax=axes, cmap="Blues", include_values=readable, values_format="d", colorbar=False)
    right = (predictions == labels).mean()
    axes.set(xlabel="predicted", ylabel="true", title=f"{len(labels):,} test images, {right:.2%} right")
    if not readable:
        ticks = range(0, count, 10 ** (len(str(count - 1)) - 1))
        axes.set(xlabel="predicted (class number)", ylabel="true (class number)")
        axes.set(xticks=ticks, yticks=ticks, xticklabels=ticks, yticklabels=ticks)
    elif max(map(len, classes)) > 4:
        axes.set_xticklabels(classes, rotation=45, ha="right", rotation_mode="anchor")
    return _save(figure, record.path / "confusion.png")


def can_be_drawn(config: ViTConfig) -> bool:
    """Return whether a model has attention maps, and those of one image fit into 256 MB of memory."""
    if any(map(is_dotted, (config.name, config.attention, config.pool))):
        return False
    return config.depth * config.heads * config.tokens**2 <= 2**26


def draw_attention(record: RunRecord, module: Classifier, split: Split, classes: list[str]) -> Path:
    """Draw attention.png: up to eight images, evenly spaced in ``split``, and what the model attends to, by rollout.

    Brightness is relative to the patch of each image with the most attention. Titles are true classes; predictions are
    below, in red if wrong.
    """
    module = module.cpu().eval()
    chosen = torch.linspace(0, len(split) - 1, min(8, len(split))).round().long().unique()
    figure = Figure(figsize=(1.35 * len(chosen) + 0.3, 3.4), layout="constrained")
    columns = figure.subplots(2, len(chosen), squeeze=False).T
    columns[0, 0].set_ylabel("image", fontsize=9)
    columns[0, 1].set_ylabel("attention", fontsize=9)
    for index, axes in zip(chosen.tolist(), columns, strict=True):
        image = split.images[torch.tensor([index])].cpu()
        with torch.no_grad():
            predicted = int(module(image).argmax())
        assert isinstance(module.model, VisionTransformer)  # can_be_drawn
        patches = attended_patches(module.model, module.normalised(image))[0].numpy()
        pixels = image[0].permute(1, 2, 0).numpy()
        extent = (0, pixels.shape[1], pixels.shape[0], 0)
        for place, axis in enumerate(axes):
            axis.imshow(pixels.squeeze(), cmap="gray", vmin=0, vmax=255, extent=extent)
            axis.set(xticks=[], yticks=[])
            if place == 1:
                axis.imshow(patches, cmap="inferno", alpha=0.65, vmin=0, extent=extent)
        label = int(split.labels[index])
        guess = classes[predicted] if predicted < len(classes) else f"no. {predicted}"
        axes[0].set_title(_short(classes[label]), fontsize=9)
        axes[1].set_xlabel(_short(guess), fontsize=9, color="black" if predicted == label else "#cc3311")
    return _save(figure, record.path / "attention.png")


def _short(name: str) -> str:
    return name if len(name) <= 14 else f"{name[:13]}…"


def _save(figure: Figure, path: Path) -> Path:
    figure.set_dpi(120)
    canvas = FigureCanvasAgg(figure)
    with replacing(path) as temporary:
        canvas.print_png(temporary)  # type: ignore[no-untyped-call]  # Figure.savefig would draw twice
    return path
