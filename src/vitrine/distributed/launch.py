"""Which rank this process is, where torchrun, srun, or the caller's own program has started several."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass

from vitrine.errors import RunError


@dataclass(frozen=True)
class Launch:
    """This process among the ranks that train together.

    Attributes:
        by: what started the ranks, for messages: ``torchrun``, ``srun``, ``vitrine``, or ``torch.distributed``.
        rank: global rank, in [0, count).
        count: number of ranks, the world size.
        local_rank: rank on this machine, in [0, count // nodes).
        nodes: machines, each with the same number of ranks.
    """

    by: str
    rank: int
    count: int
    local_rank: int
    nodes: int


def launched() -> Launch | None:
    """Return this process's place among its ranks; ``None`` if it trains alone.

    A process group that the caller has initialised decides rank and world size. Without ``LOCAL_WORLD_SIZE`` in the
    environment, its ranks are taken to be on one machine.

    Raises:
        RunError: machines have different numbers of ranks.
    """
    by = "torchrun"
    if "VITRINE_SPAWNED" in os.environ:
        by = "vitrine"
    elif int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        by = "srun"
        _set_torchrun_variables()
    if (group := _initialised_group()) is not None:
        rank, count = group
        by = by if "LOCAL_WORLD_SIZE" in os.environ else "torch.distributed"
    elif "LOCAL_WORLD_SIZE" in os.environ:
        rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    else:
        return None
    if count == 1:
        return None
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", count))
    if count % per_node:
        raise RunError(
            f"{by} started {count} processes, {per_node} of them on this machine; every machine needs the same number"
        )
    return Launch(by, rank, count, int(os.environ.get("LOCAL_RANK", rank)), count // per_node)


def _initialised_group() -> tuple[int, int] | None:
    """Return rank and world size of the default process group, without importing torch."""
    if "torch" not in sys.modules:
        return None
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def _set_torchrun_variables() -> None:
    """Set torchrun's environment variables from srun's. MASTER_ADDR, MASTER_PORT and OMP_NUM_THREADS are kept if set.

    Raises:
        RunError: machines have different numbers of tasks.
    """
    step = {name: os.environ[f"SLURM_{name}"] for name in ("STEP_NUM_TASKS", "STEP_NUM_NODES", "PROCID", "LOCALID")}
    per_node = re.fullmatch(r"(\d+)(\(x\d+\))?", os.environ["SLURM_STEP_TASKS_PER_NODE"])
    if per_node is None:
        tasks = os.environ["SLURM_STEP_TASKS_PER_NODE"]
        raise RunError(
            f"srun has {tasks} tasks on its machines; every machine needs the same number: srun --ntasks-per-node=N"
        )
    os.environ.update(
        RANK=step["PROCID"],
        WORLD_SIZE=step["STEP_NUM_TASKS"],
        LOCAL_RANK=step["LOCALID"],
        LOCAL_WORLD_SIZE=per_node[1],
        GROUP_RANK=os.environ["SLURM_NODEID"],
    )
    if "MASTER_ADDR" not in os.environ:
        os.environ["MASTER_ADDR"] = "127.0.0.1" if step["STEP_NUM_NODES"] == "1" else _first_node()
    # Several steps of a job, or jobs on one machine, can run at the same time: each needs another port.
    number = int(os.environ["SLURM_JOB_ID"]) * 10 + int(os.environ["SLURM_STEP_ID"])
    os.environ.setdefault("MASTER_PORT", str(15000 + number % 15000))
    os.environ.setdefault("OMP_NUM_THREADS", os.environ.get("SLURM_CPUS_PER_TASK", "1"))


def _first_node() -> str:
    command = ["scontrol", "show", "hostnames", os.environ["SLURM_STEP_NODELIST"]]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
