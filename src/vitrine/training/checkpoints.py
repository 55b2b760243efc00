"""Checkpoints: write them atomically, keep the best and the last, and read them safely."""

import math
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import TorchCheckpointIO

from vitrine.config import ViTConfig, vit_config_from
from vitrine.config.parts import ANY
from vitrine.errors import RunError, first_line
from vitrine.files import link, replacing
from vitrine.runs import RunRecord


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint atomically and synced to disk, or raises; Lightning's doesn't sync, and may skip silently."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write ``checkpoint`` to ``path``."""
        try:
            with replacing(Path(path)) as temporary:
                torch.save(checkpoint, temporary)
        except (OSError, RuntimeError) as error:
            problem = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
            raise RunError(f"cannot write {path}: {problem}") from error


class Checkpoints(Callback):
    """Writes last.ckpt after each epoch, and keeps that of the best epoch on validation as best.ckpt.

    Of equal epochs the later is the best: it has trained longer, at a lower learning rate. best.ckpt is a hard link to
    last.ckpt until the next epoch.

    Args:
        record: the run folder.
        monitor: metric that selects the best epoch, ``val/acc`` or ``val/loss``; ``last`` selects the last epoch.
    """

    def __init__(self, record: RunRecord, monitor: str) -> None:
        self.record = record
        self.monitor = monitor
        self.best: dict[str, float] = {}

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Save the epoch, and link it as the best if it is."""
        values = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
        if better := self._better(values):
            self.best = {**values, "best_epoch": trainer.current_epoch + 1}
        self.save(trainer)
        if better and trainer.is_global_zero:
            link(self.record.last, self.record.best)

    def _better(self, values: Mapping[str, float]) -> bool:
        if not self.best or self.monitor == "last":
            return True
        sign = 1 if self.monitor == "val/acc" else -1
        new, best = sign * values[self.monitor], sign * self.best[self.monitor]
        return not (math.isnan(new) or new < best)  # anything is better than NaN

    def save(self, trainer: pl.Trainer) -> None:
        """Write last.ckpt with the current state; every rank must call this."""
        trainer.save_checkpoint(self.record.last)

    def state_dict(self) -> dict[str, Any]:
        """Return the best epoch so far."""
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the best epoch so far."""
        self.best = state["best"]


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of tensors and plain values. Pickled objects are refused, and never executed.

    Raises:
        RunError: there is no checkpoint at ``path``, it is damaged, or it contains pickled objects.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch.load does not compare checksums
        if damaged is not None:
            raise zipfile.BadZipFile(f"{damaged} has a wrong checksum")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise RunError(f"there is no checkpoint {path}: the run stopped before its first epoch was saved") from None
    except pickle.UnpicklingError:
        raise RunError(f"{path} contains pickled objects, which could run any code; refused") from None
    except Exception as error:  # reading a damaged file can fail in any way
        raise RunError(f"{path} is damaged, or not a checkpoint: {first_line(error)}") from None
    if not isinstance(checkpoint, dict) or not {"state_dict", "config"} <= set(checkpoint):
        raise RunError(f"{path} is not a checkpoint of vitrine: it has no state_dict and config")
    return checkpoint


def model_weights(checkpoint: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the model's weights in a checkpoint, under the model's parameter names."""
    prefix = "model."
    weights = checkpoint["state_dict"]
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def load_weights(model: torch.nn.Module, weights: Mapping[str, torch.Tensor], source: str) -> None:
    """Copy ``weights`` into ``model``; raises as :func:`check_weights` does."""
    check_weights(model, weights, source)
    model.load_state_dict(weights)


def check_weights(model: torch.nn.Module, weights: Mapping[str, torch.Tensor], source: str) -> None:
    """Compare names and shapes of ``weights`` with the model's.

    Raises:
        RunError: names or shapes differ; the message names the first three.
    """
    own = model.state_dict()
    problems = [f"{name} is missing" for name in own if name not in weights]
    problems += [f"{name} is not in the model" for name in weights if name not in own]
    problems += [
        f"{name} is {_shape(weights[name])}, the model's is {_shape(own[name])}"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise RunError(f"{source} does not fit the model: {'; '.join(problems[:3])}{more}")


def differences(stored: Mapping[str, Any], config: ViTConfig) -> list[str]:
    """Return the fields of a stored ViTConfig that differ from ``config``, as ``dim=64, not 192``.

    A field that did not exist when it was stored has its default value.
    """
    was = vit_config_from(dict(stored), trust=ANY)  # compared, not built
    return [
        f"{field.name}={getattr(was, field.name)}, not {getattr(config, field.name)}"
        for field in fields(config)
        if getattr(was, field.name) != getattr(config, field.name)
    ]


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a scalar"
