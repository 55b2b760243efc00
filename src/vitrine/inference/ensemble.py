"""Several models as one: their probabilities are averaged."""

import base64
import math
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vitrine.data.image_csv import LABEL
from vitrine.data.preparation import Preparation
from vitrine.errors import RunError
from vitrine.inference.inputs import Listed
from vitrine.inference.load import LoadedRun
from vitrine.inference.predictor import Predictor, likeliest
from vitrine.inference.results import Row

DIGITS = 7  # of probabilities: more than float32 has


@dataclass(frozen=True)
class Ensemble:
    """Averages the probabilities of models; of a single one, gives its own.

    Attributes:
        predictors: the models, on one device.
        classes: names of their classes.
        top_k: number of classes to give for each picture.
        threshold: least probability of the classes that are given, where ``multi_label``.
        multi_label: whether pictures have several labels.
        features: whether rows have features; for a single model.
    """

    predictors: Sequence[Predictor]
    classes: list[str]
    top_k: int
    threshold: float
    multi_label: bool
    features: bool = False

    @cached_property
    def preparations(self) -> list[Preparation]:
        """The different ones among those of the models."""
        return list(dict.fromkeys(predictor.preparation for predictor in self.predictors))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.classes)}

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return self.predictors[0].device

    @property
    def bytes_per_picture(self) -> int:
        """Size of a picture as all models take it, in bytes."""
        return sum(math.prod(preparation.decoder.shape) for preparation in self.preparations)

    def identity(self, runs: Sequence[LoadedRun]) -> dict[str, Any]:
        """Return what results depend on, apart from the pictures, as plain values."""
        temperatures = [round(predictor.temperature, 4) for predictor in self.predictors]
        given = {"confidence": self.threshold} if self.multi_label else {"top_k": self.top_k}
        target = {"target": runs[0].target} if runs[0].target else {}
        features = {"features": True} if self.features else {}
        return {"weights": [_checksum(run) for run in runs], "temperature": temperatures, **given, **target, **features}

    def outputs(self, images: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the mean of the models' probabilities, (B, num_classes) float64, and features (B, D) float32.

        Both are on the CPU; without ``features``, D is 0.

        Args:
            images: for each of :attr:`preparations` the pictures, (B, C, H, W) uint8.

        Raises:
            RunError: a model gives a value that is not finite.
        """
        features = torch.empty(len(images[0]), 0)
        if self.features:
            (predictor,) = self.predictors
            logits, features = predictor.logits_and_features(images[0])
            mean = predictor.probabilities_of(logits)
        else:
            given = [
                predictor.probabilities(images[self.preparations.index(predictor.preparation)])
                for predictor in self.predictors
            ]
            mean = given[0] if len(given) == 1 else torch.stack(given).mean(dim=0)
        if not mean.isfinite().all():
            raise RunError("the model gives NaN probabilities: its training has diverged")
        return mean, features

    def rows(
        self, batch: Sequence[Listed], images: Sequence[Tensor], errors: Mapping[int, str], paged: Collection[int]
    ) -> list[Row]:
        """Return a row for each picture of a batch.

        Args:
            batch: paths and true classes.
            images: for each of :attr:`preparations` the readable pictures, (B, C, H, W) uint8.
            errors: by index in ``batch``, why each of the others cannot be read.
            paged: indices in ``batch`` of pictures with further pages.
        """
        if not images:
            return [_unread(picture, errors[index]) for index, picture in enumerate(batch)]
        probabilities, features = self.outputs(images)
        count = len(self.classes) if self.multi_label else self.top_k
        values, indices = (found.tolist() for found in likeliest(probabilities, count))
        rows, number = [], 0
        for index, picture in enumerate(batch):
            if index in errors:
                rows.append(_unread(picture, errors[index]))
                continue
            if self.multi_label:
                given = sum(value >= self.threshold for value in values[number])
                indices[number], values[number] = indices[number][:given], values[number][:given]
            names = [self.classes[position] for position in indices[number]]
            path, label, split = picture
            known = not self.multi_label and label in self._numbers
            of_label = _rounded(float(probabilities[number, self._numbers[label]])) if known else None
            own = base64.b64encode(features[number].numpy().tobytes()).decode()
            shares = [_rounded(value) for value in values[number]]
            has_pages = index in paged
            rows.append(Row(path, names, shares, label, of_label, split=split, features=own, paged=has_pages))
            number += 1
        return rows


def same_classes(runs: Sequence[LoadedRun]) -> list[str]:
    """Return the classes of all ``runs``.

    Raises:
        RunError: theirs differ, or what they answer.
    """
    first = runs[0]
    for run in runs[1:]:
        if run.classes != first.classes:
            theirs, ours = (", ".join(one.classes[:3]) for one in (run, first))
            problem = f"has other classes ({theirs}, ...) than {first.record.path} ({ours}, ...)"
            raise RunError(f"{run.record.path} {problem}; an ensemble needs the same classes in the same order")
        if run.config.data.multi_label != first.config.data.multi_label:
            problem = "are of one label per picture and of several; an ensemble needs models of one kind"
            raise RunError(f"{run.record.path} and {first.record.path} {problem}")
    named = {answer: run.record.path for run in runs if (answer := _answers(run))}
    if len(named) > 1:
        (target, path), (other, another) = list(named.items())[:2]
        problem = "an ensemble needs the same target; target=NAME names one that all have"
        raise RunError(f"{another} answers {other}, {path} {target}; {problem}")
    return first.classes


def _unread(picture: Listed, error: str) -> Row:
    return Row(picture.path, [], [], picture.label, error=error, split=picture.split)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _checksum(run: LoadedRun) -> str:
    """A checksum of a run's checkpoint, from those that its zip format stores."""
    with zipfile.ZipFile(run.weights) as archive:
        parts = [(entry.filename, entry.CRC) for entry in archive.infolist()]
    return f"{zlib.crc32(repr(parts).encode()):08x}"


def _answers(run: LoadedRun) -> str:
    """The target that a run answers; of a CSV file without targets, its column of labels. Empty if it has no name."""
    return run.answers or (LABEL if run.config.data.name == "csv" else "")
