"""Control groups (cgroups), by which containers and Slurm limit the memory and the processor time of a process."""

import math
from collections.abc import Iterator
from pathlib import Path

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")  # where Linux mounts procfs and the file system of the groups


def group_folders(controller: str, proc: Path, groups: Path) -> Iterator[tuple[Path, int]]:
    """Yield the folder of each control group of this process that may limit ``controller``, and of their parents.

    Args:
        controller: ``memory`` or ``cpu``.
        proc: mount point of procfs.
        groups: mount point of the cgroup file system.

    Returns:
        The folders, each with the version of cgroups that it belongs to, 1 or 2; not all of them need exist.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            root, version = groups, 2
        elif controller in controllers.split(","):
            root, version = groups / controller, 1
        else:
            continue
        folder = root / name.lstrip("/")
        yield from ((group, version) for group in (folder, *folder.parents) if group.is_relative_to(root))


def core_limit(proc: Path, groups: Path) -> float:
    """Return the number of cores whose time this process may use, as ``docker run --cpus`` sets it; inf without limit.

    The arguments are those of :func:`group_folders`.
    """
    limits = [math.inf]
    for group, version in group_folders("cpu", proc, groups):
        files = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        try:
            quota, period = map(int, " ".join((group / file).read_text() for file in files).split())
        except (OSError, ValueError):  # "max" stands for no limit
            continue
        if quota > 0 and period > 0:  # in version 1, -1 stands for no limit
            limits.append(quota / period)
    return min(limits)
