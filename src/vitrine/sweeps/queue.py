"""Queues that hand out the trials of a sweep to a launcher."""

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from vitrine.runs.lock import Watch
from vitrine.runs.status import ENDED
from vitrine.sweeps.trial import Trial, TrialResult, read_result, take_up


class TrialListener(Protocol):
    """Is notified of the trials of a sweep."""

    def trial_started(self, trial: Trial) -> None:
        """Record that a trial was started."""

    def trial_ended(self, trial: Trial, result: TrialResult) -> None:
        """Take the result of a trial that ended, in this process or another one."""


class TrialQueue(ABC):
    """Hands out trials until none is left.

    A launcher calls :meth:`ask` until the queue is :attr:`done`, and :meth:`started` when it starts a trial. It then
    gives back each trial: by :meth:`tell` with its result, or by :meth:`put_back` if another process is training it.

    Args:
        force: take up trials of processes on other machines without watching them for a sign of life.

    Attributes:
        watch: what it has seen of those processes.
    """

    POLL_SECONDS = 1.0  # between two looks at the trials of other processes

    def __init__(self, *, force: bool = False) -> None:
        self._listeners: list[TrialListener] = []
        self._last_look = -math.inf
        self.watch = Watch(0.0) if force else Watch()

    def subscribe(self, listener: TrialListener) -> None:
        """Notify ``listener`` of every trial that is started or ends from now on."""
        self._listeners.append(listener)

    @abstractmethod
    def ask(self) -> Trial | None:
        """Return the next trial to train, or ``None`` if there is none at present."""

    def started(self, trial: Trial) -> None:
        """Record that a trial from :meth:`ask` was started: at once, or after it waited in a cluster's queue."""
        for listener in self._listeners:
            listener.trial_started(trial)

    @abstractmethod
    def tell(self, trial: Trial, result: TrialResult) -> None:
        """Take the result of a trial from :meth:`ask`."""

    @abstractmethod
    def put_back(self, trial: Trial) -> None:
        """Take back a trial that another process is training."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether every trial has ended, those in other processes included."""

    def _released(self, trials: Sequence[Trial]) -> Iterator[tuple[Trial, TrialResult]]:
        """Yield those of ``trials`` that no other process trains any more, every ``POLL_SECONDS``."""
        if not trials or time.monotonic() - self._last_look < self.POLL_SECONDS:
            return
        self._last_look = time.monotonic()
        for trial in trials:
            if take_up(trial, self.watch):
                yield trial, read_result(trial.folder)

    def _notify_ended(self, trial: Trial, result: TrialResult) -> None:
        for listener in self._listeners:
            listener.trial_ended(trial, result)


class GridQueue(TrialQueue):
    """The unfinished trials of a grid, in order.

    A trial that another process is training is looked at again later, since that process may leave it unfinished.
    """

    def __init__(self, trials: Sequence[Trial], *, force: bool = False) -> None:
        super().__init__(force=force)
        self._waiting = deque(trials)
        self._elsewhere: deque[Trial] = deque()
        self._handed_out = 0

    def ask(self) -> Trial | None:
        """Return the next trial to train, or ``None`` if there is none at present."""
        if not self._waiting:
            self._look_elsewhere()
        if not self._waiting:
            return None
        self._handed_out += 1
        return self._waiting.popleft()

    def tell(self, trial: Trial, result: TrialResult) -> None:
        """Take the result of a trial from :meth:`ask`."""
        self._handed_out -= 1
        self._notify_ended(trial, result)

    def put_back(self, trial: Trial) -> None:
        """Take back a trial that another process is training."""
        self._handed_out -= 1
        self._elsewhere.append(trial)

    @property
    def done(self) -> bool:
        """Whether every trial has ended, those in other processes included."""
        return not (self._waiting or self._elsewhere or self._handed_out)

    def _look_elsewhere(self) -> None:
        """Report trials that other processes have ended; queue those that they left unfinished."""
        for trial, result in self._released(list(self._elsewhere)):
            self._elsewhere.remove(trial)
            if result.status in ENDED:
                self._notify_ended(trial, result)
            else:
                self._waiting.append(trial)
