"""Writing checkpoints: atomically, keeping the best and the last. :mod:`vitrine.training.weights` reads them."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import TorchCheckpointIO

from vitrine.errors import RunError, first_line
from vitrine.files import link, replacing
from vitrine.runs import RunRecord


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint atomically and synced to disk, or raises; Lightning's doesn't sync, and may skip silently."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write ``checkpoint`` to ``path``."""
        try:
            with replacing(Path(path)) as temporary, temporary.open("wb") as file:
                torch.save(checkpoint, file)  # to a path, its error would not say that the disk is full
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
