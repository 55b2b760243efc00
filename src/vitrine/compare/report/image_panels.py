"""Pictures for the report: test images, where models look, and how alike their positions are.

Needs the data set where the run says it lies, and the run's checkpoint; says why where either is not there. Nothing
is downloaded. torch is imported here only when something is drawn.
"""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrine.compare.comparison import Compared
from vitrine.compare.load import Run
from vitrine.compare.predictions import Hard, Judged, hardest
from vitrine.compare.table import Row
from vitrine.errors import DataError, RunError, VitrineError
from vitrine.text import plural

MOST_HARD = 24
MOST_MODELS = 6
MOST_LOOKED_AT = 6
WHICH = ("name", "root", "image_size", "in_channels", "num_classes")  # keys of data that say which images are read
LARGEST = 64  # pixels of a picture's side in the page, before the browser enlarges it


@dataclass(frozen=True)
class Picture:
    """A picture with what is to be said of it; ``source`` is a data URL, empty where the pixels are not to be had."""

    source: str
    words: str
    wrong: bool = False


@dataclass(frozen=True)
class Gallery:
    """Pictures in rows.

    Attributes:
        rows: a title and its pictures.
        words: one sentence on what is to be seen, or why nothing is.
    """

    rows: list[tuple[str, list[Picture]]]
    words: str


def hard_images(compared: Compared, judged: Mapping[str, Judged]) -> Gallery:
    """The images that most runs get wrong."""
    found = hardest(list(judged.values()), MOST_HARD)
    if not found:
        return Gallery([], "Every run has every test image right.")
    run = compared.runs[0]
    names = class_names(run)
    runs = len(judged)
    words = f"Test images that most of the {runs} runs get wrong, with the class they are taken for."
    always = sum(one.wrong == runs for one in found)
    if always and runs > 1:
        more = "at least " if always == MOST_HARD else ""
        words = f"{more}{plural(always, 'test image')} no run has right. {words}"
        words = words[0].upper() + words[1:]
    try:
        sources = list(map(url, test_images(run, [one.index for one in found])))
    except (VitrineError, OSError, ImportError) as error:
        words += f" Their pixels cannot be shown: {_why(error)}."
        sources = [""] * len(found)
    pictures = [
        Picture(source, _told(one, names, runs), wrong=True) for one, source in zip(found, sources, strict=True)
    ]
    return Gallery([("", pictures)], words)


