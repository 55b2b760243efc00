"""The progress of a training: one line that is redrawn in a terminal, else a line for each epoch."""

import time
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text

from vitrine.durations import clock
from vitrine.training.lit_module import Classifier

PARTS = ("epoch", "step", "bar", "percent", "loss", "acc", "speed", "mfu", "left")
# Where the terminal is narrow, parts are left out from the end of this list.
BY_IMPORTANCE = ("left", "epoch", "loss", "acc", "bar", "percent", "speed", "step", "mfu")
BAR_WIDTH, GAP = 10, 2


class ProgressBar(Callback):
    """Shows epoch, step, loss, validation accuracy, speed, MFU and the time left.

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
        self._live = Live(console=console, refresh_per_second=1 / self.REDRAW_SECONDS)
        self._drawn = 0.0
        self._begin: tuple[float, int] | None = None  # time and step of the first batch, after compiling

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Draw the empty bar."""
        self._begin = None
        if self.console.is_terminal:
            self._live.start()
            self._draw(trainer, module)

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Begin to measure the time of a step."""
        if self._begin is None:
            self._begin = (time.monotonic(), trainer.global_step)

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Redraw the bar, at most every ``REDRAW_SECONDS``."""
        if self.console.is_terminal and time.monotonic() - self._drawn > self.REDRAW_SECONDS:
            self._draw(trainer, module)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Show the epoch's metrics."""
        if self.console.is_terminal:
            self._draw(trainer, module)
        else:
            shown = self._parts(trainer, module)
            line = "{epoch}  {loss}  {acc}  {speed}, {mfu}  {left}"
            print(line.format(**shown), file=self.console.file, flush=True)

    def teardown(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        """Leave the bar as it is."""
        self._live.stop()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        """Leave the bar as it is: after an error Lightning does not call ``teardown``."""
        self._live.stop()

    def _draw(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._drawn = time.monotonic()
        self._live.update(ProgressLine(self._parts(trainer, module), trainer.global_step / self.steps))

    def _parts(self, trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, str]:
        """The texts of the line, by name."""
        assert isinstance(module, Classifier)
        latest = module.latest
        loss = latest.get("train/loss")
        if loss is None and module.unlogged:  # nothing is logged yet: waits for the device, in the first steps only
            loss = float(module.unlogged[-1][0].mean())
        mfu = latest.get("mfu_datasheet", latest.get("mfu_measured"))
        begin, before = self._begin or (0.0, trainer.global_step)
        done = trainer.global_step - before
        left = (time.monotonic() - begin) / done * max(0, self.steps - trainer.global_step) if done else None
        return {
            "epoch": f"epoch {min(trainer.current_epoch + 1, self.epochs)}/{self.epochs}",
            "step": f"step {trainer.global_step:,}/{self.steps:,}",
            "percent": f"{trainer.global_step / self.steps:4.0%}",
            "loss": f"loss {'-' if loss is None else format(loss, '.3f')}",
            "acc": f"val acc {latest['val/acc']:.4f}" if "val/acc" in latest else "val acc -",
            "speed": f"{latest['images_per_second']:,.0f} images/s" if "images_per_second" in latest else "- images/s",
            "mfu": f"MFU {'-' if mfu is None else format(mfu, '.0%')}",
            "left": f"left {'-' if left is None else clock(left)}",
        }


class ProgressLine:
    """One line with as many of the ``parts`` as fit its width, the most important ones first.

    Args:
        parts: text of each of ``PARTS`` but the bar.
        share: of the training that is done, in [0, 1].
    """

    def __init__(self, parts: Mapping[str, str], share: float) -> None:
        self.parts, self.share = parts, share

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the line out."""
        kept: set[str] = set()
        room = options.max_width
        for name in BY_IMPORTANCE:
            width = (BAR_WIDTH if name == "bar" else len(self.parts[name])) + GAP * bool(kept)
            if width > room:
                break
            kept.add(name)
            room -= width
        line = Table.grid(padding=(0, GAP, 0, 0), expand="bar" in kept, pad_edge=False)
        shown = [name for name in PARTS if name in kept]
        for name in shown:
            line.add_column(no_wrap=True, ratio=1 if name == "bar" else None)
        line.add_row(*(Bar(1.0, self.share) if name == "bar" else Text(self.parts[name]) for name in shown))
        yield line
