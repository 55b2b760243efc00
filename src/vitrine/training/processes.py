"""One training in several processes of this machine, one per device.

The processes are started here and not by Lightning, which would run the user's command again in each of them: in a
multirun the whole sweep, and each time into a folder of its own. Here each process is given the run, and nothing else.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

import torch
from torch.multiprocessing.spawn import ProcessExitedException, spawn

from vitrine.data.module import ImageData
from vitrine.errors import Interrupted, RunError, VitrineError
from vitrine.training.display import quiet_libraries

if TYPE_CHECKING:
    from vitrine.training.fit import Run

TOLD, INTERRUPTED = 3, 130  # exit codes of a process that has written its error, or was asked to stop
GRACE_SECONDS = 15.0  # for the other processes to end by themselves once one has ended


def run_all(run: "Run") -> None:
    """Train ``run`` in as many processes as its hardware says, and wait for them.

    Raises:
        Interrupted: they were asked to stop, and have saved.
        RunError: one of them failed or was killed; the others are stopped then.
    """
    sys.stdout.flush()
    context = spawn(_one, (run, _free_port()), run.hardware.devices, join=False)  # type: ignore[no-untyped-call]
    assert context is not None
    with _signals_passed_on(context.pids()):
        try:
            while not context.join(grace_period=GRACE_SECONDS):
                pass
        except ProcessExitedException as error:
            if error.exit_code == INTERRUPTED:
                raise Interrupted from None
            if error.exit_code == TOLD:
                raise RunError(run.record.facts["error"]) from None
            how = f"was killed by {error.signal_name}" if error.signal_name else f"ended with code {error.exit_code}"
            raise RunError(f"process {error.error_index} of {run.hardware.devices} {how}; out of memory?") from None


def part() -> None:
    """Leave the group of processes, if this one is in a group: what follows is done by one alone."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _one(rank: int, run: "Run", port: int) -> None:
    """The life of one process."""
    from vitrine.training.fit import train_and_test

    count = run.hardware.devices
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(count), RANK=str(rank), LOCAL_RANK=str(rank)
    )
    if run.hardware.accelerator == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // count))
    try:
        with quiet_libraries():
            train_and_test(run, ImageData(run.config), rank=rank)
    except (Interrupted, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except VitrineError as error:
        run.record.update(error=str(error))
        sys.exit(TOLD)


@contextmanager
def _signals_passed_on(pids: list[int]) -> Iterator[None]:
    """Leave Ctrl-C to the processes, which the terminal sends it to as well, and pass SIGTERM on to them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda number, frame: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, pass_on),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
