"""The worker processes of DataLoaders, which decode images a few batches ahead of the model.

They pass batches on in shared memory, ``/dev/shm`` on Linux. In a container it is small: 64 MB, unless set.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOSPC
from multiprocessing.queues import Queue
from multiprocessing.util import Finalize
from tempfile import gettempdir
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader

from vitrine.errors import DataError, DiskFull, first_line
from vitrine.signals import stop_signals_blocked

# Forked workers start at once. In a spawned rank, PyTorch's default would spawn the workers too, and each of them would
# import torch for seconds in every epoch.
if sys.platform == "linux":
    from multiprocessing.context import ForkContext as StartContext
    from multiprocessing.context import ForkProcess as StartProcess
else:
    from multiprocessing.context import SpawnContext as StartContext
    from multiprocessing.context import SpawnProcess as StartProcess

SHM_ADVICE = "free some of /dev/shm, or enlarge it (docker run --shm-size=8g)"

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


class Unsent(ExceptionWrapper):
    """Stands for a batch that could not be sent; a DataLoader raises it where the batch was awaited."""

    def __init__(self, error: BaseException) -> None:
        self.problem = first_line(error)

    def reraise(self) -> None:
        """Raise RuntimeError."""
        raise RuntimeError(self.problem)


class BatchQueue(Queue):  # type: ignore[type-arg]  # not subscriptable before Python 3.12
    """A queue of (number, batch) that never loses a batch: Python's prints why one cannot be sent, and drops it."""

    def _on_queue_feeder_error(self, error: Exception, item: tuple[int, Any]) -> None:
        self.put((item[0], Unsent(error)))


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

    def Queue(self, maxsize: int = 0) -> BatchQueue:  # noqa: N802  # the name that DataLoaders call
        """Return a queue between a DataLoader and its workers."""
        return BatchQueue(maxsize, ctx=self.get_context())


def end_orphan(parent: int, worker: int) -> None:
    """End a worker whose parent is gone already; PyTorch's workers notice only a later death."""
    if os.getppid() != parent:
        os._exit(1)


def start(loader: DataLoader[Any]) -> Any:
    """Return a DataLoader's iterator, whose workers decode the first batches.

    Raises:
        DiskFull: shared memory is too full for the locks of the workers.
    """
    context: Any = loader.multiprocessing_context
    try:
        if context is not None:  # a DataLoader that gets half of its locks ends with a traceback
            needed = [context.Event(), *(context.Queue() for _ in range(loader.num_workers + 1))]
            del needed
        return iter(loader)
    except OSError as error:
        if error.errno != ENOSPC:
            raise
        problem = "shared memory (/dev/shm) is full: cannot start the workers that decode images"
        raise DiskFull(problem, SHM_ADVICE) from None


class WorkerFailed(DataError):
    """A worker was killed, or shared memory is too full for its batch.

    Attributes:
        problem: the message without ``fewest``, the override for the smallest number of workers.
    """

    def __init__(self, problem: str, fewest: str = "") -> None:
        self.problem = problem
        super().__init__(f"{problem}, or try {fewest}" if fewest else problem)


@contextmanager
def without_workers_key() -> Iterator[None]:
    """Let the message of a worker's failure name no override, for commands that have none for workers."""
    try:
        yield
    except WorkerFailed as error:
        raise DataError(error.problem) from None


def next_batch(iterator: Any, fewest: str = "data.workers=1") -> Any:
    """Return the next batch of a DataLoader's iterator; ``fewest`` sets the smallest number of workers.

    Raises:
        WorkerFailed: a worker was killed, or shared memory is too full for its batch.
        StopIteration: there is none.
    """
    try:
        return next(iterator)
    except RuntimeError as error:  # raised by PyTorch when a worker has died, or by Unsent
        hint = f"if memory or shared memory is short, {SHM_ADVICE}"
        raise WorkerFailed(f"decoding images failed: {first_line(error)}; {hint}", fewest) from None
