"""Writing checkpoints: atomically, keeping the best and the last two. :mod:`vitrine.training.weights` reads them.

last.ckpt, previous.ckpt and best.ckpt are separate files, so that one damaged block damages one of them.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import TorchCheckpointIO

from vitrine.config.metrics import VALIDATION
from vitrine.errors import RunError, first_line
from vitrine.files import copy, replacing
from vitrine.runs import RunRecord


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint atomically and synced to disk, or raises; Lightning's doesn't sync, and may skip silently."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write ``checkpoint`` to ``path``. The file that was there becomes ``previous.ckpt``, without being copied."""
        path = Path(path)
        try:
            with replacing(path, keep=path.with_name("previous.ckpt")) as temporary, temporary.open("wb") as file:
                torch.save(checkpoint, file)  # to a path, its error would not say that the disk is full
        except (OSError, RuntimeError) as error:
            problem = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
            raise RunError(f"cannot write {path}: {problem}") from error


class Checkpoints(Callback):
    """Writes last.ckpt after each epoch, and copies that of the best epoch on validation to best.ckpt.

    Of equal epochs the later is the best: it has trained longer, at a lower learning rate.

    Args:
        record: the run folder.
        monitor: metric of the validation split that selects the best epoch (config/metrics.py); or ``last``.
    """

    def __init__(self, record: RunRecord, monitor: str) -> None:
        self.record = record
        self.monitor = monitor
        self.best: dict[str, float] = {}

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Forget the best epoch of a resumed run whose best.ckpt was damaged: it is selected among those to come."""
        if not self.record.best.exists():
            self.best = {}

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Save the epoch, and copy it if it is the best."""
        values = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
        if better := self._better(values):
            self.best = {**values, "best_epoch": trainer.current_epoch + 1}
        self.save(trainer)
        if better and trainer.is_global_zero:
            copy_checkpoint(self.record.last, self.record.best)

    def _better(self, values: Mapping[str, float]) -> bool:
        if not self.best or self.monitor == "last":
            return True
        sign = 1 if VALIDATION[self.monitor] else -1
        new, best = sign * values[self.monitor], sign * self.best[self.monitor]
        return not (math.isnan(new) or new < best)  # anything is better than NaN

    def save(self, trainer: pl.Trainer) -> None:
        """Write last.ckpt with the current state; every rank must call this.

        Raises:
            RunError: it cannot be written, or another process has taken the run over.
        """
        if trainer.is_global_zero:
            self.record.check_claim()
        trainer.save_checkpoint(self.record.last)

    def state_dict(self) -> dict[str, Any]:
        """Return the best epoch so far."""
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the best epoch so far."""
        self.best = state["best"]


def copy_checkpoint(source: Path, path: Path) -> None:
    """Copy a checkpoint, atomically.

    Raises:
        RunError: the copy cannot be written.
    """
    try:
        copy(source, path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error
