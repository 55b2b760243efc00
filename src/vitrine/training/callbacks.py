"""Lightning callbacks: progress display, training log, and early stopping by a search's pruning rule."""

import time
from collections.abc import Mapping
from typing import Any, Protocol

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from vitrine.errors import Pruned
from vitrine.text import clock
from vitrine.training.graceful_stop import GracefulStop
from vitrine.training.lit_module import Classifier


class PruningRule(Protocol):
    """Decides after each epoch whether a run of a search is stopped early. Must be picklable."""

    def __call__(self, epoch: int, metrics: Mapping[str, float]) -> bool:
        """Return whether to stop after ``epoch``, counted from 1, with these validation metrics."""


class Pruning(Callback):
    """Raises :class:`Pruned` after an epoch if ``rule`` says so; rank 0 asks it.

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
        if stop and epoch != trainer.max_epochs and not self.graceful_stop.agreed(trainer, trained=False):
            reached = ", ".join(f"{name} {value:.4f}" for name, value in sorted(values.items()))
            raise Pruned(f"after epoch {epoch} of {trainer.max_epochs}, at {reached}")


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


class ProgressBar(Callback):
    """A bar over the whole training, with epoch, loss, validation accuracy, speed, MFU and time left.

    MFU is relative to the datasheet's peak if known, otherwise to a matrix product's measured speed. Without a
    terminal, prints a line per epoch instead.

    Args:
        console: where to draw.
        epochs: epochs in the whole training.
        steps: optimiser steps in the whole training.
    """

    REDRAW_SECONDS = 0.2

    def __init__(self, console: Console, epochs: int, steps: int) -> None:
        self.console = console
        self.epochs = epochs
        self.steps = steps
        self.progress = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("val acc {task.fields[acc]}"),
            TextColumn("{task.fields[speed]} images/s, MFU {task.fields[mfu]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )
        self._task = self.progress.add_task(
            "", total=steps, epoch=0, epochs=epochs, loss="-", acc="-", speed="-", mfu="-"
        )
        self._drawn = 0.0
        self._begin = (0.0, 0)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Draw the empty bar."""
        self._begin = (time.monotonic(), trainer.global_step)
        if self.console.is_terminal:
            self.progress.start()
            self._draw(trainer, module)

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Redraw the bar, at most every ``REDRAW_SECONDS``."""
        if self.console.is_terminal and time.monotonic() - self._drawn > self.REDRAW_SECONDS:
            self._draw(trainer, module)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Show the epoch's metrics."""
        if self.console.is_terminal:
            self._draw(trainer, module)
        else:
            fields = self._fields(trainer, module)
            begin, before = self._begin
            pace = (time.monotonic() - begin) / max(1, trainer.global_step - before)
            left = clock(pace * (self.steps - trainer.global_step))
            line = "epoch {epoch}/{epochs}  loss {loss}  val acc {acc}  {speed} images/s, MFU {mfu}  left {left}"
            print(line.format(epochs=self.epochs, left=left, **fields), file=self.console.file, flush=True)

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        """Leave the bar as it is."""
        self.progress.stop()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        """Leave the bar as it is: after an error Lightning does not call ``teardown``."""
        self.progress.stop()

    def _draw(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._drawn = time.monotonic()
        self.progress.update(self._task, completed=trainer.global_step, **self._fields(trainer, module))

    def _fields(self, trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, Any]:
        assert isinstance(module, Classifier)
        latest = module.latest
        mfu = latest.get("mfu_datasheet", latest.get("mfu_measured"))
        return {
            "epoch": min(trainer.current_epoch + 1, self.epochs),
            "loss": f"{latest['train/loss']:.3f}" if "train/loss" in latest else "-",
            "acc": f"{latest['val/acc']:.4f}" if "val/acc" in latest else "-",
            "speed": f"{latest['images_per_second']:,.0f}" if "images_per_second" in latest else "-",
            "mfu": f"{mfu:.0%}" if mfu is not None else "-",
        }
