import errno
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from unittest.mock import Mock

import pytest

from vitrine.distributed.rendezvous import Ranks
from vitrine.errors import Interrupted, OutOfTime, RunError
from vitrine.runs import RunRecord
from vitrine.runs.lock import RunLock, RunLocked, Watch
from vitrine.runs.lock_file import Holder, LockState
from vitrine.sweeps import run as sweeps_run
from vitrine.sweeps.max_time import time_is_short
from vitrine.sweeps.queue import GridQueue
from vitrine.sweeps.trial import (
    TrialResult,
    locked,
    read_result,
    record_crash,
    run_trial,
    take_up,
)
from vitrine.training.graceful_stop import GracefulStop

DENIED = "Permission denied"


@pytest.mark.whole
def test_a_trial_is_trained_once_and_then_only_read(make_trial):
    trial = make_trial()
    first = run_trial(trial)
    assert first.status == "finished"
    assert 0 < first.metrics["val/acc"] <= 1
    files = {path: path.stat().st_mtime_ns for path in trial.folder.rglob("*")}
    assert run_trial(trial) == first
    assert {path: path.stat().st_mtime_ns for path in trial.folder.rglob("*")} == files


@pytest.mark.whole
def test_an_interrupted_trial_is_resumed_with_the_same_result(make_trial, monkeypatch):
    whole = run_trial(make_trial(3))
    trial = replace(make_trial(3), folder=make_trial(3).folder.with_name("stopped"))

    def stop(self, trainer, module):
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(GracefulStop, "on_train_epoch_end", stop)
        with pytest.raises(Interrupted):
            run_trial(trial)
    assert read_result(trial.folder).status == "interrupted"
    assert (trial.folder / "checkpoints" / "last.ckpt").exists()

    again = run_trial(trial)

    for name in ("train_seconds", "images_per_second"):
        del whole.metrics[name], again.metrics[name]
    assert again.metrics == whole.metrics
    assert len(RunRecord(trial.folder).facts["resumed"]) == 1


@pytest.mark.whole
def test_a_trial_whose_only_checkpoint_is_damaged_starts_over_and_keeps_what_it_had(make_trial, left, capsys):
    trial = make_trial()
    left(trial, "interrupted").last.write_bytes(b"half a checkpoint")
    assert run_trial(trial).status == "finished"
    assert "starts over" in capsys.readouterr().err
    (aside,) = trial.folder.parent.glob(f".{trial.folder.name}_*")
    assert (aside / "checkpoints" / "last.ckpt.damaged").read_bytes() == b"half a checkpoint"
    assert json.loads((aside / "run.json").read_text())["status"] == "interrupted"


def test_a_trial_in_a_private_folder_of_another_user_is_unreadable(make_trial, left):
    trial = make_trial()
    left(trial, "finished")
    trial.folder.chmod(0)
    user = os.geteuid()
    os.seteuid(user or 65534)  # to an administrator nothing is closed
    try:
        assert read_result(trial.folder) == TrialResult("unreadable", error=f"cannot read {trial.folder}: {DENIED}")
    finally:
        os.seteuid(user)
        trial.folder.chmod(0o700)


def test_a_trial_that_another_user_trained_does_not_start_over_where_it_is_not_readable(make_trial, left, monkeypatch):
    trial = make_trial()
    left(trial, "finished")
    before = sorted(trial.folder.parent.rglob("*"))
    monkeypatch.setattr("vitrine.runs.record.read_json", Mock(side_effect=PermissionError(errno.EACCES, DENIED)))
    with pytest.raises(RunError, match=f"^cannot read {trial.folder}/run.json: {DENIED}$"):
        run_trial(trial)
    assert sorted(trial.folder.parent.rglob("*")) == before


@pytest.mark.parametrize("to", ["documents", "sweep", "gone"])
def test_a_trial_whose_folder_is_a_link_is_refused_and_nothing_is_deleted(make_trial, tmp_path, to):
    trial = make_trial()
    trial.folder.parent.mkdir()
    (tmp_path / "documents").mkdir()
    kept = tmp_path / "documents" / "thesis.txt", trial.folder.parent / "sweep.json"
    for file in kept:
        file.write_text("kept")
    trial.folder.symlink_to(tmp_path / to)
    with pytest.raises(RunError, match=rf"seed=0 is a link, to {tmp_path / to}: a trial's folder must be in its sweep"):
        run_trial(trial)
    assert [file.read_text() for file in kept] == ["kept", "kept"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["documents", "sweep"]


def test_a_trial_does_not_write_through_a_link_in_its_folder(make_trial, tmp_path):
    trial = make_trial()
    trial.folder.mkdir(parents=True)
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "last.ckpt").write_text("kept")
    (trial.folder / "checkpoints").symlink_to(tmp_path / "documents")
    with pytest.raises(
        RunError, match=r"cannot write .*checkpoints: it is a link that leads out of .*, to .*documents"
    ):
        run_trial(trial)
    assert [path.name for path in (tmp_path / "documents").iterdir()] == ["last.ckpt"]


def test_a_sweep_folder_may_be_a_link(make_trial, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "sweep").symlink_to(tmp_path / "disk")
    with locked(make_trial()):
        assert (tmp_path / "disk" / "seed=0").is_dir()


@pytest.mark.whole
def test_a_failure_before_the_run_starts_is_recorded_and_retried(make_trial, small):
    broken = make_trial(data=replace(small.data, name="mnist", root="/proc/nowhere"))
    came = run_trial(broken)
    assert came.status == "failed"
    assert "/proc/nowhere" in came.error
    assert run_trial(make_trial()).status == "finished", "the cause is gone"


