"""What happens around training: progress for a person, and rows for the record."""

import time
from collections.abc import Mapping
from typing import Any, Protocol

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from vitrine.errors import Pruned
from vitrine.text import clock
from vitrine.training.graceful_stop import CleanStop
from vitrine.training.lit_module import Classifier


class Judge(Protocol):
    """Says after each epoch whether a run is worth going on with; sent to the process that trains."""

    def __call__(self, epoch: int, metrics: Mapping[str, float]) -> bool:
        """Whether to stop after ``epoch``, from 1, with these validation metrics."""


class Pruning(Callback):
    """Raises :class:`Pruned` after an epoch that ``judge`` finds not worth going on from; the first process asks it.

    A signal that has come in the same epoch goes before, and so does the clock: the whole command is to stop then.
    """

    def __init__(self, judge: Judge, clean_stop: CleanStop) -> None:
        self.judge = judge
        self.clean_stop = clean_stop

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Tell what the epoch has reached, and stop unless it was the last one anyway."""
        epoch = trainer.current_epoch + 1
        values = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
        stop = trainer.strategy.broadcast(trainer.is_global_zero and self.judge(epoch, values))
        if stop and epoch != trainer.max_epochs and not self.clean_stop.agreed(trainer, trained=False):
            reached = ", ".join(f"{name} {value:.4f}" for name, value in sorted(values.items()))
            raise Pruned(f"after epoch {epoch} of {trainer.max_epochs}, at {reached}")


class TrainingLog(Callback):
    """Writes a row of the training log every ``every`` steps and at the end of an epoch.

    In a single process these are the only steps at which this project waits for the device.
    """

    def __init__(self, every: int) -> None:
        self.every = every

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Write a row if it is time."""
        assert isinstance(module, Classifier)
        last_of_epoch = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        if trainer.global_step % self.every == 0 or last_of_epoch:
            module.log_training()


class ProgressBar(Callback):
    """One bar over the whole training, with epoch, loss, validation accuracy, speed and time left.

    MFU is the model's share of what the datasheet promises, or else of what matrix products reach here (speed.py).

    Where the output is no terminal, a line for each epoch. Redrawn by time, not by step.

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
        """Redraw if that was long ago."""
        if self.console.is_terminal and time.monotonic() - self._drawn > self.REDRAW_SECONDS:
            self._draw(trainer, module)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Show what the epoch has reached."""
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
        """Leave the bar as it is: Lightning tears nothing down after an error."""
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
