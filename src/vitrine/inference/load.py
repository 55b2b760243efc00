"""Load a run with its model, to use it from Python."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, overload

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor, nn

from vitrine.config import TrainConfig
from vitrine.config.schema import ACCELERATORS
from vitrine.config.serialize import from_plain
from vitrine.config.targets import with_target
from vitrine.config.trust import prefixes
from vitrine.data.preparation import Picture, Preparation
from vitrine.errors import ConfigError, Fault, RunError
from vitrine.inference.predictor import Prediction, Predictor
from vitrine.inference.reading import BATCH
from vitrine.models import VisionTransformer
from vitrine.runs import RunRecord
from vitrine.runs.checkpoints import checkpoint_of
from vitrine.runs.predictions import check_predictions, read_predictions
from vitrine.text import did_you_mean, listed, nearest, nfc, plural, printable
from vitrine.training.weights import trained_model

P = TypeVar("P", bound=Picture)  # a list[str] is no list[Picture]


@dataclass(frozen=True)
class LoadedRun:
    """A run folder with its model.

    Attributes:
        record: the run folder: facts, history, paths.
        trust: prefixes of the dotted names that may be imported.
        target: of a run with several targets, the one that the model answers; empty for the first. Everything else here
            is as of a run with this target alone.
        allow_changed_code: build the model even if the code of its parts was edited since training.
        checkpoint: the epoch of the model, of those that ``callbacks.keep_every`` kept; ``None`` for the best.

    Raises:
        RunError: there is no checkpoint of this epoch.
    """

    record: RunRecord
    trust: tuple[str, ...] = ()
    target: str = ""
    allow_changed_code: bool = False
    checkpoint: int | None = None
    _predictors: dict[str, Predictor] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Look for the checkpoint, without reading it."""
        checkpoint_of(self.record, self.checkpoint)

    @cached_property
    def config(self) -> TrainConfig:
        """The run's configuration, of several targets that of :attr:`target` alone.

        Raises:
            RunError: it cannot be read, names code outside :attr:`trust`, or has no such target.
        """
        config = self.trained_config
        if self.target and self.target not in config.data.targets:
            hint = did_you_mean(nearest(self.target, config.data.targets))
            has = f"its targets are {listed(config.data.targets)}" if config.data.targets else "it has no named targets"
            raise RunError(f"{self.record.path} has no target {self.target}: {has}{hint}")
        return config if len(config.data.targets) < 2 else with_target(config, self.target or config.data.targets[0])

    @cached_property
    def trained_config(self) -> TrainConfig:
        """The configuration that the model was trained with, of all its targets.

        Raises:
            RunError: it cannot be read, names code outside :attr:`trust`, or has targets without their numbers of
                classes.
        """
        config = from_plain(TrainConfig, self.record.config, trust=self.trust, source=self.record.path)
        named, counted = len(config.data.targets), len(config.data.target_classes)
        if named != counted:
            problem = f"has {plural(named, 'target')}, and the number of classes of {counted}"
            raise RunError(f"{self.record.path / 'config.yaml'} {problem}")
        return config

    @property
    def metrics(self) -> dict[str, float]:
        """Final metrics, such as ``test/acc``; empty for a run that is not finished.

        Of an epoch's :attr:`checkpoint`, those that were measured after it, such as ``val/acc``.
        Of the first target, those of all, as the run has them: ``test/acc/above5``. Of another, its own alone, as
        ``test/acc``; losses are summed over all targets, and given with the first.
        """
        metrics = self.record.metrics
        if self.checkpoint is not None:
            rows = [row for row in self.record.history() if row["epoch"] == self.checkpoint]
            metrics = {key: value for row in rows for key, value in row.items() if key.startswith(("val/", "test/"))}
        if not self._suffix:
            return metrics
        own = {}
        for name, value in metrics.items():
            stage, _, rest = name.partition("/")
            kind, _, target = rest.partition("/")
            if target == self.target and not kind.startswith("class_"):  # test/class_acc/cat is of the class cat
                own[f"{stage}/{kind}"] = value
        return own

    @property
    def test_outputs(self) -> tuple[Tensor, Tensor] | None:
        """Stored logits (N, classes) float32 and labels (N,) int64 of the test images, if there are any.

        Where images have several labels, these are (N, classes) uint8. There are none of an epoch's
        :attr:`checkpoint`: they are those of the best.

        Raises:
            RunError: predictions.npz cannot be read, or its logits and labels do not match, or not the configuration.
        """
        path = self.record.path / "predictions.npz"
        if not path.is_file() or self.checkpoint is not None:
            return None
        logits, labels = read_predictions(path, *(name + self._suffix for name in ("logits", "labels")))
        check_predictions(logits, labels, self.record.path)
        if (labels.ndim == 2) != self.config.data.multi_label:
            raise RunError(f"the predictions of {self.record.path} are damaged: labels are {labels.shape}")
        labels = labels if labels.ndim == 2 else labels.astype(np.int64)
        return torch.from_numpy(logits.astype(np.float32)), torch.from_numpy(labels)

    @property
    def _suffix(self) -> str:
        """What the names of metrics and predictions of the target end with; the first target's are without."""
        return "" if self.target in self.trained_config.data.targets[:1] or not self.target else f"/{self.target}"

    @property
    def weights(self) -> Path:
        """The checkpoint that the model is read from.

        Raises:
            RunError: there is none of the epoch :attr:`checkpoint`.
        """
        return checkpoint_of(self.record, self.checkpoint)

    @cached_property
    def model(self) -> nn.Module:
        """The model of the best epoch, or of :attr:`checkpoint`, on the CPU, in evaluation mode.

        Takes normalised images, (B, C, H, W), float.

        Raises:
            RunError: the checkpoint is missing, damaged or refused, names code outside :attr:`trust` or code that was
                edited, takes images of another shape or has other outputs than config.yaml says, or has a model of the
                user's own that answers several targets.
        """
        model = trained_model(
            self.record,
            self.weights,
            self.trained_config,
            trust=self.trust,
            allow_changed_code=self.allow_changed_code,
        )
        if len(self.trained_config.data.targets) > 1:
            if type(model) is not VisionTransformer:
                raise RunError(f"{self.record.path}: {self.config.model.name} is your own and answers several targets")
            model = model.with_outputs(self._outputs)
        return model.eval()

    @property
    def _outputs(self) -> slice:
        """Which of all targets' logits are those of the one target."""
        classes, index = self.trained_config.data.classes_per_target, self.target_index
        return slice(sum(classes[:index]), sum(classes[: index + 1]))

    @property
    def answers(self) -> str:
        """The target that the model answers, made printable; empty if the run has no named targets."""
        return printable(next(iter(self.config.data.targets), ""))

    @property
    def target_index(self) -> int:
        """Which of the trained targets the model answers; 0 is the first, and that of a run without named targets."""
        targets = self.trained_config.data.targets
        return targets.index(self.config.data.targets[0]) if targets else 0

    @cached_property
    def classes(self) -> list[str]:
        """Names of the model's classes, indexed by its output, made printable, in Unicode's form NFC.

        Classes of a run that stored no names are called by their numbers, outputs beyond the classes of the data
        ``no. 10``, ``no. 11``, ...

        Raises:
            RunError: run.json does not name each class of the data once.
        """
        count, outputs = self.config.data.num_classes, self.config.model.num_classes
        names = self.record.facts.get("classes")
        if len(self.trained_config.data.targets) > 1:
            names = (self.record.facts.get("targets") or {}).get(self.config.data.targets[0])
        names = [printable(name) for name in names or range(count)]
        if len(composed := dict.fromkeys(map(nfc, names))) == len(names):  # not so where an old run had one name twice
            names = list(composed)
        if len(names) != count or len(set(names)) != count:
            given = plural(len(set(names)), "different class", "different classes")
            raise RunError(f"{self.record.path / 'run.json'} names {given}, the model was trained on {count}")
        return names + [f"no. {index}" for index in range(count, outputs)]

    @property
    def feature_size(self) -> int:
        """Number of features of a picture, D.

        Raises:
            RunError: see :attr:`model`; or the model is not a Vision Transformer of vitrine's.
        """
        if type(self.model) is not VisionTransformer:  # a class of the user's may compute otherwise
            problem = "has no features: its model is not a Vision Transformer of vitrine's"
            raise RunError(f"{self.record.path} {problem}")
        return self.model.config.dim

    @cached_property
    def transform(self) -> Preparation:
        """Prepares a picture as in training: ``run.transform(picture)`` is (C, H, W) float32, normalised.

        ``run.model(run.transform(picture)[None])`` gives logits; ``run.transform.pixels`` stops before normalising.
        """
        known = (self.record.facts.get("data_fingerprint") or {}).get("train", {})
        from_files = True if "sizes" in known else False if "pixels" in known else None
        return Preparation.of(self.config.data, from_files=from_files)

    @overload
    def predict(self, pictures: str | Path | BinaryIO | Image, *, accelerator: str = "auto") -> Prediction: ...

    @overload
    def predict(self, pictures: list[Picture], *, accelerator: str = "auto") -> list[Prediction]: ...

    @overload
    def predict(self, pictures: list[P], *, accelerator: str = "auto") -> list[Prediction]: ...

    @overload
    def predict(self, pictures: np.ndarray | Tensor, *, accelerator: str = "auto") -> Any: ...

    def predict(self, pictures: Picture | list[P], *, accelerator: str = "auto") -> Prediction | list[Prediction]:
        """Classify one picture, or several, as ``predict.py`` does.

        Args:
            pictures: paths of image files, or open files; Pillow images of any mode; arrays (H, W) or (H, W, C) uint8;
                tensors (C, H, W) uint8; values are from 0 to 255. A list, or a tensor or array with one more dimension
                in front, is a batch.
            accelerator: ``auto`` uses a GPU if there is one; else ``cpu`` or ``gpu``.

        Returns:
            A prediction, or for a batch a list of them.

        Raises:
            DataError: a picture cannot be read, or has another type, shape or number of channels.
            RunError: see :attr:`model` and :attr:`classes`.
            ConfigError: there is no such device.
        """
        classes = self.classes
        single, outputs = self._computed(pictures, Predictor.probabilities, accelerator)
        found = [Prediction(classes, row) for part in outputs for row in part.clone()]
        return found[0] if single else found

    @overload
    def features(self, pictures: Picture | list[Picture], *, accelerator: str = "auto") -> Tensor: ...

    @overload
    def features(self, pictures: list[P], *, accelerator: str = "auto") -> Tensor: ...

    def features(self, pictures: Picture | list[P], *, accelerator: str = "auto") -> Tensor:
        """Return the features of one picture, or of several: what the model's head reads, in the precision of training.

        Args:
            pictures: as for :meth:`predict`.
            accelerator: as for :meth:`predict`.

        Returns:
            (D,) float32 on the CPU, or for a batch (N, D); D is :attr:`feature_size`.

        Raises:
            DataError: a picture cannot be read, or has another type, shape or number of channels.
            RunError: see :attr:`feature_size`.
            ConfigError: there is no such device.
        """
        none = torch.empty(0, self.feature_size)
        single, outputs = self._computed(pictures, Predictor.features, accelerator)
        found = torch.cat([none, *outputs])
        return found[0] if single else found

    def _computed(
        self, pictures: Picture | list[P], compute: Callable[[Predictor, Tensor], Tensor], accelerator: str
    ) -> tuple[bool, list[Tensor]]:
        """Return whether ``pictures`` is a single one, and what ``compute`` gives for each ``BATCH`` of them."""
        stacked = isinstance(pictures, (np.ndarray, Tensor)) and pictures.ndim == 4
        single = not stacked and not isinstance(pictures, list)
        batch: list[Picture] = [pictures] if single else list(pictures)  # type: ignore[list-item, arg-type]
        if not batch:
            return False, []
        if accelerator not in ACCELERATORS:
            problem = f"must be one of {', '.join(ACCELERATORS)}"
            raise ConfigError([Fault("accelerator", accelerator, problem, nearest(accelerator, ACCELERATORS))])
        if accelerator not in self._predictors:
            self._predictors[accelerator] = Predictor(self.model, self.config, accelerator, self.transform)
        predictor = self._predictors[accelerator]
        parts = (batch[start : start + BATCH] for start in range(0, len(batch), BATCH))
        with predictor.hardware.set_up():
            return single, [
                compute(predictor, torch.stack([self.transform.pixels(picture) for picture in part])) for part in parts
            ]


def load_run(
    folder: str | Path,
    *,
    trust: Collection[str] = (),
    target: str = "",
    allow_changed_code: bool = False,
    checkpoint: int | None = None,
) -> LoadedRun:
    """Open a run folder, in a program that may change its working directory.

    Args:
        folder: the run folder.
        trust: prefixes of the dotted names that the run may import, for runs with parts of your own: ``["my_lab"]``.
        target: of a run with several targets, the one that the model answers; by default, the first.
        allow_changed_code: build the model even if the code of its parts was edited since training.
        checkpoint: the epoch of the model, of those that ``callbacks.keep_every`` kept; by default, the best.

    Raises:
        RunError: there is no run at ``folder``, or no checkpoint of this epoch.
    """
    record = RunRecord(RunRecord.open(folder).path.absolute())
    return LoadedRun(record, prefixes(trust), target, allow_changed_code, checkpoint)
