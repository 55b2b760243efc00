"""Stop training on a signal or a time limit after a whole step, with a checkpoint, so that it can be resumed."""

import os
import signal
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from vitrine.data.decode import Undecodable
from vitrine.errors import DataError, Interrupted, OutOfTime
from vitrine.signals import handle_stop_signals, importing, send_again
from vitrine.text import report
from vitrine.training.checkpoints import Checkpoints
from vitrine.training.lit_module import Classifier


class TimeLimit:
    """Decides whether enough time is left, from how long steps and ends of epochs have taken so far.

    After a step there must be time for another and for the end of an epoch, with its validation and checkpoint; after
    the last epoch, for the test. Steps are measured by a clock that stands still while a computer sleeps.

    Args:
        stop_by: when the process must have ended, as ``time.time()`` gives it; infinite for no limit.
        sizes: number of images in ``train``, ``val`` and ``test``.
    """

    MARGIN = 5.0  # seconds for what is not measured: plots, trackers, the end of the process

    def __init__(self, stop_by: float, sizes: Mapping[str, int]) -> None:
        self.stop_by = stop_by
        self.sizes = sizes
        self._last_step_end: float | None = None
        self._seconds, self._images = 0.0, 0  # of all measured steps
        self._longest_step = 0.0
        self._longest_end = 0.0

    def begin(self) -> None:
        """Expect steps; the first is not measured, as it may include warm-up."""
        self._last_step_end = None

    def step_done(self, images: int) -> None:
        """Measure a step of ``images`` images that has just ended."""
        now = time.monotonic()
        if self._last_step_end is not None:
            took = now - self._last_step_end
            self._longest_step = max(self._longest_step, took)
            self._seconds, self._images = self._seconds + took, self._images + images
        self._last_step_end = now

    def epoch_done(self) -> None:
        """Measure the end of an epoch: validation and checkpoint since the last step."""
        if self._last_step_end is not None:
            self._longest_end = max(self._longest_end, time.monotonic() - self._last_step_end)

    def over(self, *, trained: bool = False) -> bool:
        """Return whether no time is left for another step, or, once all epochs are ``trained``, for the test."""
        end = self._epoch_end_seconds()
        needed = end * self.sizes["test"] / self.sizes["val"] if trained else self._longest_step + end
        return time.time() + needed + self.MARGIN >= self.stop_by

    def _epoch_end_seconds(self) -> float:
        """Return the longest end of an epoch; before the first, the (longer) time of training on as many images."""
        return self._longest_end or self._seconds / max(1, self._images) * self.sizes["val"]


class GracefulStop(Callback):
    """On a stop signal, or when time is nearly over: finish the step, save, and raise :class:`Interrupted`.

    Before the first step, while a compiler may be tried for long, a signal stops at once, and so does a second Ctrl-C
    at any time. Several ranks stop after the same step, about a second after any of them was asked to: they agree on
    it every few steps, as many as a second takes. Use inside :func:`vitrine.signals.restored_handlers`.

    A rank that trains alone also saves where the images of the next step cannot be read, unless it trains a sweep's
    trial and a file is damaged.

    Args:
        checkpoints: saves the current state; ``None`` if there is nothing to save, and a signal always stops at once.
        limit: the time limit.
    """

    AGREE_SECONDS = 1.0

    def __init__(self, checkpoints: Checkpoints | None, limit: TimeLimit) -> None:
        self.checkpoints = checkpoints
        self.limit = limit
        self.asked = False
        self._doing = ""  # what a signal lets finish; empty before the first step
        self._every = 1  # steps between two agreements of several ranks
        self._agreement = (0.0, 0)  # (time, step) of the last

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Install the signal handlers, which Python allows in the main thread only."""
        self._reports = trainer.is_global_zero
        if threading.current_thread() is threading.main_thread():
            handle_stop_signals(self._ask)

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Let a signal finish the step from now on."""
        self._doing = "step" if self.checkpoints is not None else ""

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Save and stop if asked to; after the last step of an epoch, validation comes first."""
        assert isinstance(module, Classifier)
        self.limit.step_done(module.images_per_step)
        due = trainer.world_size == 1 or trainer.global_step >= self._agreement[1] + self._every
        if not due or trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            return
        if stop := self.agreed(trainer, trained=False):
            if self.checkpoints is not None:
                self.checkpoints.save(trainer)
            raise stop
        if trainer.world_size > 1:
            self._set_next(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Start timing the epoch."""
        self.limit.begin()

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Let a signal finish validation from now on."""
        self._doing = "validation"

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Stop if asked to; the epoch has been saved."""
        self.limit.epoch_done()
        trained = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        if stop := self.agreed(trainer, trained=trained):
            raise stop

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        """Save the steps before a batch that cannot be read; other ranks would be inside the next step.

        Of a sweep's trial, nothing is saved at a damaged file: resumed, the trial would find the repaired data changed.
        """
        if not isinstance(exception, DataError) or self._doing != "step" or trainer.world_size > 1:
            return
        assert self.checkpoints is not None
        record, damaged = self.checkpoints.record, isinstance(exception, Undecodable)
        of_sweep = record.facts.get("group") is not None
        if of_sweep and damaged:
            return
        self.checkpoints.save(trainer)
        when, accept = ("once the data can be read, ", " accept_changed_data=true") if damaged else ("", "")
        how = "" if of_sweep else f"; {when}resume={record.path}{accept} continues after it"
        report(f"step {trainer.global_step} is saved{how}")

    def due(self) -> bool:
        """Whether this rank has a reason to stop before another step."""
        return self.asked or self.limit.over()

    def agreed(self, trainer: pl.Trainer, *, trained: bool) -> Interrupted | None:
        """Return the exception to stop with if any rank has a reason to stop; every rank must call this."""
        asked = self.asked
        stop = asked or self.limit.over(trained=trained)
        if trainer.world_size > 1:
            stop = trainer.strategy.reduce_boolean_decision(stop, all=False)
            asked = stop and trainer.strategy.reduce_boolean_decision(asked, all=False)
        if not stop:
            return None
        return Interrupted() if asked else OutOfTime()

    def _set_next(self, trainer: pl.Trainer) -> None:
        """Set when ranks agree next, from rank 0's pace since they last did; the first batches may be fast."""
        now, step = time.monotonic(), trainer.global_step
        before, last = self._agreement
        pace = trainer.strategy.broadcast((step - last) / max(now - before, 1e-6))  # per second
        self._every = max(1, min(2 * self._every, round(pace * self.AGREE_SECONDS)))
        self._agreement = now, step

    def _ask(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = self.asked, True
        if not self._doing or (again and number == signal.SIGINT):
            if not importing(frame):
                raise KeyboardInterrupt  # which, unlike Interrupted, no library takes for a failure of its own
            send_again(number)
        elif not again and self._reports:
            line = f"vitrine: stopping after this {self._doing}, with a checkpoint; Ctrl-C stops at once\n"
            erase = "\r\x1b[2K" if os.isatty(2) else ""  # the progress bar, which is then drawn below
            os.write(2, f"{erase}{line}".encode())  # print may be interrupted by itself
