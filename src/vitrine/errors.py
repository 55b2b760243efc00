"""Errors that a user can fix. Each message can be shown as it is; the command line prints it without a traceback."""

from collections.abc import Sequence
from dataclasses import dataclass


class VitrineError(Exception):
    """An error that a user can fix: the message says what is wrong, and what to do."""


class DataError(VitrineError):
    """A data set is missing, damaged, or does not match the configuration."""


class RunError(VitrineError):
    """A run folder or checkpoint cannot be read, written or resumed."""


class Interrupted(Exception):
    """Training stopped on request, after a complete step; its checkpoint is written."""

    exit_code = 130  # what a shell reports for a program that Ctrl-C ended
    reason = "interrupted"


class OutOfTime(Interrupted):
    """Training stopped because ``trainer.max_time`` is nearly used up; its checkpoint is written."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: the same command will get further
    reason = "trainer.max_time is over"


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

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = list(dict.fromkeys(faults))
        count = len(self.faults)
        title = "invalid configuration:" if count == 1 else f"invalid configuration, {count} faults:"
        super().__init__("\n".join([title, *map(str, self.faults)]))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
