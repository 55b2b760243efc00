"""The checks of an export when it is made: its difference from PyTorch, its latency, and what it costs in accuracy."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.data.placement import decoding_workers
from vitrine.errors import first_line
from vitrine.inference.export.formats import ExportError
from vitrine.inference.load import LoadedRun
from vitrine.inference.reading import read_split
from vitrine.inference.run_data import validation_images
from vitrine.text import listed
from vitrine.training.metrics import QUANTILE

Outputs = Tensor | Sequence[Tensor]
Computation = Callable[[Tensor], Outputs]

BATCHES = (1, 2, 7, 64)
LATENCY_BATCHES = (1, 64)
ROUNDS, LATENCY_SECONDS = 25, 3.0  # per batch size: at most this many rounds, in at most this time


@dataclass(frozen=True)
class Runtime:
    """An exported model in the program that runs it.

    Attributes:
        name: the program and its version.
        run: maps pictures (B, C, H, W) uint8 to probabilities or logits (B, classes); or to several outputs, of which
            these are the first.
    """

    name: str
    run: Computation


@dataclass(frozen=True)
class Latency:
    """Median times for a batch in seconds, measured in turn."""

    batch: int
    exported: float
    pytorch: float


@dataclass(frozen=True)
class AccuracyCost:
    """Accuracy on the validation images, exported and in PyTorch.

    Attributes:
        images: number of images, N.
        exported: accuracy of the export, in [0, 1].
        pytorch: accuracy in PyTorch in float32.
        half_width: of the 95 % interval of their difference, over the images; at least that of the rule of three,
            ln 40 / N.
        changed: images with another prediction.
        trained_on: whether the model was trained on these images.
    """

    images: int
    exported: float
    pytorch: float
    half_width: float
    changed: int
    trained_on: bool = False

    @classmethod
    def of(cls, exported: Tensor, pytorch: Tensor, labels: Tensor, *, trained_on: bool = False) -> "AccuracyCost":
        """Compare predictions (N,) int64 with each other and with the labels; of several, (N, classes) of 0 and 1."""
        same = [exported == labels, pytorch == labels, exported == pytorch]
        if labels.dim() == 2:
            same = [one.all(dim=1) for one in same]
        right, right_before, unchanged = (one.double() for one in same)
        spread = float((right - right_before).std()) if len(labels) > 1 else 0.0
        return cls(
            images=len(labels),
            exported=float(right.mean()),
            pytorch=float(right_before.mean()),
            half_width=max(QUANTILE * spread / math.sqrt(len(labels)), math.log(40) / len(labels)),
            changed=int((1 - unchanged).sum()),
            trained_on=trained_on,
        )


def probe_pictures(count: int, shape: tuple[int, int, int]) -> Tensor:
    """Return ``count`` pictures (count, C, H, W) uint8, the same each time: noise from coarse to fine, dark and light.

    The first is fine noise; of several, the second is coarse, and the last is black in one half and white in the other.
    """
    channels, height, width = shape
    generator = torch.Generator().manual_seed(count)
    pictures = []
    for index in range(count):
        scale = 2 ** (index % 4)
        size = (max(1, height // scale), max(1, width // scale))
        noise = torch.rand(1, channels, *size, generator=generator)
        pictures.append(F.interpolate(noise, (height, width), mode="nearest")[0] * 255)
    stacked = torch.stack(pictures).to(torch.uint8)
    if count > 1:
        stacked[-1, :, : height // 2] = 0
        stacked[-1, :, height // 2 :] = 255
    return stacked


def largest_differences(exported: Computation, pytorch: Computation, shape: tuple[int, int, int]) -> dict[int, float]:
    """Return the largest difference of any output for each of ``BATCHES``: as a share of its largest value above 1.

    Raises:
        ExportError: the export fails on a batch, or gives another shape, or values that are not finite.
    """
    found = {}
    for count in BATCHES:
        pictures = probe_pictures(count, shape)
        expected = each_output(pytorch(pictures))
        try:
            given = each_output(exported(pictures))
        except Exception as error:  # each runtime has errors of its own
            raise ExportError(f"the export fails on a batch of {count}: {first_line(error)}") from None
        shapes, wanted = ([tuple(output.shape) for output in outputs] for outputs in (given, expected))
        if shapes != wanted or not all(output.isfinite().all() for output in given):
            of = f"{listed(list(map(str, shapes)))} for {listed(list(map(str, wanted)))}"
            raise ExportError(f"the export gives {of} on a batch of {count}, or values that are not finite")
        differences = [
            (own.float() - other).abs().max() / other.abs().max().clamp(1)  # float32 rounds large values by more
            for own, other in zip(given, expected, strict=True)
        ]
        found[count] = float(max(differences))
    return found


def each_output(outputs: Outputs) -> Sequence[Tensor]:
    """Return the outputs of a model that gives one or several."""
    return [outputs] if isinstance(outputs, Tensor) else outputs


def latencies(exported: Computation, pytorch: Computation, shape: tuple[int, int, int]) -> list[Latency]:
    """Measure both models in turn, at each of ``LATENCY_BATCHES``."""
    measured = []
    for count in LATENCY_BATCHES:
        pictures = probe_pictures(count, shape)
        times: tuple[list[float], list[float]] = ([], [])
        began = time.perf_counter()
        while len(times[0]) < 3 or (len(times[0]) < ROUNDS and time.perf_counter() - began < LATENCY_SECONDS):
            for model, own in zip((exported, pytorch), times, strict=True):
                start = time.perf_counter()
                model(pictures)
                own.append(time.perf_counter() - start)
        measured.append(Latency(count, median(times[0]), median(times[1])))
    return measured


def accuracy_cost(
    exported: Computation,
    pytorch: Computation,
    run: LoadedRun,
    data_root: str | None,
    gives: str,
) -> AccuracyCost:
    """Compare both models on the validation images of a run, as training splits them off.

    Args:
        exported: maps pictures (B, C, H, W) uint8 to probabilities or logits (B, classes).
        pytorch: likewise.
        run: the run.
        data_root: folder of its data set, where it has moved.
        gives: what the models give, ``probabilities`` or ``logits``.

    Raises:
        DataError: the data set is missing or damaged.
        RunError: it has changed.
    """
    least = 0.5 if gives == "probabilities" else 0.0
    validation, trained_on = validation_images(run, data_root)
    multi_label = run.config.data.multi_label
    predictions: tuple[list[Tensor], list[Tensor]] = ([], [])
    labels = []
    with closing(read_split(validation, decoding_workers(run.config.data))) as batches:
        for pictures, truth in batches:
            for model, own in zip((exported, pytorch), predictions, strict=True):
                given = each_output(model(pictures))[0]
                own.append((given > least).to(truth.dtype) if multi_label else given.argmax(dim=1))
            labels.append(truth if multi_label or truth.dim() == 1 else truth[:, run.target_index])
    compared = torch.cat(predictions[0]), torch.cat(predictions[1]), torch.cat(labels)
    return AccuracyCost.of(*compared, trained_on=trained_on)
