"""Ranks that run the same program: decisions that rank 0 shares, and errors that end all ranks.

Every rank composes the same configuration and calls the same functions. What only one process may decide, such as the
name of a run folder, rank 0 decides and shares as JSON through a key-value store (``torch.distributed.Store``). The
store is torchrun's, the caller's process group's, or served by rank 0 at MASTER_ADDR:MASTER_PORT.

A session (:func:`together`) is a piece of work that all ranks do together, such as one ``fit``. Ranks number their
sessions alike, so that keys of an earlier session, which may have failed, are never read again.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vitrine.distributed.launch import Launch, launched
from vitrine.errors import Diverged, Interrupted, Pruned, RunError, VitrineError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

T = TypeVar("T")

START_TIMEOUT = timedelta(minutes=10)  # for all ranks to start
FAREWELL_SECONDS = 15.0  # for the other ranks to reach the end of a session
LONGEST_POLL_SECONDS = 0.5
LOST = "another rank ended without an error message; was it killed, for example for lack of memory?"
LOST_CONNECTION = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")

_session_numbers = itertools.count(1)


class OtherRankFailed(RunError):
    """Another rank failed, and this one cannot continue without it."""


class Ranks:
    """This process and those that it trains with; a process alone is rank 0 of 1.

    Attributes:
        launch: this process's place; ``None`` if it is alone.
        rank: global rank; 0 alone writes.
        count: number of ranks.
    """

    def __init__(self, launch: Launch | None = None, store: "Store | None" = None) -> None:
        self.launch = launch
        self.rank, self.count = (0, 1) if launch is None else (launch.rank, launch.count)
        self._store = store
        self._numbers = itertools.count(1)

    @property
    def store(self) -> "Store":
        """Keys of the session."""
        assert self._store is not None
        return self._store

    def share(self, decide: Callable[[], T]) -> T:
        """Call ``decide`` on rank 0 and return its value on every rank. The value must survive JSON.

        Raises:
            OtherRankFailed: rank 0 failed, here or before.
        """
        if self.rank > 0:
            received: T = self.receive()
            return received
        value = decide()
        self.send(value)
        return value

    def send(self, value: Any) -> None:
        """Send a value that JSON can hold from rank 0 to the others, which :meth:`receive` it in the same order."""
        if self.count > 1:
            self.store.set(f"shared {next(self._numbers)}", json.dumps(value))

    def receive(self) -> Any:
        """Return what rank 0 sends.

        Raises:
            OtherRankFailed: a rank failed before.
        """
        key = f"shared {next(self._numbers)}"
        self._wait_for(key)
        return json.loads(self.store.get(key))

    def wait_for_all(self) -> None:
        """Wait until every rank has come this far.

        Raises:
            OtherRankFailed: a rank failed before.
        """
        if self.count == 1:
            return
        number = next(self._numbers)
        self.store.set(f"here {number} {self.rank}", "")
        for rank in range(self.count):
            self._wait_for(f"here {number} {rank}")

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Report an error of this rank to the others, and replace one that is due to theirs by theirs.

        Interrupted, Pruned and Diverged pass: all ranks agree on them and raise them alike.
        """
        try:
            yield
        except (Interrupted, Pruned, Diverged, OtherRankFailed):
            raise
        except Exception as error:
            if self.count == 1:
                raise
            message = _message(error)
            first = own = f"{self.rank} {message}"
            with suppress(RuntimeError):  # the process that serves the store has ended
                first = _claim(self.store, "failed", own)
            rank, _, cause = first.partition(" ")
            if cause != message:
                raise OtherRankFailed(f"rank {rank} of {self.count}: {cause}") from None
            if cause == LOST:
                raise OtherRankFailed(cause) from None
            raise

    def _wait_for(self, key: str) -> None:
        pause = 0.005
        try:
            while not self.store.check([key]):
                if self.store.check(["failed"]):
                    rank, _, cause = self.store.get("failed").decode().partition(" ")
                    raise OtherRankFailed(f"rank {rank} of {self.count}: {cause}")
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_POLL_SECONDS)
        except RuntimeError:  # torch's: the process that serves the store has ended
            raise OtherRankFailed(LOST) from None

    def leave(self, *, failed: bool) -> None:
        """End the session on this rank.

        Rank 0 waits for the others, which may still read from the store that it serves. A rank that failed waits for
        rank 0 to record the error: torchrun ends all ranks once one has ended.
        """
        deadline = time.monotonic() + FAREWELL_SECONDS
        with suppress(RuntimeError):
            self.store.set(f"left {self.rank}", "")
            awaited = range(1, self.count) if self.rank == 0 else range(1) if failed else range(0)
            keys = [f"left {rank}" for rank in awaited]
            while keys and not self.store.check(keys) and time.monotonic() < deadline:
                time.sleep(0.02)


