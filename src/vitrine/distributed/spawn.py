"""One training in several processes of this machine, one per device.

The processes are started here and not by Lightning, which would run the user's command again in each of them: in a
multirun the whole sweep, and each time into a folder of its own. Here each process is given the run, and nothing else.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import torch
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from vitrine.distributed.hardware import Hardware
from vitrine.errors import Interrupted, OutOfTime, Pruned, RunError, VitrineError
from vitrine.runs import RunRecord

TOLD, PRUNED = 3, 4  # exit codes of a process that has written its error, or where it was pruned
GRACE_SECONDS = 15.0  # for the other processes to end by themselves once one has ended


def run_all(work: Callable[[int], None], record: RunRecord, hardware: Hardware) -> None:
    """Do ``work(rank)`` in as many processes as ``hardware`` says, and wait for them.

    Raises:
        Interrupted: they were asked to stop; as ``OutOfTime``, by the clock.
        Pruned: they stopped because others do better.
        RunError: one of them failed or was killed; the others are stopped then.
    """
    sys.stdout.flush()
    with _signals_passed_on() as passing:
        arguments = (work, record, hardware, _free_port())
        context = spawn(_one, arguments, hardware.devices, join=False)
        passing.listen(context.pids())
        try:
            while not context.join(grace_period=GRACE_SECONDS):
                pass
        except ProcessExitedException as error:
            if error.exit_code == OutOfTime.exit_code:
                raise OutOfTime from None
            if passing.asked or error.exit_code == Interrupted.exit_code:
                raise Interrupted from None
            if error.exit_code == TOLD:
                raise RunError(record.facts["error"]) from None
            if error.exit_code == PRUNED:
                raise Pruned(record.facts["error"]) from None
            how = f"was killed by {error.signal_name}" if error.signal_name else f"ended with code {error.exit_code}"
            hint = "; out of memory?" if error.signal_name == "SIGKILL" else ""
            raise RunError(f"process {error.error_index} of {hardware.devices} {how}{hint}") from None
        except ProcessRaisedException:
            if passing.asked:
                raise Interrupted from None
            raise


def part() -> None:
    """Leave the group of processes, if this one is in a group: what follows is done by one alone."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _one(rank: int, work: Callable[[int], None], record: RunRecord, hardware: Hardware, port: int) -> None:
    """The life of one process."""
    count = hardware.devices
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(count), RANK=str(rank), LOCAL_RANK=str(rank)
    )
    if hardware.accelerator == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // count))
    try:
        work(rank)
    except (Interrupted, KeyboardInterrupt) as stop:
        sys.exit(stop.exit_code if isinstance(stop, Interrupted) else Interrupted.exit_code)
    except (VitrineError, Pruned) as error:
        try:
            record.update(error=str(error))
        except RunError as unwritten:  # on a full disk the others can't be told
            print(f"vitrine: {unwritten}", file=sys.stderr)
            sys.exit(1)
        sys.exit(PRUNED if isinstance(error, Pruned) else TOLD)


class _Passing:
    """Who signals are passed on to, and whether one has come."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.asked = False

    def listen(self, pids: list[int]) -> None:
        """Pass on to these processes, and from now on Ctrl-C too."""
        self.pids = pids
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


@contextmanager
def _signals_passed_on() -> Iterator[_Passing]:
    """Pass Ctrl-C and SIGTERM on to the processes as SIGTERM, which stops them cleanly in training, at once before.

    The processes start with Ctrl-C ignored, though the terminal sends it to them as well, and listen once they train.
    """
    passing = _Passing()
    if threading.current_thread() is not threading.main_thread():
        yield passing
        return
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),  # which the processes inherit
        signal.SIGTERM: signal.signal(signal.SIGTERM, passing),
    }
    try:
        yield passing
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