@pytest.mark.parametrize("kind", [ValueError, RunError])
def test_a_secret_in_the_error_of_a_trial_is_masked_everywhere(make_trial, monkeypatch, capsys, kind):
    monkeypatch.setenv("STORE_TOKEN", "correct-horse-battery")

    def fail(*arguments, **settings):
        raise kind("no access with correct-horse-battery")

    monkeypatch.setattr("vitrine.training.fit.fit", fail)
    trial = make_trial()
    came = run_trial(trial)
    shown = capsys.readouterr().err
    assert ("Traceback" in shown) == (kind is ValueError)
    for text in (came.error, shown, (trial.folder / "run.json").read_text()):
        assert "no access with ***" in text
        assert "correct-horse-battery" not in text


def test_one_process_at_a_time_trains_a_trial_and_a_dead_one_holds_no_lock(make_trial):
    trial = make_trial()
    code = f"""
from pathlib import Path
from vitrine.runs.lock import RunLock
RunLock(Path({str(trial.folder)!r})).acquire()
print("held", flush=True)
input()
"""
    trial.folder.mkdir(parents=True)
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "held\n"
    with pytest.raises(RunLocked):
        run_trial(trial)
    other.kill()
    other.wait()
    with locked(trial), pytest.raises(RunLocked), locked(trial):
        pass


def test_what_is_taken_over_is_what_was_watched(make_trial, left, monkeypatch, capsys):
    """Not what another look would find: a process that has just taken the trial up."""
    trial = make_trial()
    left(trial, "running")
    dead, alive = (Holder(host, 7, "", "", "noon", host) for host in ("node1", "node2"))
    looks = iter([(LockState.UNKNOWN, dead), (LockState.HELD, alive)])
    monkeypatch.setattr("vitrine.sweeps.trial.lock_state", lambda folder: next(looks))
    assert take_up(trial, Watch(0.0))
    assert "taken over from process 7 on node1" in capsys.readouterr().err
    assert RunRecord(trial.folder).facts["status"] == "interrupted"


def test_a_crashed_process_leaves_a_failed_trial_with_the_reason(make_trial, left):
    trial = make_trial()
    left(trial, "running")
    assert record_crash(trial, "its process was killed by SIGKILL").error == "its process was killed by SIGKILL"
    assert read_result(trial.folder).status == "failed"
    finished = make_trial(1)
    left(finished, "finished")
    assert record_crash(finished, "killed at its very end").status == "finished"


def test_no_trial_is_started_without_time_for_its_first_step(make_trial, small, left):
    """The slowest start so far, with compiling, took 30 s; ten more are for the step and its checkpoint."""
    trials = [make_trial(seed, trainer=replace(small.trainer, max_time="10m")) for seed in range(2)]
    for trial, seconds in zip(trials, (5.0, 8.0), strict=True):
        left(trial, "finished").update(start_ups=[{"step": 0, "seconds": seconds, "compiling": 22.0}])
    assert not time_is_short(trials, time.time() - 555)
    assert time_is_short(trials, time.time() - 565)
    assert not time_is_short(trials[:1], time.time() - 561)
    assert not time_is_short([], time.time() - 700), "one may always begin"
    assert not time_is_short([make_trial()], time.time() - 700), "there is no limit"


def test_a_sweep_without_time_for_another_trial_stops_before_it(make_trial, small, monkeypatch):
    trials = [make_trial(seed, trainer=replace(small.trainer, max_time="1m")) for seed in range(3)]
    monkeypatch.setattr(sweeps_run.provenance, "process_started_at", lambda: time.time() - 55)
    trained = []

    def train(trial, time_from, ranks):
        trained.append(trial)
        return TrialResult("finished")

    monkeypatch.setattr(sweeps_run, "run_trial", train)
    queue = GridQueue(trials)
    with pytest.raises(OutOfTime):
        sweeps_run._train_in_this_process(queue, Ranks())
    assert trained == trials[:1]
    assert queue.ask() == trials[1]


@pytest.fixture
def unlockable(monkeypatch):
    """The lock of the first trial cannot be made, as in a folder of another user."""
    make = RunLock._create

    def refuse(lock):
        if lock.folder.name == "seed=0":
            raise PermissionError(1, "Operation not permitted")
        return make(lock)

    monkeypatch.setattr(RunLock, "_create", refuse)


def test_a_trial_that_cannot_be_locked_fails_and_the_others_are_trained(make_trial, left, monkeypatch, unlockable):
    trials = [make_trial(number) for number in range(2)]
    queue, ended = GridQueue(trials), Mock()
    queue.subscribe(ended)
    monkeypatch.setattr("vitrine.sweeps.trial._train", lambda trial, *_, **__: left(trial, "finished"))
    sweeps_run._train_in_this_process(queue, None)
    first, second = [call.args[1] for call in ended.trial_ended.call_args_list]
    assert first == TrialResult("failed", error=f"cannot lock {trials[0].folder}: Operation not permitted")
    assert second.status == "finished"


def test_a_crash_in_a_folder_that_cannot_be_locked_is_a_failure(make_trial, unlockable):
    trial = make_trial()
    why = f"its process was killed; cannot lock {trial.folder}: Operation not permitted"
    assert record_crash(trial, "its process was killed") == TrialResult("failed", error=why)


def test_a_lock_of_another_machine_that_cannot_be_replaced_leaves_the_failure_to_the_training(make_trial, monkeypatch):
    trial = make_trial()
    monkeypatch.setattr("vitrine.sweeps.trial.lock_state", lambda folder: (LockState.UNKNOWN, None))
    monkeypatch.setattr(RunLock, "acquire", Mock(side_effect=RunError("cannot lock it")))
    assert take_up(trial, Watch(0.0))
