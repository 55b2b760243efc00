"""Write the page of a run: one HTML file with the model, opened from disk, without a network or a server."""

import base64
import copy
import io
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitrine.config import vit_config_from
from vitrine.config.model import ViTConfig
from vitrine.config.parts import parts_of
from vitrine.config.schema import LEVELS
from vitrine.config.targets import named_for
from vitrine.config.trust import TRUST_ALL, prefixes
from vitrine.data.decode import MODES
from vitrine.errors import RunError, VitrineError, first_line
from vitrine.figure_style import ATTENTION, evenly, hex_colours
from vitrine.inference.calibrate import TemperatureScaling, calibrate_export
from vitrine.inference.html_page import check_page, script_json, templates_in, write_page_file
from vitrine.inference.load import LoadedRun
from vitrine.inference.page.describe import describe, encode, weights_of
from vitrine.inference.run_data import test_images
from vitrine.models import VisionTransformer
from vitrine.runs import RunRecord
from vitrine.text import plural, printable

FOLDER = Path(__file__).parent
SCRIPTS = ("engine.js", "prepare.js", "worker.js")  # of the worker
MAX_SAMPLES = 12
MAX_SAMPLE_BYTES = 150_000  # of all test images without loss; larger ones are compressed
SHOWN = 280  # pixels of the longer side of an image or a pad in the page
DRAWINGS = {"digits": "digits", "mnist": "mnist"}  # how a drawing is prepared (prepare.js); others: as it is


@dataclass(frozen=True)
class WrittenPage:
    """A page on disk.

    Attributes:
        path: the HTML file.
        size: of the file, in bytes.
        notes: what a user should know of it, in sentences.
    """

    path: Path
    size: int
    notes: list[str]


@dataclass(frozen=True)
class Samples:
    """Test images for the page.

    Attributes:
        pixels: (B, C, H, W) uint8, as the model sees them before normalisation.
        labels: (B,) int64.
        problem: why there are none; empty otherwise.
    """

    pixels: Tensor
    labels: Tensor
    problem: str = ""


def write_page(
    folder: str | Path,
    to: Path | None = None,
    *,
    dtype: str = "float32",
    data_root: str | None = None,
    trust: Collection[str] = (),
    target: str = "",
    calibrate: bool = False,
) -> WrittenPage:
    """Write the page of a finished run.

    Args:
        folder: the run folder.
        to: the HTML file; ``None`` is ``page.html`` in the run folder, of a target that is given ``page_TARGET.html``.
        dtype: of the weights in the page, ``float32`` or ``float16``.
        data_root: folder of the run's data; ``None`` is where it was in training.
        trust: as of :func:`vitrine.load_run`.
        target: as of :func:`vitrine.load_run`.
        calibrate: divide logits by a temperature that is fitted on the run's validation images.

    Raises:
        RunError: there is no such run, it has not finished, its checkpoint is damaged, its classes do not fit, it
            has parts that are not vitrine's, or the file cannot be written; with ``data_root``, also if the data there
            has changed.
        DataError: ``data_root`` is given, and lacks test images; or ``calibrate``, and the data is missing.
        ConfigError: ``data_root`` is given, but the data is read from no folder.
    """
    record = RunRecord.open(folder)
    path = to or record.path / named_for(target, "page.html")
    check_page(path)
    _check(record)
    run = LoadedRun(record, prefixes(trust), target)
    samples = sample_images(run, data_root)
    calibration = _calibrated(run, dtype, data_root) if calibrate else None
    temperature = 1.0 if calibration is None else calibration.temperature
    write_page_file(path, render(run, samples, dtype, temperature))
    notes = [samples.problem] if samples.problem else []
    if calibration is not None:
        notes.append(f"temperature {'; '.join(calibration.lines)}")
    if run.transform.levels != LEVELS:
        levels = ",".join(map(str, run.transform.levels))
        notes.append(f"data.levels=[{levels}] is not in the page: stretch 16-bit pictures to 8 bits, then drop them")
    if dtype == "float16" and len(samples.pixels):
        model = _divided(run.model, temperature)
        notes.append(_cost_of_rounding(model, run.transform.normalised(samples.pixels)))
    return WrittenPage(path, path.stat().st_size, notes)


def render(run: LoadedRun, samples: Samples, dtype: str, temperature: float = 1.0) -> str:
    """Return the page as HTML, with a model whose logits are divided by ``temperature``."""
    model, preparation, data = _divided(run.model, temperature), run.transform, run.config.data
    config, channels = model.config, preparation.channels
    drawing = DRAWINGS.get(data.name, "plain") if channels == 1 else None
    prepared = {
        "size": config.image_hw,
        "channels": channels,
        "resize": preparation.resize if preparation.from_files else "arrays",
        "crop_pct": preparation.crop_pct,
        "fill": preparation.decoder.fill,
        "ratio": preparation.ratio,
        "drawing": drawing,
    }
    described = describe(model, data.mean, data.std) | {"dtype": dtype, "preparation": prepared}
    facts = [*_facts(run, model), *([] if temperature == 1 else [f"temperature {temperature:.3f}"])]
    now = datetime.now()
    template = templates_in(FOLDER).get_template("page.html.j2")
    return template.render(
        data=data.name.rpartition(".")[2] + (f", {run.answers}" if run.answers else ""),
        vit=config,
        shown=_fitted(config.image_hw),
        pad=_fitted(config.image_hw) if drawing == "plain" else (SHOWN, SHOWN),
        made=f"{now.day} {now:%B %Y}",
        facts=facts,
        run=printable(run.record.name),
        drawing=drawing,
        samples=[
            {"source": source, "label": int(label), "name": run.classes[label]}
            for source, label in zip(sources(samples.pixels), samples.labels, strict=True)
        ],
        config=script_json({"model": described, "classes": run.classes, "heat": hex_colours(ATTENTION, 9)}),
        weights=encode(weights_of(model), dtype),
        worker="\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS),
    )