@contextmanager
def together(*, process_group: bool = True) -> Iterator[Ranks]:
    """Open a session of all ranks.

    Args:
        process_group: whether the session needs a process group. It is the caller's if there is one, else it is
            created for the session.

    Raises:
        RunError: the ranks did not find each other.
        OtherRankFailed: another rank failed; the message is that rank's.
    """
    launch = launched()
    if launch is None:
        yield Ranks()
        return
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    number = next(_session_numbers)
    ranks = Ranks(launch, PrefixStore(f"session {number}", _store(launch)))
    own_group = process_group and not dist.is_initialized()
    if own_group:
        # Without a backend given, PyTorch takes the backend of each tensor's device, and gloo for objects.
        dist.init_process_group(store=PrefixStore("group", ranks.store), rank=ranks.rank, world_size=ranks.count)
    failed = True
    try:
        with ranks.failing_together():
            yield ranks
        failed = False
    finally:
        if own_group:
            dist.destroy_process_group()  # ranks that wait in a collective get an error
        # vitrine's own ranks are watched by the process that spawned them: it reports the error with its traceback.
        if not (failed and launch.by == "vitrine"):
            ranks.leave(failed=failed)


def silence_other_ranks() -> None:
    """Discard what ranks other than 0 print to standard output from now on."""
    if (launch := launched()) is not None and launch.rank > 0:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 # for the rest of the process


def meet() -> None:
    """Wait for all ranks to start, if there are several; :func:`first_to_report` then works on each.

    Raises:
        RunError: the ranks did not find each other.
    """
    if (launch := launched()) is not None:
        _store(launch)


def first_to_report(message: str) -> bool:
    """Whether this rank should print an error that ends the command: the first rank that has it does, and only once.

    After a restart by ``torchrun --max-restarts`` the same error is not printed again. Nor is it printed that torchrun
    stopped this rank, as it does after another's error.
    """
    if (launch := launched()) is None:
        return True
    reporter = f"{_attempt()}.{launch.rank}"
    try:
        first = _claim(_store_of_all_attempts() or _store(launch), "reported", f"{reporter} {message}")
    except RuntimeError:  # the process that served the store has ended, and reported what there was to report
        return False
    first_reporter, _, reported = first.partition(" ")
    if first_reporter == reporter:
        return True
    return message != Interrupted.reason and not (message in reported or reported in message)


def remember(key: str, value: str) -> None:
    """Keep ``value`` for a later attempt of ``torchrun --max-restarts``."""
    if (store := _store_of_all_attempts()) is not None:
        store.set(key, value)


def recall(key: str) -> str | None:
    """Return what an earlier attempt of ``torchrun --max-restarts`` remembered; ``None`` without one."""
    store = _store_of_all_attempts()
    return store.get(key).decode() if store is not None and store.check([key]) else None


def _claim(store: "Store", key: str, value: str) -> str:
    """Set ``key`` unless a rank has set it; return what is set."""
    return str(store.compare_set(key, "", value).decode())


def _message(error: Exception) -> str:
    if isinstance(error, VitrineError):
        return str(error)
    if isinstance(error, RuntimeError) and any(text in str(error) for text in LOST_CONNECTION):
        return LOST
    return f"{type(error).__name__}: {error}"


def _store(launch: Launch) -> "Store":
    """Return the keys of this attempt; torchrun's store outlives the ranks that it restarts."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    attempt = f"vitrine, attempt {_attempt()} of {launch.count} ranks"
    if launch.by == "torch.distributed" or (dist.is_initialized() and not _has_agent_store()):
        return PrefixStore(attempt, _get_default_store())
    return PrefixStore(attempt, _environment_store())


def _store_of_all_attempts() -> "Store | None":
    from torch.distributed.distributed_c10d import PrefixStore

    return PrefixStore("vitrine, all attempts", _environment_store()) if _has_agent_store() else None


def _attempt() -> str:
    """Return how often torchrun has restarted the ranks."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def _has_agent_store() -> bool:
    """Whether torchrun serves a store, which outlives the ranks."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


@cache
def _environment_store() -> "Store":
    """Connect to the store at MASTER_ADDR:MASTER_PORT; unless torchrun serves it, rank 0 does."""
    from torch.distributed.rendezvous import rendezvous

    try:
        store, *_ = next(rendezvous("env://", timeout=START_TIMEOUT))
    except RuntimeError as error:
        rank, count, host, port = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
        raise RunError(f"rank {rank} of {count} could not reach the others at {host}:{port}: {error}") from None
    return store
