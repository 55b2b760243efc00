"""How much memory images may take, on this machine and on its GPUs."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch


def available_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory that can be had now: what the machine has, or less where a control group limits this process.

    Args:
        proc: where the kernel tells about the machine.
        groups: where it tells about control groups.
    """
    found = [_of_machine(proc), *_of_groups(proc / "self" / "cgroup", groups)]
    return max(0, min(found))


def device_memory(accelerator: str, devices: int) -> int | None:
    """Bytes free on the GPU; ``None`` where the device has no memory of its own.

    Of several GPUs, all that the smallest one has: to ask what is free would itself take memory on each of them.
    """
    if accelerator != "cuda":
        return None
    if devices > 1:
        return min(torch.cuda.get_device_properties(device).total_memory for device in range(devices))
    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # PyTorch keeps what it has freed


def _of_machine(proc: Path) -> int:
    facts = _numbers(proc / "meminfo")
    if "MemAvailable:" in facts:
        return facts["MemAvailable:"] * 1024
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def _of_groups(memberships: Path, groups: Path) -> Iterator[int]:
    """What each control group that this process is in, and each group around it, has left."""
    try:
        lines = memberships.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers == "":  # version 2
            root, limit, used, prefix = groups, "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):  # version 1
            root, limit, used, prefix = groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
        else:
            continue
        folder = root / name.lstrip("/")
        for group in (folder, *folder.parents):
            if not group.is_relative_to(root):
                break
            most, now = _number(group / limit), _number(group / used)
            if most is not None and now is not None:
                facts = _numbers(group / "memory.stat")
                files = sum(facts.get(f"{prefix}{kind}", 0) for kind in ("inactive_file", "active_file"))
                yield most - now + files  # files in memory make room when it is needed


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # a group without a limit says "max"
        return None


def _numbers(path: Path) -> dict[str, int]:
    """Lines of a word and a number."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
