"""Available memory, with and without limits by control groups."""

import os

import pytest

from vitrine.data.memory import available_memory

GB = 10**9


@pytest.fixture
def machine(tmp_path):
    """A machine with 8 GB available, and control groups with the given files."""

    def make(membership="", meminfo="MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\nHugePages_Total: 0\n", **files):
        proc, groups = tmp_path / "proc", tmp_path / "cgroup"
        (proc / "self").mkdir(parents=True)
        (proc / "meminfo").write_text(meminfo)
        (proc / "self" / "cgroup").write_text(membership)
        for path, text in files.items():
            (groups / path).parent.mkdir(parents=True, exist_ok=True)
            (groups / path).write_text(f"{text}\n")
        return available_memory(proc, groups)

    return make


def test_without_control_groups_the_machine_decides(machine):
    assert machine() == 8_000_000 * 1024


def test_without_procfs_sysconf_decides(tmp_path):
    found = available_memory(tmp_path, tmp_path)
    assert 0 < found <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_this_machine_has_memory():
    assert 10_000_000 < available_memory() < 2**50


def test_a_group_of_version_2_limits(machine):
    files = {"job/memory.max": 5 * GB, "job/memory.current": 2 * GB, "job/memory.stat": "anon 5\nfile 7"}
    assert machine("0::/job\n", **files) == 3 * GB


def test_the_page_cache_counts_as_available(machine):
    stat = f"inactive_file {GB}\nactive_file {GB // 2}\nfile {4 * GB}"
    files = {"job/memory.max": 5 * GB, "job/memory.current": 4 * GB, "job/memory.stat": stat}
    assert machine("0::/job\n", **files) == 2.5 * GB


def test_a_parent_group_limits_too(machine):
    files = {
        "memory.max": 4 * GB,
        "memory.current": 3 * GB,
        "job/memory.max": "max",
        "job/memory.current": 2 * GB,
        "job/step/memory.max": 7 * GB,
        "job/step/memory.current": GB,
    }
    assert machine("0::/job/step\n", **files) == GB


def test_a_container_has_its_limit_at_the_root(machine):
    assert machine("0::/\n", **{"memory.max": 3 * GB, "memory.current": GB}) == 2 * GB


def test_a_group_of_version_1_limits(machine):
    files = {
        "memory/job/memory.limit_in_bytes": 6 * GB,
        "memory/job/memory.usage_in_bytes": 5 * GB,
        "memory/job/memory.stat": f"inactive_file 1\ntotal_inactive_file {GB}",
        "memory/memory.limit_in_bytes": 2**63 - 4096,
        "memory/memory.usage_in_bytes": 7 * GB,
    }
    assert machine("9:cpu:/job\n4:hugetlb,memory:/job\n0::/\n", **files) == 2 * GB


def test_a_group_over_its_limit_leaves_nothing(machine):
    assert machine("0::/\n", **{"memory.max": GB, "memory.current": 2 * GB}) == 0
