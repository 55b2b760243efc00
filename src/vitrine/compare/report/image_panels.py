"""Images for the report: the hardest test images, attention maps, and similarities of position embeddings.

They need the data set in the folder that the run names, and the checkpoint of the run; where one is missing, the report
says so. Nothing is downloaded. torch is imported only when something is drawn.
"""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrine.compare.comparison import Comparison
from vitrine.compare.load import RunResult
from vitrine.compare.predictions import HardImage, Predictions, hardest_images
from vitrine.compare.report.style import best_rows
from vitrine.config.model import MAX_CLASSES
from vitrine.errors import DataError, RunError, VitrineError, joined_lines
from vitrine.figure_style import ATTENTION, evenly
from vitrine.runs import RunRecord
from vitrine.text import class_name, isolated, plural

MAX_HARD_IMAGES = 24
MAX_MODELS = 6
MAX_ATTENTION_IMAGES = 6
NOT_OF_IMAGES = {
    *("target_classes", "patch_size", "epochs", "std", "flip", "batch_size", "drop_last", "storage", "workers"),
    *("val_fraction", "val_seed", "group", "folds", "fold", "hold_out"),
    *("train_fraction", "per_class", "subset_seed", "sampling"),
}  # keys of the data that decide neither which test images are loaded nor how they are prepared
MAX_SIDE = 64  # pixels of an image in the page; the browser enlarges it


@dataclass(frozen=True)
class CaptionedImage:
    """An image with its caption; ``source`` is a data URL, empty if the pixels are not available."""

    source: str
    caption: str
    wrong: bool = False


@dataclass(frozen=True)
class Gallery:
    """Rows of images.

    Attributes:
        rows: a title and images per row.
        caption: what they show, or why there are none.
    """

    rows: list[tuple[str, list[CaptionedImage]]]
    caption: str


def hard_images(compared: Comparison, predictions: Mapping[str, Predictions]) -> Gallery:
    """Show the test images that most runs misclassify."""
    found = hardest_images(list(predictions.values()), MAX_HARD_IMAGES)
    if not found:
        return Gallery([], "Every run classifies every test image correctly.")
    run = compared.runs[0]
    names = class_names(run)
    runs = len(predictions)
    caption = f"The test images that {plural(runs, 'run')} misclassify most often, with the class predicted most often."
    if runs == 1:
        caption = "Test images that the run misclassifies, with the class predicted."
    never = sum(image.errors == runs for image in found)
    if never and runs > 1:
        at_least = "at least " if never == MAX_HARD_IMAGES else ""
        caption = f"No run is correct on {at_least}{plural(never, 'test image')}. {caption}"
    try:
        sources = list(map(image_url, test_pixels(run, [image.index for image in found])))
    except (VitrineError, OSError, ImportError) as error:
        caption += f" The pixels are not available: {joined_lines(error)}."
        sources = [""] * len(found)
    images = [
        CaptionedImage(source, _hard_caption(image, names, runs), wrong=True)
        for image, source in zip(found, sources, strict=True)
    ]
    return Gallery([("", images)], caption)


