import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing import Pipe
from threading import Timer
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from vitrine.config.sweep import LauncherConfig
from vitrine.errors import ConfigError, Interrupted, OutOfTime, RunError
from vitrine.sweeps.launchers import process
from vitrine.sweeps.launchers.process import Slot, allocate_slots
from vitrine.sweeps.queue import GridQueue
from vitrine.sweeps.trial import read_result


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Eight cores and three GPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(process, "_gpus", lambda: ["4", "5", "6"])
    monkeypatch.setattr(process, "GPU_DRIVERS", ("/",))


@pytest.fixture
def configs(small):
    def make(accelerator, devices):
        return [replace(small, trainer=replace(small.trainer, accelerator=accelerator, devices=devices))]

    return make


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (LauncherConfig(), [Slot(2)] * 4),
        (LauncherConfig(workers=2), [Slot(4)] * 2),
        (LauncherConfig(threads=1), [Slot(1)] * 8),
        (LauncherConfig(workers=3, threads=2), [Slot(2)] * 3),
    ],
)
def test_cores_are_divided_among_slots(configs, settings, expected):
    assert allocate_slots(settings, configs("cpu", 1)) == expected


@pytest.mark.parametrize(
    ("devices", "settings", "expected"),
    [
        (1, LauncherConfig(), [Slot(2, ("4",)), Slot(2, ("5",)), Slot(2, ("6",))]),
        (1, LauncherConfig(workers=2, threads=3), [Slot(3, ("4",)), Slot(3, ("5",))]),
        (2, LauncherConfig(), [Slot(8, ("4", "5"))]),
        (None, LauncherConfig(), [Slot(8, ("4", "5", "6"))]),
        (1, LauncherConfig(workers=4, per_gpu=2), [Slot(2, (one,)) for one in ("4", "5", "6", "4")]),
        (1, LauncherConfig(workers=4), [Slot(2, (one,)) for one in ("4", "5", "6", "4")]),
        (1, LauncherConfig(per_gpu=2), [Slot(1, (one,)) for one in ("4", "5", "6", "4", "5", "6")]),
        (3, LauncherConfig(workers=2), [Slot(4, ("4", "5", "6"))] * 2),
    ],
)
def test_each_slot_has_its_own_gpus(configs, devices, settings, expected):
    assert allocate_slots(settings, configs("auto", devices)) == expected


@pytest.mark.parametrize(
    ("accelerator", "settings", "message"),
    [
        ("cpu", LauncherConfig(workers=9), ["launcher.workers=9", "there are 8", "launcher.workers=8"]),
        ("cpu", LauncherConfig(workers=2, threads=5), ["launcher.workers=2", "needs 10 cores", "launcher.workers=1"]),
        ("cpu", LauncherConfig(threads=9), ["needs 9 cores", "launcher.threads=8"]),
        ("gpu", LauncherConfig(workers=4, per_gpu=1), ["for 3 GPUs", "launcher.workers=3", "launcher.per_gpu=2"]),
    ],
)
def test_more_cores_or_gpus_than_there_are_is_refused(configs, accelerator, settings, message):
    with pytest.raises(ConfigError) as error:
        allocate_slots(settings, configs(accelerator, 1))
    for part in message:
        assert part in str(error.value)


@pytest.fixture
def train(monkeypatch, left):
    """Trains trials whose processes finish at once, where no time is left once the first has ended."""

    def run(trials, started=lambda: None):
        class Process:
            exitcode = 0
            pid = 2**22 + 1  # above Linux's largest

            def __init__(self, target, args):
                self.trial = args[0]
                self.sentinel, self._writer = Pipe()

            def start(self):
                left(self.trial, "finished")
                Timer(0.1, self._writer.close).start()
                started()

            def join(self):
                pass

        monkeypatch.setattr(process, "_context", lambda: SimpleNamespace(Process=Process))
        monkeypatch.setattr(process, "POLL_SECONDS", 0.01)
        monkeypatch.setattr(process, "time_is_short", lambda trained, since: bool(trained))
        process.train_in_processes(GridQueue(trials), [Slot(1)])

    return run


@pytest.mark.parametrize("count", [1, 2])
def test_a_sweep_is_out_of_time_only_if_a_trial_is_left(make_trial, train, count):
    trials = [make_trial(number) for number in range(count)]
    with pytest.raises(OutOfTime) if count > 1 else nullcontext():
        train(trials)
    assert [read_result(trial.folder).status for trial in trials] == ["finished", "new"][:count]


def test_a_signal_interrupts_a_sweep_that_is_nearly_out_of_time(make_trial, train):
    """Exit code 75 would make a loop run the command again."""
    with pytest.raises(Interrupted) as error:
        train([make_trial(0), make_trial(1)], started=lambda: os.kill(os.getpid(), signal.SIGINT))
    assert error.type is Interrupted


def test_an_error_stops_the_trials_that_run(monkeypatch):
    monkeypatch.setattr(os, "kill", kill := Mock())
    with pytest.raises(RunError), process._forwarding_stop_signals({Mock(pid=7): Mock()}):
        raise RunError("the study cannot be read")
    kill.assert_called_once_with(7, signal.SIGINT)


@pytest.mark.parametrize(
    ("code", "stopped", "before", "status", "error"),
    [
        (0, False, "finished", "finished", ""),
        (-signal.SIGKILL, False, "interrupted", "failed", "its process was killed by SIGKILL; out of memory?"),
        (-signal.SIGSEGV, False, "interrupted", "failed", "its process was killed by SIGSEGV"),
        (-signal.SIGKILL, True, "interrupted", "interrupted", ""),
        (-signal.SIGKILL, False, "finished", "finished", ""),
        (
            Interrupted.exit_code,
            False,
            "interrupted",
            "failed",
            "its process was stopped by a signal that only it received",
        ),
        (Interrupted.exit_code, True, "interrupted", "interrupted", ""),
        (OutOfTime.exit_code, False, "interrupted", "interrupted", ""),
        (
            process.FULL_EXIT_CODE,
            False,
            "interrupted",
            "interrupted",
            "the disk is full: cannot write to {trial.folder}",
        ),
        (1, False, "interrupted", "failed", "its process ended with exit code 1; see {trial.log}"),
    ],
)
def test_how_a_process_ended_is_the_result_of_its_trial(make_trial, left, code, stopped, before, status, error):
    trial, results, returned = make_trial(0), [], []
    left(trial, before)
    queue = SimpleNamespace(tell=lambda trial, result: results.append(result), put_back=returned.append)
    result = process._collect(queue, trial, code, stopped=stopped)
    assert results == [result]
    assert returned == []
    assert result.status == status
    assert result.error == error.format(trial=trial)


def test_a_trial_without_room_keeps_the_file_that_did_not_fit(make_trial, left):
    trial = make_trial(0)
    left(trial, "interrupted", error="the disk is full: cannot write last.ckpt")
    assert process._result(trial, process.FULL_EXIT_CODE, stopped=False).error.endswith("last.ckpt")


def test_a_trial_that_another_process_trains_is_put_back(make_trial):
    trial, results, returned = make_trial(0), [], []
    queue = SimpleNamespace(tell=lambda trial, result: results.append(result), put_back=returned.append)
    assert process._collect(queue, trial, process.LOCKED_EXIT_CODE, stopped=False).status == "running"
    assert (results, returned) == ([], [trial])
