"""Calibration by temperature scaling (arXiv:1706.04599, section 4.2): probabilities that fit accuracies."""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional as F

from vitrine.data.placement import decoding_workers
from vitrine.errors import RunError
from vitrine.inference.load import LoadedRun
from vitrine.inference.predictor import Predictor
from vitrine.inference.reading import read_split
from vitrine.inference.run_data import DATA_ROOT, read_data, validation_images
from vitrine.text import plural
from vitrine.training.changed_data import check_data, validation_splits
from vitrine.training.metrics import ece

TEMPERATURES = 0.01, 100.0  # between which one is searched


@dataclass(frozen=True)
class TemperatureScaling:
    """A temperature and its effect.

    Attributes:
        temperature: what logits are divided by.
        lines: negative log-likelihood (NLL, nats) and expected calibration error (ECE, in [0, 1]) before and after, on
            the validation images, and on the test images of the run's predictions.npz if it is there; for people. If
            the validation images determine none, why.
    """

    temperature: float
    lines: list[str]


def calibrate(
    run: LoadedRun, predictor: Predictor, data_root: str | None, *, accept_changed_data: bool = False
) -> TemperatureScaling:
    """Fit the temperature that minimises the NLL of the run's validation images.

    Args:
        run: the run.
        predictor: its model.
        data_root: folder of its data; ``None`` is where it was in training, and downloads nothing.
        accept_changed_data: fit it even if the validation images are not those of the run.

    Raises:
        DataError: the data is missing or damaged.
        ConfigError: ``data_root`` is given, but the data is read from no folder.
        RunError: the data has changed, or the model gives values that are not finite.
    """
    data = read_data(run, data_root, advice="; data_root=DIR names the folder that holds it")
    splits = validation_splits(data)
    check_data(run.record, data, accept=accept_changed_data, splits=splits, key="data_root")
    trained_on = "train" in splits and not data.config.data.hold_out
    return _scaling(run, predictor.logits_of(data.val), data.val.labels, trained_on, run.test_outputs)


def calibrate_export(
    run: LoadedRun, logits_of: Callable[[Tensor], Tensor], data_root: str | None, *, exact: bool
) -> TemperatureScaling:
    """Fit the temperature of a model that is exported.

    Args:
        run: the run, of one label per picture.
        logits_of: maps pictures (B, C, H, W) uint8 to logits (B, classes) as the export computes them.
        data_root: as of :func:`calibrate`.
        exact: whether these are the logits of the run, so that its stored test logits show the effect, too, unless
            it computed them in mixed precision.

    Raises:
        DataError: the data is missing or damaged.
        ConfigError: ``data_root`` is given, but the data is read from no folder.
        RunError: the data has changed, or the model gives values that are not finite.
    """
    validation, trained_on = validation_images(run, data_root, advice=DATA_ROOT)
    with closing(read_split(validation, decoding_workers(run.config.data))) as batches:
        logits = torch.cat([logits_of(pictures) for pictures, _ in batches])
    tested = None if not exact or str(run.record.facts.get("precision")).endswith("-mixed") else run.test_outputs
    return _scaling(run, logits, validation.labels, trained_on, tested)


def _scaling(
    run: LoadedRun, logits: Tensor, labels: Tensor, trained_on: bool, tested: tuple[Tensor, Tensor] | None
) -> TemperatureScaling:
    labels = labels[:, run.target_index] if labels.dim() == 2 else labels
    temperature = fitted_temperature(logits, labels)
    if temperature is None:
        of_one = ", all of one class," if len(labels.unique()) == 1 else ""
        return TemperatureScaling(1.0, [f"1: the validation images{of_one} do not determine a temperature"])
    used = ", on which the model was trained" if trained_on else ""
    count = plural(len(labels), "validation image")
    lines = [f"{temperature:.3f}, fitted on {count}{used}: {_effect(logits, labels, temperature)}"]
    if tested is not None:
        logits, labels = tested
        lines.append(f"on {plural(len(labels), 'test image')}: {_effect(logits, labels, temperature)}")
    return TemperatureScaling(temperature, lines)


def fitted_temperature(logits: Tensor, labels: Tensor) -> float | None:
    """Return the temperature at which logits (N, num_classes) give labels (N,) the lowest NLL.

    ``None`` if none in ``TEMPERATURES`` does: where all images are right, the lower the better. Nor is there one where
    all labels are the same: it would fit how often that class comes.

    Raises:
        RunError: logits are not finite.
    """
    if not logits.isfinite().all():
        raise RunError("the model gives NaN logits on the validation images: its training has diverged")

    def loss(log_temperature: float) -> float:
        return float(F.cross_entropy(logits.double() / math.exp(log_temperature), labels))

    if len(labels.unique()) == 1 or bool((logits.argmax(dim=1) == labels).all()):
        return None
    low, high = map(math.log, TEMPERATURES)
    found = minimize_scalar(loss, bounds=(low, high), method="bounded").x
    return math.exp(found) if min(found - low, high - found) > 1e-3 else None


def _effect(logits: Tensor, labels: Tensor, temperature: float) -> str:
    before, after = ((scaled := logits / value, F.cross_entropy(scaled, labels)) for value in (1.0, temperature))
    errors = [float(ece(scaled, labels)) for scaled, _ in (before, after)]
    return f"NLL {before[1]:.4f} to {after[1]:.4f}, ECE {errors[0]:.4f} to {errors[1]:.4f}"