def sample_images(run: LoadedRun, data_root: str | None = None) -> Samples:
    """Return the first test image of up to ``MAX_SAMPLES`` classes; none, with the reason, if there are none.

    That is so, too, if they can't be read, or are not those of the run any more; with ``data_root``, this is an error.
    Without it, nothing is downloaded.
    """
    data = run.config.data
    try:
        split = test_images(run, data_root)
        labels = split.labels if split.labels.dim() == 1 else split.labels[:, run.target_index]
        classes = np.unique(labels.numpy())
        chosen = classes[evenly(len(classes), MAX_SAMPLES)]
        indices = torch.tensor([int((labels == label).nonzero()[0]) for label in chosen])
        ((pixels, _),) = split.batches([indices])
    except (VitrineError, OSError, ImportError) as error:
        if data_root is not None:
            raise
        none = torch.empty(0, data.in_channels, *data.image_hw, dtype=torch.uint8)
        return Samples(none, torch.empty(0, dtype=torch.int64), f"no test images in the page: {first_line(error)}")
    return Samples(pixels, labels[indices])


def sources(pixels: Tensor) -> list[str]:
    """Encode images (B, C, H, W) uint8 as data URLs: without loss, unless all together exceed ``MAX_SAMPLE_BYTES``."""
    images = [Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy()) for image in pixels]
    lossless = [_webp(image, lossless=True) for image in images]
    files = lossless if sum(map(len, lossless)) <= MAX_SAMPLE_BYTES else [_webp(image, quality=90) for image in images]
    return [f"data:image/webp;base64,{base64.b64encode(file).decode()}" for file in files]


def _fitted(size: tuple[int, int]) -> tuple[int, int]:
    """Return height and width in the page of an image of height and width ``size``."""
    height, width = (max(1, round(SHOWN * side / max(size))) for side in size)
    return height, width


def _check(record: RunRecord) -> None:
    """Raise RunError for a run that no page can be made of."""
    if record.status != "finished":
        raise RunError(f"{record.path} has not finished: its status is {record.status}")
    try:
        config: ViTConfig = vit_config_from(record.config["model"], trust=TRUST_ALL)
    except (KeyError, TypeError) as error:
        raise RunError(f"{record.path / 'config.yaml'} has a model that vitrine does not know: {error}") from None
    if own := [part for part in parts_of(config, "model.") if part.key != "model.init"]:
        parts = ", ".join(f"{part.key}={part.name}" for part in own)
        raise RunError(f"{record.path} has parts that are Python code, which a page cannot run: {parts}")
    if isinstance(data := record.config.get("data"), dict) and data.get("multi_label"):
        raise RunError(f"{record.path} gives several labels per picture, and a page shows one: use vitrine predict")
    if config.in_channels not in MODES:
        allowed = "1 (grey), 3 (RGB) or 4 (RGBA)"
        raise RunError(f"{record.path} takes images of {config.in_channels} channels; pictures have {allowed}")


def _facts(run: LoadedRun, model: VisionTransformer) -> list[str]:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    accuracy = run.metrics.get("test/acc")
    measured = [] if accuracy is None else [f"test accuracy {100 * accuracy:.2f} %"]
    return [*measured, f"{parameters / 1e6:.2g} M parameters", f"position {model.config.position}"]


def _divided(model: nn.Module, temperature: float) -> VisionTransformer:
    """Return a copy of ``model`` whose head divides logits by ``temperature``."""
    divided = copy.deepcopy(model)
    assert isinstance(divided, VisionTransformer)  # _check
    for parameter in divided.head.parameters():
        parameter.data /= temperature
    return divided


def _rounded(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).half().float()


@torch.no_grad()
def _calibrated(run: LoadedRun, dtype: str, data_root: str | None) -> TemperatureScaling:
    """Fit the temperature on the run's weights, rounded as the page rounds them."""
    exact = dtype == "float32"
    model = run.model if exact else _rounded(run.model)
    return calibrate_export(run, lambda pictures: model(run.transform.normalised(pictures)), data_root, exact=exact)


def _cost_of_rounding(model: nn.Module, images: Tensor) -> str:
    rounded = _rounded(model)
    with torch.no_grad():
        exact, after = model(images), rounded(images)
    changed = int((exact.argmax(dim=1) != after.argmax(dim=1)).sum())
    largest = (exact - after).abs().max()
    count = plural(len(images), "test image")
    return f"float16 changes the logits of the {count} in the page by up to {largest:.2g}, and {changed} predictions"


def _webp(image: Image.Image, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "WEBP", **options)
    return stream.getvalue()
