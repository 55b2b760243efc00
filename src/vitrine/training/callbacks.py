"""Lightning callbacks: the training log, early stopping, also by a search's pruning rule, and the cache of pixels."""

from collections.abc import Mapping
from typing import Any, Protocol

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from vitrine.config.metrics import lower_is_better
from vitrine.config.schema import EarlyStoppingConfig
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.pixel_store import complete_all
from vitrine.errors import Pruned
from vitrine.text import plural
from vitrine.training.graceful_stop import GracefulStop
from vitrine.training.lit_module import Classifier


class PruningRule(Protocol):
    """Decides after each epoch whether a run of a search is stopped early. Must be picklable."""

    def __call__(self, epoch: int, metrics: Mapping[str, float]) -> bool:
        """Return whether to stop after ``epoch``, counted from 1, with these validation metrics."""


class EarlyStopping(pl.callbacks.EarlyStopping):
    """Lightning's, with a state from which a run can be resumed.

    It counts an epoch after its validation, before the checkpoint of that epoch is written. A run that was interrupted
    after it had stopped, as in its test, trains no further epoch.
    """

    def __init__(self, config: EarlyStoppingConfig) -> None:
        super().__init__(
            config.monitor,
            config.min_delta,
            config.patience,
            mode="min" if lower_is_better(config.monitor) else "max",
            check_finite=False,  # a non-finite metric is no improvement; trainer.on_divergence decides whether to stop
            check_on_train_epoch_end=False,
        )

    @property
    def exhausted(self) -> bool:
        """Whether the patience is."""
        return self.wait_count >= self.patience

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Stop at once if the patience was exhausted before."""
        trainer.should_stop = self.exhausted

    def reason(self, epochs: int) -> str:
        """Return why training ended after so many epochs; empty if early stopping did not end it."""
        if not self.exhausted:
            return ""
        stopped = f"stopped early after epoch {epochs}: {self.monitor}"
        if not self.best_score.isfinite():
            return f"{stopped} was NaN or infinite in every epoch"
        by = f" by {abs(self.min_delta):g}" if self.min_delta else ""
        return f"{stopped} did not improve{by} for {plural(self.patience, 'epoch')}"


def stopped_early(config: EarlyStoppingConfig | None, checkpoint: Mapping[str, Any]) -> str:
    """Return how early stopping ended the run that a checkpoint belongs to; empty if it did not."""
    if config is None:
        return ""
    stopping = EarlyStopping(config)
    if (state := checkpoint.get("callbacks", {}).get(stopping.state_key)) is not None:
        stopping.load_state_dict(state)
    return stopping.reason(checkpoint["epoch"] + 1)


def stopped_before(trainer: pl.Trainer) -> str:
    """Return why training ended before its planned last epoch."""
    epochs = trainer.current_epoch
    reasons = [one.reason(epochs) for one in trainer.callbacks if isinstance(one, EarlyStopping)]  # type: ignore[attr-defined]
    return "".join(reasons) or f"stopped after epoch {epochs} of {trainer.max_epochs} by a callback"


class Pruning(Callback):
    """Raises :class:`Pruned` after an epoch if ``rule`` returns True; rank 0 asks it.

    A signal or the end of ``trainer.max_time`` in the same epoch takes precedence: it stops the whole command.
    """

    def __init__(self, rule: PruningRule, graceful_stop: GracefulStop) -> None:
        self.rule = rule
        self.graceful_stop = graceful_stop

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Pass the epoch's metrics to the rule, and stop unless the epoch was the last anyway."""
        epoch = trainer.current_epoch + 1
        values = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
        stop = trainer.strategy.broadcast(trainer.is_global_zero and self.rule(epoch, values))
        last = trainer.should_stop or epoch == trainer.max_epochs  # should_stop: by early stopping, in this epoch
        if stop and not last and not self.graceful_stop.agreed(trainer, trained=False):
            reached = ", ".join(f"{name} {value:.4f}" for name, value in sorted(values.items()))
            raise Pruned(f"after epoch {epoch} of {trainer.max_epochs}, at {reached}")


class CompleteCache(Callback):
    """Decodes, after an epoch, the image files that it did not need, and writes the cache of pixels.

    Comes after ``graceful_stop``, so that it does not count as a part of the epoch's end.
    """

    def __init__(self, data: ImageDataModule, graceful_stop: GracefulStop) -> None:
        self.data = data
        self.graceful_stop = graceful_stop

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Complete what is incomplete, unless a signal or the time limit comes first."""
        complete_all(self.data.incomplete, self.graceful_stop.due)


class TrainingLog(Callback):
    """Logs training metrics every ``every`` steps and at the end of an epoch.

    With one rank, these are the only steps at which vitrine waits for the device.
    """

    def __init__(self, every: int) -> None:
        self.every = every

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Log a row if one is due."""
        assert isinstance(module, Classifier)
        last_of_epoch = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        if trainer.global_step % self.every == 0 or last_of_epoch:
            module.log_training()
