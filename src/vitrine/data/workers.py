"""The worker processes of DataLoaders, which decode images a few batches ahead of the model."""

import os
import signal
import sys
from multiprocessing.util import Finalize
from tempfile import gettempdir
from typing import Any

from vitrine.errors import DataError, first_line
from vitrine.signals import stop_signals_blocked

# Forked workers start at once. In a spawned rank, PyTorch's default would spawn the workers too, and each of them would
# import torch for seconds in every epoch.
if sys.platform == "linux":
    from multiprocessing.context import ForkContext as StartContext
    from multiprocessing.context import ForkProcess as StartProcess
else:
    from multiprocessing.context import SpawnContext as StartContext
    from multiprocessing.context import SpawnProcess as StartProcess

# At exit, Python ends the workers that are left after the finalizers; PyTorch's handler would report them as failures.
if hasattr(signal, "SIGCHLD"):
    Finalize(None, signal.signal, [signal.SIGCHLD, signal.SIG_DFL], exitpriority=0)


class Worker(StartProcess):
    """A process that stop signals never reach.

    A terminal and Slurm send theirs to all processes, but training may need a worker's next batch to finish its step.
    """

    def start(self) -> None:
        """Start the process, which inherits that the signals are blocked; what would terminate it kills it."""
        with stop_signals_blocked():
            super().start()
        popen = self._popen  # type: ignore[attr-defined]
        popen.terminate = popen.kill  # PyTorch's, and Python's at exit, which waits for its end


class WorkerContext(StartContext):
    """What a DataLoader starts its workers with.

    Raises:
        DataError: no folder for temporary files can be written. Workers pass tensors through a socket in one; without,
            a batch would never come.
    """

    Process = Worker

    def __init__(self) -> None:
        try:
            gettempdir()
        except FileNotFoundError as error:
            raise DataError(f"{error.strerror}; make room in one, or set TMPDIR to another") from None
        super().__init__()


def end_orphan(parent: int, worker: int) -> None:
    """End a worker whose parent is gone already; PyTorch's workers notice only a later death."""
    if os.getppid() != parent:
        os._exit(1)


def next_batch(iterator: Any, key: str = "data.workers") -> Any:
    """Return the next batch of a DataLoader's iterator; ``key`` sets its number of workers.

    Raises:
        DataError: a worker was killed.
        StopIteration: there is none.
    """
    try:
        return next(iterator)
    except RuntimeError as error:  # raised by PyTorch when a worker has died
        hint = f"out of memory, or of shared memory in a container? Try fewer workers: {key}=N"
        raise DataError(f"decoding images failed: {first_line(error)}; {hint}") from None
