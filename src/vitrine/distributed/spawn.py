"""Ranks of one training that vitrine starts itself: one process of this machine for each device.

Lightning would start them by running the user's command again, in a sweep the whole sweep. Here each process is given
the run and nothing else.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import torch
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from vitrine.distributed.parent import stop_with_parent
from vitrine.distributed.rendezvous import OtherRankFailed
from vitrine.errors import DiskFull, Diverged, Interrupted, OutOfTime, Pruned, RunError, VitrineError, interruption
from vitrine.files import naming_full_disk
from vitrine.runs import RunRecord
from vitrine.safe_path import without_working_directory
from vitrine.signals import handle_stop_signals, restored_handlers

# How a rank ended, where the message is in run.json, unless that is on a full disk.
REPORTED_EXIT_CODE, PRUNED_EXIT_CODE, FULL_EXIT_CODE = 5, 4, 6
GRACE_SECONDS = 15.0  # for the other ranks to end after one has ended
HEAD_START_SECONDS = 2.0  # for the rank with the cause: run_all reports the one that ends first


def run_all(work: Callable[[], None], record: RunRecord, count: int, accelerator: str) -> None:
    """Call the picklable ``work()`` in ``count`` new processes, and wait for them.

    On ``cpu`` they divide this process's threads. A process leaves its error in the run folder.

    Raises:
        Interrupted: they were asked to stop; as ``OutOfTime``, by ``trainer.max_time``.
        Pruned: the pruning rule stopped them.
        Diverged: their loss became NaN or infinite.
        RunError: a process failed or was killed; the others have been stopped. ``DiskFull``: for lack of space.
    """
    sys.stdout.flush()
    with _forwarded_signals() as signals:
        with without_working_directory():
            arguments = (work, record, count, accelerator, _free_port(), signals.takes_ctrl_c)
            context = spawn(_run_rank, arguments, count, join=False)
        signals.forward_to(context.pids())
        try:
            while not context.join(grace_period=GRACE_SECONDS):
                pass
        except ProcessExitedException as error:
            if error.exit_code == FULL_EXIT_CODE:  # before signals: there may be no checkpoint of an interrupted run
                raise DiskFull(record.facts["error"] or f"the disk is full: cannot write to {record.path}") from None
            if error.exit_code == OutOfTime.exit_code:
                raise OutOfTime from None
            if signals.received or error.exit_code == Interrupted.exit_code:
                raise Interrupted from None
            if error.exit_code == REPORTED_EXIT_CODE:
                raise RunError(record.facts["error"]) from None
            if error.exit_code == Diverged.exit_code:
                raise Diverged(**record.facts["diverged"]) from None
            if error.exit_code == PRUNED_EXIT_CODE:
                raise Pruned(record.facts["error"]) from None
            how = f"was killed by {error.signal_name}" if error.signal_name else f"ended with code {error.exit_code}"
            hint = "; out of memory?" if error.signal_name == "SIGKILL" else ""
            raise RunError(f"rank {error.error_index} of {count} {how}{hint}") from None
        except ProcessRaisedException:
            if signals.received:
                raise Interrupted from None
            raise


def _run_rank(
    rank: int,
    work: Callable[[], None],
    record: RunRecord,
    count: int,
    accelerator: str,
    port: int,
    takes_ctrl_c: bool,
) -> None:
    """Run one rank, and exit with a code that says how it ended."""
    if takes_ctrl_c:
        signal.signal(signal.SIGINT, lambda *_: None)  # no longer ignored: training replaces this handler
    stop_with_parent()  # also before it trains, while it ignores the SIGINT that PyTorch sends then
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in ranks.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", VITRINE_SPAWNED="1")
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # of a torchrun that started one process
    if accelerator == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // count))
    try:
        with naming_full_disk(record.path):
            work()
    except (Interrupted, KeyboardInterrupt) as stop:
        sys.exit(interruption(stop).exit_code)
    except (VitrineError, Pruned) as error:
        if isinstance(error, OtherRankFailed):
            time.sleep(HEAD_START_SECONDS)
        message = error.problem if isinstance(error, DiskFull) else str(error)
        with suppress(RunError):
            record.update(error=message, **({"diverged": error.facts} if isinstance(error, Diverged) else {}))
        codes = {Pruned: PRUNED_EXIT_CODE, Diverged: Diverged.exit_code, DiskFull: FULL_EXIT_CODE}
        sys.exit(codes.get(type(error), REPORTED_EXIT_CODE))


class _SignalForwarder:
    """Forwards signals to processes as SIGTERM, and Ctrl-C after another signal also as SIGINT, which stops at once.

    The first is no SIGINT, as a terminal sends one, too, and two would stop at once.

    Attributes:
        takes_ctrl_c: whether Ctrl-C was not ignored before.
        received: whether a signal has come.
    """

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.takes_ctrl_c = False
        self.received = False

    def forward_to(self, pids: list[int]) -> None:
        """Forward to these processes what has come and will come, and from now on Ctrl-C too."""
        self.pids = pids
        if self.takes_ctrl_c:
            signal.signal(signal.SIGINT, self)
        if self.received:
            self._send(signal.SIGTERM)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        again, self.received = self.received, True
        self._send(signal.SIGTERM)
        if again and number == signal.SIGINT:
            self._send(signal.SIGINT)

    def _send(self, number: int) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@contextmanager
def _forwarded_signals() -> Iterator[_SignalForwarder]:
    """Forward stop signals to the ranks as SIGTERM: in training they finish the step, before it they end.

    The terminal sends Ctrl-C to the ranks as well. They start with it ignored, and listen once they train.
    """
    forwarder = _SignalForwarder()
    if threading.current_thread() is not threading.main_thread():
        yield forwarder
        return
    with restored_handlers():
        forwarder.takes_ctrl_c = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by the ranks
        handle_stop_signals(forwarder)
        yield forwarder


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