def attention(compared: Compared, judged: Mapping[str, Judged]) -> Gallery:
    """Attention rollout of one model of each row, on the same test images."""
    names, truth = class_names(compared.runs[0]), next(iter(judged.values())).labels
    hard = [one.index for one in hardest(list(judged.values()), MOST_LOOKED_AT // 2)]
    spread = np.linspace(0, len(truth) - 1, MOST_LOOKED_AT).round().astype(int).tolist()
    chosen = list(dict.fromkeys([*hard, *spread]))[:MOST_LOOKED_AT]
    rows: list[tuple[str, list[Picture]]] = []
    missing = []
    for row in _shown_rows(compared):
        one = next(iter(row.runs.values()))
        try:
            pixels = test_images(one, chosen)
            maps = _looked_at(one, pixels)
        except (VitrineError, OSError, ImportError, RuntimeError) as error:
            missing.append(f"{row.brief}: {_why(error)}")
            continue
        if not rows:
            labels = [f"true: {names[label]}" for label in truth[chosen].tolist()]
            rows.append(("the image", [Picture(url(image), told) for image, told in zip(pixels, labels, strict=True)]))
        guesses = judged[one.name].predicted[chosen].tolist() if one.name in judged else [None] * len(chosen)
        right = judged[one.name].right[chosen].tolist() if one.name in judged else [True] * len(chosen)
        pictures = [
            Picture(url(overlay(image, patches)), "" if guess is None else _name(names, guess), wrong=not is_right)
            for image, patches, guess, is_right in zip(pixels, maps, guesses, right, strict=True)
        ]
        rows.append((row.brief, pictures))
    words = (
        "How much of each patch is in what the head reads, by attention rollout (arXiv:2005.00928): one model of each "
        "configuration, the same images, the prediction below. Half of the images are the hardest ones."
    )
    return Gallery(rows, " ".join([words if rows else "", *_not_shown(missing)]).strip())


def positions(compared: Compared) -> Gallery:
    """How alike the table of positions makes any two places, for one model of each row that has a table."""
    maps, missing = [], []
    for row in _shown_rows(compared):
        one = next(iter(row.runs.values()))
        try:
            alike = _alike(one)
        except (VitrineError, OSError, ImportError, RuntimeError) as error:
            missing.append(f"{row.brief}: {_why(error)}")
            continue
        if alike is None:
            missing.append(f"{row.brief}: has no table of positions")
            continue
        told = f"{row.brief}: from {alike.min():.2f} (dark) to {alike.max():.2f} (light)"
        maps.append(Picture(url(tiles(alike), largest=512), told))
    words = (
        "Each small square stands for a patch, and shows how alike its position is to every other's: cosine "
        "similarity, as in figure 7 of arXiv:2010.11929."
    )
    return Gallery([("", maps)] if maps else [], " ".join([words if maps else "", *_not_shown(missing)]).strip())


def test_images(run: Run, indices: Sequence[int]) -> np.ndarray:
    """(B, C, H, W) uint8 pixels of test images, as the run's model was given them.

    Raises:
        RunError: the run is not on this disk, or its data is not where it says.
        DataError: the data is damaged, or its labels are not those of the run's predictions.
    """
    import torch

    split = _test_split(run.folder)
    if run.labels and not np.array_equal(split.labels.numpy(), run.truth):
        raise DataError("the data set has other test images than the runs were tested on")
    (batch,) = split.batches([torch.tensor(list(indices))])
    return batch[0].numpy()


def class_names(run: Run) -> list[str]:
    """Names of the classes, or their numbers."""
    names = run.facts.get("classes")
    count = run.config.get("data.num_classes")
    numbers = [str(number) for number in range(count if isinstance(count, int) else 0)]
    return [str(name) for name in names] if isinstance(names, list) else numbers


def url(pixels: np.ndarray, largest: int = LARGEST) -> str:
    """(C, H, W) or (H, W, C) uint8 as a data URL, reduced where it is larger than ``largest``."""
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4) and pixels.shape[2] not in (3, 4):
        pixels = pixels.transpose(1, 2, 0)
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    if max(image.size) > largest:
        image.thumbnail((largest, largest))
    stream = io.BytesIO()
    image.save(stream, "WEBP", lossless=True)  # a third of what PNG makes of a map of similarities
    return f"data:image/webp;base64,{base64.b64encode(stream.getvalue()).decode()}"


def overlay(image: np.ndarray, patches: np.ndarray) -> np.ndarray:
    """(H, W, 3) uint8: an image (C, H, W), dimmed, under the colours of (g, g) non-negative shares of attention."""
    from matplotlib import colormaps

    height, width = image.shape[1:]
    side = max(LARGEST, height)
    grey = Image.fromarray(image.mean(axis=0).astype(np.uint8)).resize((side, side * width // height), 0)
    heat = (255 * colormaps["inferno"](patches / patches.max())[..., :3]).astype(np.uint8)
    large = Image.fromarray(heat).resize(grey.size, Image.Resampling.NEAREST)
    return np.asarray(Image.blend(grey.convert("RGB"), large, 0.6))


def tiles(alike: np.ndarray) -> np.ndarray:
    """(S, S, 4) uint8: for each of g x g places a g x g map of (g^2, g^2) similarities, a clear line between."""
    from matplotlib import colormaps

    grid = round(len(alike) ** 0.5)
    scaled = (alike - alike.min()) / max(float(np.ptp(alike)), 1e-9)
    colours = (255 * colormaps["viridis"](scaled)).astype(np.uint8).reshape(grid, grid, grid, grid, 4)
    framed = np.pad(colours, ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0)))
    return framed.transpose(0, 2, 1, 3, 4).reshape(grid * (grid + 1), grid * (grid + 1), 4)[:-1, :-1]


def _shown_rows(compared: Compared) -> list[Row]:
    """The best rows, and the baseline."""
    rows = [one.row for one in compared.summaries][:MOST_MODELS]
    baseline = compared.findings.baseline
    return rows if baseline in rows else [*rows[:-1], baseline]


def _looked_at(run: Run, pixels: np.ndarray) -> np.ndarray:
    """(B, grid, grid) shares of attention."""
    import torch

    from vitrine.models import looked_at
    from vitrine.training.plots import can_be_drawn

    model = _load(run.folder).model
    if not can_be_drawn(model.config):
        raise RunError("its attention maps would take too much memory")
    mean, std = (torch.tensor(run.config[f"data.{name}"]).view(-1, 1, 1) for name in ("mean", "std"))
    images = (torch.from_numpy(pixels).float() / 255 - mean) / std
    return torch.cat([looked_at(model, image) for image in images.split(1)]).numpy()


def _alike(run: Run) -> np.ndarray | None:
    """(g^2, g^2) cosine similarities of the patches' positions; ``None`` for a model without a table of them."""
    model = _load(run.folder).model
    from vitrine.models.pos_embed import spread

    if model.pos_embed is None:
        return None
    table = model.pos_embed.detach()
    if model.config.position == "learned2d":
        table = spread(table, model.config.prefix)
    table = table[0, -(model.config.grid**2) :]
    table = table / table.norm(dim=1, keepdim=True).clamp(min=1e-9)
    return (table @ table.T).numpy()


@cache
def _load(folder: Path | None) -> Any:
    """The run with its model; kept, since attention and positions both ask for it."""
    if folder is None:
        raise RunError("the run is not on this disk")
    if not (folder / "checkpoints" / "best.ckpt").is_file():
        raise RunError("its checkpoint is not there")
    from vitrine.inference.load import load_run

    return load_run(folder)


_splits: dict[str, Any] = {}  # runs on the same images share them


def _test_split(folder: Path | None) -> Any:
    if folder is None:
        raise RunError("the run is not on this disk")
    from vitrine.runs import RunRecord

    stored = RunRecord.open(folder).config
    which = json.dumps([stored["paths"]["cache_dir"], *(stored["data"].get(name) for name in WHICH)])
    if which not in _splits:
        _splits[which] = _read_split(stored["data"], Path(stored["paths"]["cache_dir"]))
    return _splits[which]


def _read_split(data: dict[str, Any], cache_dir: Path) -> Any:
    from vitrine.config.schema import DataConfig
    from vitrine.config.serialize import from_plain
    from vitrine.data.datasets import load_dataset, missing_file

    config = from_plain(DataConfig, data)
    if (file := missing_file(config)) is not None:
        raise RunError(f"{file}, where the run had its data, is not there from this folder")
    images = load_dataset(config, cache_dir, memory=0)  # pictures stay on disk: few are looked at
    if images.test is None:
        raise DataError(f"{config.root} has no test images")
    return images.test


def _told(one: Hard, names: Sequence[str], runs: int) -> str:
    return f"{_name(names, one.label)}, taken for {_name(names, one.taken_for)}; wrong in {one.wrong} of {runs}"


def _name(names: Sequence[str], label: int) -> str:
    return names[label] if label < len(names) else f"no. {label}"


def _why(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _not_shown(missing: Sequence[str]) -> list[str]:
    return [f"Not shown: {'; '.join(missing)}."] if missing else []
