"""A clean stop in the middle of training, because a person or the clock asks for it: nothing done so far is lost."""

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from vitrine.errors import Interrupted, OutOfTime
from vitrine.training.checkpoints import Checkpoints
from vitrine.training.lit_module import Classifier

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_given_back() -> Iterator[None]:
    """Whoever handled signals before handles them again afterwards: CleanStop and Lightning leave theirs behind."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


class TimeLimit:
    """Whether there is time to go on, by how long steps and the ends of epochs have taken so far.

    After a step there must be time for one more and for an epoch's end, with its validation and checkpoint; after the
    last epoch, for the test.

    Args:
        stop_by: when the process must have ended, as ``time.time()`` gives it.
        sizes: images of ``train``, ``val`` and ``test``.
    """

    MARGIN = 5.0  # seconds for what is not measured: pictures, trackers, the end of the process

    def __init__(self, stop_by: float, sizes: Mapping[str, int]) -> None:
        self.stop_by = stop_by
        self.sizes = sizes
        self._mark: float | None = None  # when the last step ended
        self._seconds, self._images = 0.0, 0  # of all measured steps
        self._longest_step = 0.0
        self._longest_end = 0.0

    def begin(self) -> None:
        """Steps follow; the first is not measured, for it may warm up."""
        self._mark = None

    def step_done(self, images: int) -> None:
        """A step of ``images`` has ended."""
        now = time.time()
        if self._mark is not None:
            took = now - self._mark
            self._longest_step = max(self._longest_step, took)
            self._seconds, self._images = self._seconds + took, self._images + images
        self._mark = now

    def epoch_done(self) -> None:
        """The epoch has been validated and saved since its last step."""
        if self._mark is not None:
            self._longest_end = max(self._longest_end, time.time() - self._mark)

    def over(self, *, trained: bool = False) -> bool:
        """Whether there is no time for another step; or for the test, once all epochs are ``trained``."""
        needed = self._end() * self.sizes["test"] / self.sizes["val"] if trained else self._longest_step + self._end()
        return time.time() + needed + self.MARGIN >= self.stop_by

    def _end(self) -> float:
        """Seconds of an epoch's end; before the first one, what training on as many images takes, which is more."""
        return self._longest_end or self._seconds / max(1, self._images) * self.sizes["val"]


class CleanStop(Callback):
    """On Ctrl-C or SIGTERM, or when time is nearly over: finish the step, save, and raise :class:`Interrupted`.

    A second Ctrl-C stops at once. In several processes all stop after the same step, within about a second of one of
    them being asked to: they agree on it every so many steps. To be used inside :func:`signals_given_back`.

    Args:
        checkpoints: saves where training stands.
        limit: the clock; ``None`` is none.
    """

    AGREE_SECONDS = 1.0

    def __init__(self, checkpoints: Checkpoints, limit: TimeLimit | None = None) -> None:
        self.checkpoints = checkpoints
        self.limit = limit
        self.asked = False
        self._presses = 0  # of Ctrl-C
        self._every = 1  # steps between two agreements, in several processes
        self._epoch = (0.0, 0)  # when it began, and the step

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Listen, where signals can be listened to: in the main thread.

        Only now, to take the place of Lightning's own handler, which talks to the other processes while it handles a
        signal: whatever they are in the middle of then never ends.
        """
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._ask)

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Save and stop if that was asked for; after an epoch's last step, its validation comes first."""
        assert isinstance(module, Classifier)
        if self.limit is not None:
            self.limit.step_done(module.images_per_step)
        due = trainer.world_size == 1 or trainer.global_step % self._every == 0
        due = due and not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        if due and (stop := self.agreed(trainer, trained=False)):
            self.checkpoints.save(trainer)
            raise stop

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Look at the clock."""
        self._epoch = (time.monotonic(), trainer.global_step)
        if self.limit is not None:
            self.limit.begin()

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Find, from the epoch's pace in the first process, how many steps take a second."""
        begin, before = self._epoch
        if trainer.world_size > 1 and begin and trainer.global_step > before:
            pace = (trainer.global_step - before) / (time.monotonic() - begin)
            self._every = max(1, int(trainer.strategy.broadcast(pace) * self.AGREE_SECONDS))

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Stop if that was asked for; the epoch has been saved."""
        if self.limit is not None:
            self.limit.epoch_done()
        trained = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        if stop := self.agreed(trainer, trained=trained):
            raise stop

    def agreed(self, trainer: pl.Trainer, *, trained: bool) -> Interrupted | None:
        """What to stop with, if any process has a reason to; every process must ask."""
        asked = self.asked
        stop = asked or (self.limit is not None and self.limit.over(trained=trained))
        if trainer.world_size > 1:
            stop = trainer.strategy.reduce_boolean_decision(stop, all=False)
            asked = stop and trainer.strategy.reduce_boolean_decision(asked, all=False)
        if not stop:
            return None
        return Interrupted() if asked else OutOfTime()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._presses += 1
            if self._presses > 1:
                raise Interrupted
        self.asked = True
