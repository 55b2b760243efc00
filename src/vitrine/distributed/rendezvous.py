"""Processes that torchrun or Slurm's srun has started for one training, on one machine or several.

Both run the user's command in each process. The first process does what the command says; the others follow it: they
do not look at the command, and wait for what the first one shares. So a sweep, a run that goes on or a mistake in the
command is the first one's business alone, as it is where vitrine starts the processes by itself (processes.py).

They meet at a store that the first process serves at MASTER_ADDR:MASTER_PORT, or torchrun for it. What is shared are
pickles, made by the first process and read by others of the same job only.
"""

import atexit
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING

from vitrine.errors import Interrupted, Pruned, RunError, VitrineError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

MEETING = timedelta(minutes=10)  # for all processes to start
PATIENCE = timedelta(days=7)  # with the first one, while it reads data, tests, or trains what takes one process
FAREWELL_SECONDS = 10.0  # for the others to hear that there is nothing more to do


class OtherFailed(RunError):
    """Another process failed, and this one could not go on without it."""


@dataclass(frozen=True)
class Launched:
    """This process among those that were started.

    Attributes:
        by: what started them, as it is typed.
        rank: number of this process; 0 is the first.
        count: of them, on all machines.
        nodes: machines, each with as many.
    """

    by: str
    rank: int
    count: int
    nodes: int


@cache
def launched() -> Launched | None:
    """Where this process stands among those that were started with it; ``None`` if it was started alone.

    Raises:
        RunError: not every machine has as many processes.
    """
    by = "torchrun"
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        by = "srun"
        _speak_as_torchrun()
    if "LOCAL_WORLD_SIZE" not in os.environ or os.environ["WORLD_SIZE"] == "1":
        return None
    count, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if count % here:
        raise RunError(f"{by} started {count} processes, {here} of them on this machine; each machine needs as many")
    return Launched(by, int(os.environ["RANK"]), count, count // here)


def enter() -> None:
    """Meet the other processes, if there are any. From here on all but the first one follow it, and never return.

    Raises:
        RunError: they did not come.
    """
    me = launched()
    if me is None:
        return
    try:
        _store()
    except RuntimeError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise RunError(f"process {me.rank} of {me.count} did not meet the others at {where}: {error}") from None
    if me.rank > 0:
        _follow(me)
    _let_go_at_exit()


def share(work: Callable[[int], None], own: Callable[[], None]) -> None:
    """Have all other processes do ``work(rank)``, while this one, the first, does ``own()``, in one process group.

    Raises:
        OtherFailed: one of them failed.
    """
    me = launched()
    assert me is not None
    _together(own, _send(work), me)


def _follow(me: Launched) -> None:
    """Do what the first process shares until it ends, and end with it."""
    number = 0
    while True:
        number += 1
        try:
            work = pickle.loads(_store().get(f"work {number}"))
        except RuntimeError:  # the first process was killed
            sys.exit(1)
        if work is None:
            _store().add("gone", 1)
            sys.exit()
        try:
            _together(partial(work, me.rank), number, me)
        except (Interrupted, Pruned, OtherFailed):
            pass  # the first process says it
        except Exception as error:
            print(f"vitrine: process {me.rank} of {me.count}: {_in_words(error)}", file=sys.stderr, flush=True)


def _together(work: Callable[[], None], number: int, me: Launched) -> None:
    """Do it in a process group made for it. If several processes fail, the others do so because of the first."""
    from torch.distributed.distributed_c10d import PrefixStore, init_process_group

    from vitrine.distributed.spawn import part

    # No backend is named: tensors then go by the one of their device, words between processes by that of the CPU.
    store = PrefixStore(f"group {number}", _store())
    init_process_group(store=store, rank=me.rank, world_size=me.count)
    try:
        work()
    except (Interrupted, Pruned):
        raise
    except Exception as error:
        told = _store().compare_set(f"failed {number}", "", f"{me.rank} {_in_words(error)}").decode()
        first, _, what = told.partition(" ")
        if int(first) != me.rank:
            raise OtherFailed(f"process {first} of {me.count}: {what}") from None
        raise
    finally:
        part()


def _in_words(error: Exception) -> str:
    return str(error) if isinstance(error, VitrineError) else f"{type(error).__name__}: {error}"


@cache
def _store() -> "Store":
    from torch.distributed.rendezvous import rendezvous

    store, *_ = next(rendezvous("env://", timeout=MEETING))
    store.set_timeout(PATIENCE)
    return store


def _send(work: Callable[[int], None] | None) -> int:
    """Tell the others what comes next; gives its number."""
    number = _store().add("works", 1)
    _store().set(f"work {number}", pickle.dumps(work))  # type: ignore[arg-type] # bytes are taken, too
    return number


@cache
def _let_go_at_exit() -> None:
    atexit.register(_let_go)


def _let_go() -> None:
    """Let the others end: they are served from this process, which waits until they have heard it."""
    me = launched()
    assert me is not None
    deadline = time.monotonic() + FAREWELL_SECONDS
    with suppress(RuntimeError):
        _send(None)
        while _store().add("gone", 0) < me.count - 1 and time.monotonic() < deadline:
            time.sleep(0.02)


def _speak_as_torchrun() -> None:
    """Set what torchrun sets, from what srun has set. MASTER_ADDR and MASTER_PORT can be given; so can threads.

    Raises:
        RunError: not every machine has as many tasks.
    """
    job = {name: os.environ[f"SLURM_{name}"] for name in ("STEP_NUM_TASKS", "STEP_NUM_NODES", "PROCID", "LOCALID")}
    each = re.fullmatch(r"(\d+)(\(x\d+\))?", os.environ["SLURM_STEP_TASKS_PER_NODE"])
    if each is None:
        problem = f"has {os.environ['SLURM_STEP_TASKS_PER_NODE']} tasks on its machines; each machine needs as many"
        raise RunError(f"srun {problem}: srun --ntasks-per-node=N")
    os.environ.update(
        RANK=job["PROCID"],
        WORLD_SIZE=job["STEP_NUM_TASKS"],
        LOCAL_RANK=job["LOCALID"],
        LOCAL_WORLD_SIZE=each[1],
        GROUP_RANK=os.environ["SLURM_NODEID"],
    )
    if "MASTER_ADDR" not in os.environ:
        os.environ["MASTER_ADDR"] = "127.0.0.1" if job["STEP_NUM_NODES"] == "1" else _first_node()
    # Steps of one job may run side by side, and so may jobs on one machine.
    step = int(os.environ["SLURM_JOB_ID"]) * 10 + int(os.environ["SLURM_STEP_ID"])
    os.environ.setdefault("MASTER_PORT", str(15000 + step % 15000))
    os.environ.setdefault("OMP_NUM_THREADS", os.environ.get("SLURM_CPUS_PER_TASK", "1"))


def _first_node() -> str:
    command = ["scontrol", "show", "hostnames", os.environ["SLURM_STEP_NODELIST"]]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
