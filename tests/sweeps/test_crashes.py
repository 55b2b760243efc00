"""A sweep that is killed at any point of its end, or on another machine, is completed by the same command."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import searching
from helpers.running import ROOT

from vitrine.command.compose import points
from vitrine.runs.lock import Watch
from vitrine.sweeps import run as sweeps_run
from vitrine.sweeps.trial import read_result

GRID = ["seed=0,1", "sweep.name=s"]
SEARCH = ["sweep.sampler=random", "sweep.name=s", "sweep.n_trials=2", *searching.TWO]
FILE_OPERATIONS = ("open", "fsync", "replace", "unlink", "rmdir", "mkdir")  # whose effect others see


@pytest.fixture(autouse=True)
def formula(monkeypatch):
    """Trials are not trained: a formula gives their metrics."""

    def run_trial(trial, **_):
        searching.train(trial)
        return read_result(trial.folder)

    monkeypatch.setattr(sweeps_run, "run_trial", run_trial)


def sweep(folder, overrides):
    """Run the command of a sweep under ``folder``; return how many trials failed."""
    made = points("train", [f"paths.output_dir={folder}", *overrides], multirun=True)
    return sweeps_run.run(made, "basic")


@contextmanager
def counted(end):
    """Count operations on files; at the ``end``-th the process kills itself before it is done."""
    count, real = [0], {name: getattr(os, name) for name in FILE_OPERATIONS}

    def counting(name):
        def call(*arguments, **options):
            count[0] += 1
            if count[0] == end:
                os.kill(os.getpid(), signal.SIGKILL)
            return real[name](*arguments, **options)

        return call

    for name in real:
        setattr(os, name, counting(name))
    try:
        yield count
    finally:
        for name, call in real.items():
            setattr(os, name, call)


def killed_at(end, folder, overrides):
    """Run the command in a forked process that dies at the ``end``-th operation; return whether it came to that."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            with counted(end):
                sweep(folder, overrides)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def trials(folder):
    """Values, status and metrics of the trials in sweep.json."""
    written = json.loads((folder / "sweeps" / "s" / "sweep.json").read_text())["trials"]
    return sorted(({name: one[name] for name in ("varies", "status", "metrics")} for one in written), key=str)


def results(folder):
    """What sweep.json says, without times and names of the folder."""
    written = json.loads((folder / "sweeps" / "s" / "sweep.json").read_text())
    return trials(folder), str(written["best"]).replace(str(folder), "")


@pytest.mark.whole
@pytest.mark.parametrize("moments", [5, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("overrides", [GRID, SEARCH], ids=["grid", "search"])
def test_a_sweep_killed_at_any_file_operation_is_completed_by_the_same_command(tmp_path, overrides, moments):
    """Most moments are in its second half, which has the end of its last trial and of the sweep."""
    expected = tmp_path / "whole"
    with counted(0) as count:
        assert sweep(expected, overrides) == 0
    operations = count[0]
    assert operations > 40
    for end in range(operations, 0, -max(1, operations // (2 * moments)))[:moments]:
        folder = tmp_path / str(end)
        assert killed_at(end, folder, overrides)
        assert sweep(folder, overrides) == 0
        assert results(folder) == results(expected), f"killed at operation {end} of {operations}"
        assert not list(folder.rglob(".*.tmp")), f"killed at operation {end} of {operations}"


@pytest.mark.whole
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may pretend to be another machine")
@pytest.mark.parametrize("overrides", [GRID, SEARCH], ids=["grid", "search"])
def test_two_machines_share_a_sweep_and_one_takes_up_what_the_other_left(tmp_path, overrides, monkeypatch):
    """The other machine has its own host name, network and kernel id; only the folder is shared."""
    (tmp_path / "kernel").write_text("another kernel\n")
    become = f"mount --bind {tmp_path}/kernel /proc/sys/kernel/random/boot_id && hostname spot-7 && exec "
    script = [sys.executable, str(ROOT / "tests" / "helpers" / "searching.py"), str(tmp_path), "60", *overrides]
    isolated = ["unshare", "--uts", "--net", "--mount", "sh", "-c", become + '"$@"', "sh"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([*isolated, *script], env=environment) as other:
        folder = tmp_path / "sweeps" / "s"
        while not (locks := list(folder.glob("*/.lock"))):
            assert other.poll() is None
            time.sleep(0.05)
        (lock,) = locks
        while not (lock.parent / "run.json").exists():
            time.sleep(0.01)
        other.kill()
    assert json.loads(lock.read_text())["host"] == "spot-7"
    assert read_result(lock.parent).status == "running", "nobody here knows better"
    begin = time.monotonic()
    monkeypatch.setattr("vitrine.sweeps.queue.Watch", lambda: Watch(2.0))
    assert sweep(tmp_path, overrides) == 0
    assert time.monotonic() - begin > 2
    trained = (folder / "trained.txt").read_text().splitlines()
    assert sorted(trained) == sorted([lock.parent.name, *(path.parent.name for path in folder.glob("[!.]*/run.json"))])
    assert {read_result(path.parent).status for path in folder.glob("[!.]*/run.json")} == {"finished"}
    assert not Path(lock).exists()
