"""What is left of a sweep, handed out trial by trial to whoever carries trials out."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from vitrine.sweeps.trial import OVER, Outcome, Trial, busy, outcome


class Source(Protocol):
    """Where launchers get trials from; each one that was handed out is told or put back."""

    def ask(self, *, waits: bool = False) -> Trial | None:
        """The next trial to carry out; ``None`` where there is none now."""

    def begun(self, trial: Trial) -> None:
        """A trial that was handed out to wait has been begun."""

    def tell(self, trial: Trial, came: Outcome) -> None:
        """Take what a trial has come to."""

    def put_back(self, trial: Trial) -> None:
        """Take back a trial that another process is at."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to hand out, or handed out, or with other processes."""


class Queue:
    """The trials of a grid that are left, in their order.

    A trial that another process is at is looked at again later: it may finish it, or leave it.

    Args:
        trials: those that are neither finished nor pruned.
        begins: told of each trial when it is handed out.
        ended: told of each trial with what it has come to, once.
    """

    ELSEWHERE_SECONDS = 1.0  # between two looks at what other processes do

    def __init__(
        self, trials: Sequence[Trial], begins: Callable[[Trial], None], ended: Callable[[Trial, Outcome], None]
    ) -> None:
        self._left = deque(trials)
        self._elsewhere: deque[Trial] = deque()
        self._begins, self._ended = begins, ended
        self._looked = 0.0
        self._out = 0  # handed out and not yet ended

    def ask(self, *, waits: bool = False) -> Trial | None:
        """The next trial to carry out; ``None`` where there is none now. Every trial is then told or put back.

        Where it ``waits`` for something before it is begun, :meth:`begun` says when it is.
        """
        if not self._left:
            self._look_elsewhere()
        if not self._left:
            return None
        trial = self._left.popleft()
        self._out += 1
        if not waits:
            self.begun(trial)
        return trial

    def begun(self, trial: Trial) -> None:
        """A trial that was handed out to wait has been begun."""
        self._begins(trial)

    def tell(self, trial: Trial, came: Outcome) -> None:
        """Take what a trial that was handed out has come to."""
        self._out -= 1
        self._ended(trial, came)

    def put_back(self, trial: Trial) -> None:
        """Another process is at it."""
        self._out -= 1
        self._elsewhere.append(trial)

    @property
    def done(self) -> bool:
        """Whether no trial is left, handed out, or with other processes."""
        return not (self._left or self._elsewhere or self._out)

    def _look_elsewhere(self) -> None:
        if time.monotonic() - self._looked < self.ELSEWHERE_SECONDS:
            return
        self._looked = time.monotonic()
        for trial in list(self._elsewhere):
            if busy(trial):
                continue
            self._elsewhere.remove(trial)
            known = outcome(trial.folder)
            if known.status in (*OVER, "failed"):
                self._ended(trial, known)
            else:
                self._left.append(trial)
