"""What vitrine raises when the cause lies with what it was given. Each message can be shown to a person as it is."""

from collections.abc import Sequence
from dataclasses import dataclass


class VitrineError(Exception):
    """Something a user can put right: the message says what, and how."""


class DataError(VitrineError):
    """A data set is missing, damaged, or not what the configuration says it is."""


class RunError(VitrineError):
    """A run folder or checkpoint cannot be read, written or gone on with."""


class Interrupted(Exception):
    """Training was asked to stop, and has stopped after a whole step, its checkpoint written."""

    exit_code = 130  # what a shell reports for a program that Ctrl-C ended
    reason = "interrupted"


class OutOfTime(Interrupted):
    """Stopped like that because ``trainer.max_time`` is nearly over."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: the same again will get further
    reason = "trainer.max_time is over"


class Pruned(Exception):
    """Training has stopped after an epoch because others do better; the message says where."""


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a configuration.

    Attributes:
        key: the dotted key or the group, as it is typed on the command line.
        given: the value as it was given; empty where the key itself is the fault.
        problem: what is wrong and what is allowed.
        nearest: what was probably meant; empty where nothing is near.
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
    """A configuration that cannot work, with all of its faults."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = list(dict.fromkeys(faults))
        count = len(self.faults)
        title = "the configuration cannot work:" if count == 1 else f"the configuration has {count} faults:"
        super().__init__("\n".join([title, *map(str, self.faults)]))


def first_line(error: BaseException) -> str:
    """What a library's error says, in one line; its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
