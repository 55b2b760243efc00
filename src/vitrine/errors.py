"""Errors that a user can fix. Each message can be shown as it is; the command line prints it without a traceback."""

from collections.abc import Sequence
from dataclasses import dataclass


class VitrineError(Exception):
    """An error that a user can fix: the message says what is wrong, and what to do."""

    exit_code = 1


class DataError(VitrineError):
    """A data set is missing, damaged, or does not match the configuration."""


class RunError(VitrineError):
    """A run folder or checkpoint cannot be read, written or resumed."""


class NotWaitedFor(RunError):
    """A stop signal ended the wait for a tracker, such as W&B."""


class DiskFull(RunError):
    """A file cannot be written as its disk is full, or the user's quota used up. What is being trained can be resumed.

    Attributes:
        problem: the file, and how much space is left.
        advice: what to do.
    """

    def __init__(self, problem: str, advice: str = "make room and rerun the same command") -> None:
        self.problem, self.advice = problem, advice
        super().__init__(f"{problem}; {advice}")


class Diverged(VitrineError):
    """Training stopped because a loss or a weight became NaN or infinite; checkpoints are of earlier, finite weights.

    Attributes:
        what: the value, such as ``the training loss is NaN``.
        step: the first optimiser step with such a value, counted from 1.
        last_finite_loss: the training loss before it, in nats; ``None`` if there was none.
    """

    exit_code = 3
    advice = "try a lower optimizer.lr or trainer.gradient_clip_val=1.0; trainer.on_divergence=continue trains on"

    def __init__(self, what: str, step: int, last_finite_loss: float | None) -> None:
        self.what, self.step, self.last_finite_loss = what, step, last_finite_loss
        super().__init__(f"{self.reason}; {self.advice}")

    @property
    def reason(self) -> str:
        """What happened, without the advice."""
        before = "" if self.last_finite_loss is None else f", after a training loss of {self.last_finite_loss:.4g}"
        return f"diverged at step {self.step}: {self.what}{before}"

    @property
    def facts(self) -> dict[str, str | int | float | None]:
        """The arguments it is made of, as run.json keeps them."""
        return {"what": self.what, "step": self.step, "last_finite_loss": self.last_finite_loss}


class Interrupted(Exception):
    """Training stopped on request, after a complete step; its checkpoint is written."""

    exit_code = 130  # what a shell reports for a program that Ctrl-C ended
    reason = "interrupted"


class OutOfTime(Interrupted):
    """Training stopped because ``trainer.max_time`` is nearly used up; its checkpoint is written."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: the same command will get further
    reason = "trainer.max_time is over"


def interruption(error: BaseException) -> type[Interrupted]:
    """Return the type of an :class:`Interrupted`, which KeyboardInterrupt and SystemExit of a stop signal stand for."""
    return type(error) if isinstance(error, Interrupted) else Interrupted


class Pruned(Exception):
    """A search stopped this run after an epoch, because other trials do better; the message names the epoch."""


@dataclass(frozen=True)
class Fault:
    """One fault in a configuration.

    Attributes:
        key: the dotted key or the config group, as typed on the command line.
        given: the value given; empty if the key itself is the fault.
        problem: what is wrong, and what is allowed.
        nearest: the most similar valid key or value; empty if none is similar.
    """

    key: str
    given: str
    problem: str
    nearest: str = ""

    def __str__(self) -> str:
        head = f"{self.key}={self.given}" if self.given else self.key
        tail = f"\n      did you mean {self.nearest}?" if self.nearest else ""
        return f"  {head}\n      {self.problem}{tail}"


class ConfigError(VitrineError):
    """An invalid configuration, with all of its faults."""

    exit_code = 2

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = list(dict.fromkeys(faults))
        count = len(self.faults)
        title = "invalid configuration:" if count == 1 else f"invalid configuration, {count} faults:"
        super().__init__("\n".join([title, *map(str, self.faults)]))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def joined_lines(error: BaseException) -> str:
    """Return an error's message with its lines joined into one, or its type if the message is empty."""
    return " ".join(str(error).split()) or type(error).__name__
