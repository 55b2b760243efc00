"""Writing checkpoints: atomically, keeping the best, the last two and every Nth; weights.py reads them.

last.ckpt, previous.ckpt and best.ckpt are separate files, so that one damaged block damages one of them.
"""

import math
import pickle
from collections import Counter, OrderedDict
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import TorchCheckpointIO

from vitrine.config.metrics import lower_is_better
from vitrine.config.parts import PartError
from vitrine.errors import RunError, first_line
from vitrine.files import copy, naming_failed_write, replacing
from vitrine.runs import RunRecord
from vitrine.runs.checkpoints import epoch_path

PLAIN = (torch.Tensor, torch.nn.Parameter, int, float, str, bool, type(None))
CONTAINERS = (dict, OrderedDict, Counter, list, tuple, set)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint atomically and synced to disk, or raises; Lightning's doesn't sync, and may skip silently."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write ``checkpoint`` to ``path``. An older ``last.ckpt`` becomes ``previous.ckpt``, without being copied."""
        path = Path(path)
        keep = path.with_name("previous.ckpt") if path.name == "last.ckpt" else None
        try:
            with replacing(path, keep=keep) as temporary, temporary.open("wb") as file:
                refuse_objects(checkpoint)
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
        keep_every: the checkpoint of every so many epochs is kept for good, as epoch_N.ckpt; ``None`` keeps none.
    """

    def __init__(self, record: RunRecord, monitor: str, keep_every: int | None = None) -> None:
        self.record = record
        self.monitor = monitor
        self.keep_every = keep_every
        self.best: dict[str, float] = {}

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Refuse callbacks whose state cannot be saved, and forget a best epoch whose best.ckpt was damaged.

        Then the best is selected among the epochs to come.
        """
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        named = {f"{type(one).__module__}.{type(one).__qualname__}": one.state_dict() for one in callbacks}
        refuse_objects({"callbacks": named})
        if not self.record.best.exists():
            self.best = {}

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Save the epoch, keep it if it is due, and copy it if it is the best.

        What is kept is written first: a run that is killed in between trains the epoch again, and writes it again.
        """
        epoch = trainer.current_epoch + 1
        values = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
        if better := self._better(values):
            self.best = {**values, "best_epoch": epoch}
        if self.keep_every is not None and epoch % self.keep_every == 0:
            self.save(trainer, epoch_path(self.record, epoch))
        self.save(trainer)
        if better and trainer.is_global_zero:
            copy_checkpoint(self.record.last, self.record.best)

    def _better(self, values: Mapping[str, float]) -> bool:
        if not self.best or self.monitor == "last":
            return True
        sign = -1 if lower_is_better(self.monitor) else 1
        new, best = sign * values[self.monitor], sign * self.best[self.monitor]
        return not (math.isnan(new) or new < best)  # anything is better than NaN

    def save(self, trainer: pl.Trainer, path: Path | None = None) -> None:
        """Write last.ckpt, or ``path``, with the current state; every rank must call this.

        Raises:
            RunError: it cannot be written, or another process has taken the run over.
        """
        if trainer.is_global_zero:
            self.record.check_claim()
        trainer.save_checkpoint(path or self.record.last)

    def state_dict(self) -> dict[str, Any]:
        """Return the best epoch so far."""
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the best epoch so far."""
        self.best = state["best"]


def refuse_objects(checkpoint: Mapping[str, Any]) -> None:
    """Refuse, before a checkpoint is written, what ``read_checkpoint`` would refuse to read.

    Raises:
        PartError: the state of a callback, or another entry of ``checkpoint``, holds such an object.
    """
    entries = {f"the checkpoint's entry {name}": value for name, value in checkpoint.items() if name != "callbacks"}
    for name, state in {**checkpoint.get("callbacks", {}), **entries}.items():
        if (kind := _unreadable(state)) is not None:
            problem = f"holds a {kind.__module__}.{kind.__qualname__}, which cannot be restored"
            raise PartError(name, f"{problem}: a state has numbers, texts, lists, dicts and tensors alone")


def _unreadable(value: Any) -> type | None:
    """Return the type of the first object in ``value`` that is not read again; ``None`` if there is none."""
    kind = type(value)
    if kind in PLAIN:
        return None
    if kind in CONTAINERS:
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        return next((found for found in map(_unreadable, inner) if found is not None), None)
    try:
        torch.save(value, file := BytesIO())
        file.seek(0)
        torch.load(file, weights_only=True)
    except (pickle.PickleError, TypeError, AttributeError):  # the latter two: it cannot be written either
        return kind
    return None


def copy_checkpoint(source: Path, path: Path) -> None:
    """Copy a checkpoint, atomically.

    Raises:
        RunError: the copy cannot be written.
    """
    with naming_failed_write(path):
        copy(source, path)