def attention_maps(compared: Comparison, predictions: Mapping[str, Predictions]) -> Gallery:
    """Show the attention rollout of one model per row, on the same test images."""
    names, labels = class_names(compared.runs[0]), next(iter(predictions.values())).labels
    hard = [image.index for image in hardest_images(list(predictions.values()), MAX_ATTENTION_IMAGES // 2)]
    chosen = list(dict.fromkeys([*hard, *evenly(len(labels), MAX_ATTENTION_IMAGES)]))[:MAX_ATTENTION_IMAGES]
    rows: list[tuple[str, list[CaptionedImage]]] = []
    missing = []
    for row in best_rows(compared, MAX_MODELS):
        run = next(iter(row.runs.values()))
        try:
            pixels = test_pixels(run, chosen)
            maps = _rollout(run, pixels)
        except (VitrineError, OSError, ImportError, RuntimeError) as error:
            missing.append(f"{row.short_label}: {joined_lines(error)}")
            continue
        if not rows:
            captions = [f"true: {class_name(names, label)}" for label in labels[chosen].tolist()]
            originals = [CaptionedImage(image_url(image), text) for image, text in zip(pixels, captions, strict=True)]
            rows.append(("the image", originals))
        known = predictions.get(run.name)
        predicted = known.predicted[chosen].tolist() if known else [None] * len(chosen)
        correct = known.correct[chosen].tolist() if known else [True] * len(chosen)
        heat = [data_url(heat_map(patches, pixels.shape[2:])) for patches in maps]
        images = [
            CaptionedImage(source, "" if label is None else class_name(names, label), wrong=not is_correct)
            for source, label, is_correct in zip(heat, predicted, correct, strict=True)
        ]
        rows.append((row.short_label, images))
    caption = (
        "How much each patch contributes to the representation that the head reads, by attention rollout "
        "(arXiv:2005.00928), from dark to light: one model per configuration, with its prediction. Half of the images "
        "are the hardest ones."
    )
    return Gallery(rows, " ".join([caption if rows else "", *_not_shown(missing)]).strip())


def position_gallery(compared: Comparison) -> Gallery:
    """Show the similarities of learned or fixed position embeddings, for one model per row that has them."""
    maps, missing = [], []
    for row in best_rows(compared, MAX_MODELS):
        run = next(iter(row.runs.values()))
        try:
            similarities, grid = _similarities(run)
        except (VitrineError, OSError, ImportError, RuntimeError) as error:
            missing.append(f"{row.short_label}: {joined_lines(error)}")
            continue
        if similarities is None:
            missing.append(f"{row.short_label}: has no position embeddings")
            continue
        text = f"{row.short_label}: from {similarities.min():.2f} (dark) to {similarities.max():.2f} (light)"
        maps.append(CaptionedImage(data_url(tiles(similarities, grid), max_side=512), text))
    caption = (
        "Each small square belongs to a patch: the cosine similarity of its position embedding to those of all "
        "patches, as in figure 7 of arXiv:2010.11929."
    )
    return Gallery([("", maps)] if maps else [], " ".join([caption if maps else "", *_not_shown(missing)]).strip())


def test_pixels(run: RunResult, indices: Sequence[int]) -> np.ndarray:
    """Return test images as the run's model sees them before normalisation, (B, C, H, W) uint8.

    Raises:
        RunError: the run is not on this machine.
        DataError: the data set is missing or damaged, or its labels are not those of the stored predictions.
    """
    import torch

    split = test_split(run)
    if run.labels_hash and not np.array_equal(split.first_labels.numpy(), run.labels):
        raise DataError("the data set has other test images than the runs were tested on")
    (batch,) = split.batches([torch.tensor(list(indices))])
    return batch[0].numpy()


def class_names(run: RunResult) -> list[str]:
    """Return the names of the classes, or their numbers."""
    names = run.facts.get("classes")
    if names is not None:
        return [str(name) for name in names]
    count = run.config.get("data.num_classes")
    return [str(number) for number in range(min(count, MAX_CLASSES) if isinstance(count, int) else 0)]


def image_url(image: np.ndarray, max_side: int = MAX_SIDE) -> str:
    """Encode an image (C, H, W) uint8 as :func:`data_url` does; of channels that are no colours, the first."""
    pixels = image[:3] if len(image) in (3, 4) else image[:1]
    return data_url(pixels.transpose(1, 2, 0), max_side)


def data_url(pixels: np.ndarray, max_side: int = MAX_SIDE) -> str:
    """Encode (H, W, C) uint8 pixels, C in 1, 3, 4, as a data URL, scaled down to at most ``max_side`` pixels."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    if max(image.size) > max_side:
        image.thumbnail((max_side, max_side))
    stream = io.BytesIO()
    image.save(stream, "WEBP", lossless=True)  # a third of the size of PNG for similarity maps
    return f"data:image/webp;base64,{base64.b64encode(stream.getvalue()).decode()}"


def heat_map(patches: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Colour (rows, columns) non-negative attention shares, the largest brightest.

    Returns:
        (h, w, 3) uint8, a pixel for each patch, or several where patches are not square: then the sides have about the
        ratio of ``size``, (height, width).
    """
    from matplotlib import colormaps

    colours = (255 * colormaps[ATTENTION](patches / max(float(patches.max()), 1e-12))[..., :3]).astype(np.uint8)
    (rows, columns), (height, width) = patches.shape, size
    cell = Fraction(height * columns, width * rows).limit_denominator(8)
    return colours.repeat(max(1, cell.numerator), axis=0).repeat(cell.denominator, axis=1)


def tiles(similarities: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Arrange (P, P) similarities as a map of the grid for each patch, with transparent gaps: (H, W, 4) uint8."""
    from matplotlib import colormaps

    rows, columns = grid
    scaled = (similarities - similarities.min()) / max(float(np.ptp(similarities)), 1e-9)
    colours = (255 * colormaps["viridis"](scaled)).astype(np.uint8).reshape(*grid, *grid, 4)
    framed = np.pad(colours, ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0)))
    return framed.transpose(0, 2, 1, 3, 4).reshape(rows * (rows + 1), columns * (columns + 1), 4)[:-1, :-1]


def _rollout(run: RunResult, pixels: np.ndarray) -> np.ndarray:
    """Attention rollout of each image, (B, rows, columns)."""
    import torch

    from vitrine.models import attended_patches, rollout_problem

    loaded = _load(run.folder, run.trust, run.allow_changed_code)
    if problem := rollout_problem(loaded.model):
        raise RunError(problem)
    images = loaded.transform.normalised(torch.from_numpy(pixels))
    return torch.cat([attended_patches(loaded.model, image) for image in images.split(1)]).numpy()


def _similarities(run: RunResult) -> tuple[np.ndarray | None, tuple[int, int]]:
    """Cosine similarities of the patches' position embeddings, (P, P), ``None`` for a model without; and the grid."""
    model = _load(run.folder, run.trust, run.allow_changed_code).model
    from vitrine.models import VisionTransformer
    from vitrine.models.learned import position_similarities

    if not isinstance(model, VisionTransformer) or (found := position_similarities(model)) is None:
        return None, (0, 0)
    return found.numpy(), model.config.grid


@cache
def _load(folder: Path | None, trust: tuple[str, ...], allow_changed_code: bool) -> Any:
    """The run with its model; attention and positions share it."""
    if folder is None:
        raise RunError("the run is not on this machine")
    record = RunRecord.open(folder)
    if not record.best.is_file():
        raise RunError("its checkpoint is missing")
    from vitrine.inference.load import LoadedRun

    return LoadedRun(record, trust, allow_changed_code=allow_changed_code)


def test_split(run: RunResult) -> Any:
    """Return the test split of a run's data, loaded once for all runs on the same images.

    Raises:
        RunError: the run is not on this machine, or does not name its data.
        DataError: the data set is missing or damaged, or has no test images.
    """
    if run.folder is None:
        raise RunError("the run is not on this machine")
    stored = RunRecord.open(run.folder).config
    try:
        cache_dir, data = Path(stored["paths"]["cache_dir"]), stored["data"]
        of_images = {key: value for key, value in data.items() if key not in NOT_OF_IMAGES}
        identity = json.dumps([str(cache_dir), of_images], sort_keys=True)
    except (KeyError, TypeError, AttributeError):
        raise RunError(f"{run.folder / 'config.yaml'} does not name the data of the run") from None
    if identity not in _splits:
        _splits[identity] = _load_test_split(data, cache_dir, run.trust)
    return _splits[identity]


_splits: dict[str, Any] = {}  # shared by runs on the same images, whatever else their data sections say


def forget() -> None:
    """Drop the models and test images that the sections of a report share."""
    _load.cache_clear()
    _splits.clear()


def _load_test_split(data: dict[str, Any], cache_dir: Path, trust: tuple[str, ...]) -> Any:
    from vitrine.config.schema import DataConfig
    from vitrine.config.serialize import from_plain
    from vitrine.data.datasets import load_dataset, refuse_download

    config = from_plain(DataConfig, data, trust=trust)
    refuse_download(config)
    dataset = load_dataset(config, cache_dir, memory=0)  # image files stay on disk: few are shown
    if dataset.test is None:
        raise DataError(f"{config.root} has no test images")
    return dataset.test


def _hard_caption(image: HardImage, names: Sequence[str], runs: int) -> str:
    label, mistaken_for = (isolated(class_name(names, one)) for one in (image.label, image.mistaken_for))
    return f"{label}, mistaken for {mistaken_for}; wrong in {image.errors} of {plural(runs, 'run')}"


def _not_shown(missing: Sequence[str]) -> list[str]:
    return [f"Not shown: {'; '.join(missing)}."] if missing else []
