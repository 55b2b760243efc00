"""Available memory of the machine and of its GPUs."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from vitrine.runs.cgroups import GROUPS, PROC, group_folders


def available_memory(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Return the available host memory in bytes, within the limits of this process's control groups.

    Args:
        proc: mount point of procfs.
        groups: mount point of the cgroup file system.
    """
    return max(0, min([_machine_memory(proc), *_group_memory(proc, groups)]))


def device_memory(accelerator: str, devices: int) -> int | None:
    """Return the free memory of a GPU in bytes; ``None`` if the device shares the host's memory.

    With several GPUs, return the smallest one's total memory: querying free memory would create a CUDA context, which
    takes memory, on each of them.
    """
    if accelerator != "cuda":
        return None
    if devices > 1:
        return min(torch.cuda.get_device_properties(device).total_memory for device in range(devices))
    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # PyTorch caches what it frees


def _machine_memory(proc: Path) -> int:
    available = _read_table(proc / "meminfo").get("MemAvailable:")
    if available is not None:
        return available * 1024  # given in kB
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def _group_memory(proc: Path, groups: Path) -> Iterator[int]:
    """Yield the bytes left in each control group of this process and in each of their parents."""
    for group, version in group_folders("memory", proc, groups):
        if version == 2:
            limit, used, prefix = "memory.max", "memory.current", ""
        else:
            limit, used, prefix = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
        maximum, current = _read_number(group / limit), _read_number(group / used)
        if maximum is not None and current is not None:
            stat = _read_table(group / "memory.stat")
            page_cache = sum(stat.get(f"{prefix}{kind}", 0) for kind in ("inactive_file", "active_file"))
            yield maximum - current + page_cache  # the kernel evicts the page cache when memory is needed


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" stands for no limit
        return None


def _read_table(path: Path) -> dict[str, int]:
    """Parse lines that consist of a name and an integer."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
