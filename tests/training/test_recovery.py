"""A run has two states to recover from, and a damaged checkpoint is neither trusted nor deleted."""

import csv
import errno
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from helpers.running import ROOT, only_run, start_script
from lightning.pytorch.callbacks import Callback

from vitrine import compose, fit, load_run, resume
from vitrine.config import EvalConfig
from vitrine.errors import Interrupted, RunError
from vitrine.runs import RunRecord
from vitrine.runs.checkpoints import epoch_path
from vitrine.runs.lock import RunLocked
from vitrine.runs.registry import remove_runs
from vitrine.training.evaluate import evaluate_run
from vitrine.training.recovery import recover

# Three epochs of 5 steps; later epochs are better, so that the second is the best when the third begins.
OVERRIDES = [
    "model=vit_nano",
    "depth=1",
    "data.batch_size=256",
    "trainer.max_epochs=3",
    "trainer.deterministic=true",
    "trainer.precision=32-true",
    "trainer.compile=nothing",
    "callbacks.monitor=last",
]


class Stop(Callback):
    """Interrupts a run after twelve steps, two into the third epoch."""

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 12:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never stopped."""
    return RunRecord(fit(compose([*OVERRIDES, f"paths.output_dir={tmp_path_factory.mktemp('whole')}"])).run_dir)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run that was stopped in its third epoch."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(Interrupted):
        fit(compose([*OVERRIDES, f"paths.output_dir={folder}"]), callbacks=[Stop()])
    return only_run(folder)


@pytest.fixture
def stopped(interrupted, tmp_path):
    """A copy of it."""
    return RunRecord(Path(shutil.copytree(interrupted, tmp_path / "run")))


def flip(path):
    """Change one bit in the middle of a file, where its tensors are."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def step(path):
    return torch.load(path, weights_only=True)["global_step"]


def results(record):
    """What does not depend on a clock: metrics, each logged value, and the tested weights."""
    with (record.path / "metrics.csv").open(newline="") as file:
        rows = [{key: row[key] for key in ("epoch", "step", "train/loss", "val/loss")} for row in csv.DictReader(file)]
    metrics = {name: value for name, value in record.metrics.items() if name != "train_seconds"}
    weights = torch.load(record.best, weights_only=True)["state_dict"]
    return [row for row in rows if row["train/loss"] or row["val/loss"]], metrics, weights


def assert_same(record, whole):
    (rows, metrics, weights), (rows_then, metrics_then, weights_then) = results(record), results(whole)
    assert (rows, metrics) == (rows_then, metrics_then)
    assert all(torch.equal(weights[name], value) for name, value in weights_then.items())


def names(record):
    return sorted(path.name for path in record.last.parent.iterdir())


def test_nothing_is_renamed_through_a_link(tmp_path):
    """Which someone else may have made, to lead to files that are no checkpoints of the run."""
    (tmp_path / "run").mkdir()
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "last.ckpt").write_text("mine")
    record = RunRecord(tmp_path / "run")
    record.last.parent.symlink_to(tmp_path / "documents")
    with pytest.raises(RunError, match=r"last\.ckpt is damaged.*; it is not renamed, since .*checkpoints is a link"):
        recover(record)
    assert names(record) == ["last.ckpt"]


def checkpoints(record, states, best_epoch):
    """Write checkpoints without weights, of these names, steps and epochs."""
    record.last.parent.mkdir()
    for name, steps, epoch in states:
        state = {"global_step": steps, "epoch": epoch - 1}
        state["callbacks"] = {"Checkpoints": {"best": {"best_epoch": best_epoch}}}
        torch.save({"state_dict": {}, "config": {"model": {}}, **state}, record.last.with_name(f"{name}.ckpt"))


def test_of_two_states_in_one_epoch_that_with_more_steps_is_newer(tmp_path):
    record = RunRecord(tmp_path)
    checkpoints(record, [("previous", 7, 2), ("best", 10, 2)], best_epoch=2)
    record.last.write_text("damaged")
    recover(record)
    assert step(record.last) == 10


def test_where_the_last_two_are_lost_the_latest_kept_epoch_that_reads_whole_is_taken(tmp_path, capsys):
    record = RunRecord(tmp_path)
    checkpoints(record, [("best", 5, 1), ("epoch_2", 10, 2), ("epoch_4", 20, 4)], best_epoch=1)
    record.last.with_name("epoch_10.ckpt").write_text("damaged")
    recover(record)
    assert step(record.last) == 20
    printed = capsys.readouterr().err
    assert "it is kept as epoch_10.ckpt.damaged" in printed
    assert "is resumed from epoch_4.ckpt, step 20 in epoch 4" in printed


@pytest.mark.parametrize("damaged", [False, True])
def test_a_best_epoch_that_was_lost_is_taken_from_those_that_were_kept(tmp_path, capsys, damaged):
    record = RunRecord(tmp_path)
    states = [("last", 30, 6), ("previous", 25, 5), *((f"epoch_{epoch}", 5 * epoch, epoch) for epoch in range(1, 7))]
    checkpoints(record, states, best_epoch=3)
    if damaged:
        record.best.write_text("damaged")
    recover(record)
    assert (step(record.last), step(record.best)) == (30, 15)
    assert epoch_path(record, 3).exists()
    assert "has lost its best epoch" not in capsys.readouterr().err


@pytest.mark.whole
def test_a_resumed_run_keeps_epochs_that_are_those_of_an_uninterrupted_one(stopped, whole, capsys):
    resume(stopped.path, compose([f"resume={stopped.path}", "callbacks.keep_every=3"]))
    kept, last = (torch.load(path, weights_only=True) for path in (epoch_path(stopped, 3), whole.last))
    assert kept["global_step"] == last["global_step"] == 15
    for one, other in ((kept["state_dict"], last["state_dict"]), (kept["optimizer_states"], last["optimizer_states"])):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert_same(stopped, whole)
    rows = [row for row in stopped.history() if row["epoch"] == 3]
    assert load_run(stopped.path, checkpoint=3).metrics["val/loss"] == rows[-1]["val/loss"]
    capsys.readouterr()
    tested = evaluate_run(EvalConfig(run=str(stopped.path), checkpoint=3, accelerator="cpu"))
    assert tested["test/loss"] == pytest.approx(whole.metrics["test/loss"]), "the last epoch is the best"
    assert re.search("^chosen checkpoint +epoch 3$", capsys.readouterr().out, re.MULTILINE)


def test_the_last_two_states_and_the_best_are_three_files(stopped):
    files = [stopped.last, stopped.previous, stopped.best]
    assert [step(path) for path in files] == [12, 10, 10]
    assert len({path.stat().st_ino for path in files}) == 3
    assert {path.stat().st_nlink for path in files} == {1}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("damaged", "missing", "from_step"),
    [
        (["last"], [], 10),
        ([], ["last"], 10),  # killed between two renames
        (["last", "previous"], [], 10),  # the best epoch is the second
        (["last", "best"], [], 10),
        (["previous", "best"], [], 12),
    ],
)
def test_a_run_is_resumed_from_the_newest_state_that_reads_whole(stopped, whole, capsys, damaged, missing, from_step):
    for name in damaged:
        flip(stopped.path / "checkpoints" / f"{name}.ckpt")
    for name in missing:
        (stopped.path / "checkpoints" / f"{name}.ckpt").unlink()

    resume(stopped.path)

    printed = capsys.readouterr().err
    for name in damaged:
        assert f"{name}.ckpt is damaged" in printed
        assert f"it is kept as {name}.ckpt.damaged" in printed
    assert (f"step {from_step} in epoch" in printed) is (from_step == 10)
    assert names(stopped) == sorted(
        ["best.ckpt", "last.ckpt", "previous.ckpt", *(f"{name}.ckpt.damaged" for name in damaged)]
    )
    assert_same(stopped, whole)


def test_a_run_that_was_killed_while_it_wrote_its_first_checkpoint_begins_again(tmp_path):
    record = RunRecord.at(tmp_path / "run")
    record.update(status="running")
    (record.path / "checkpoints" / ".last.ckpt.448d627a.tmp").touch()
    assert recover(record) is None
    (record.path / "checkpoints" / "last.ckpt.damaged").touch()
    with pytest.raises(RunError, match="no checkpoint of it is left"):
        recover(record)


@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_a_trained_run_without_a_state_is_not_trained_from_the_start(stopped, damage):
    history = (stopped.path / "metrics.csv").read_bytes()
    for name in ("last", "previous", "best"):
        damage(stopped.path / "checkpoints" / f"{name}.ckpt")
    with pytest.raises(RunError, match="it was trained, but no checkpoint of it is left; like=RUN starts a new run"):
        resume(stopped.path)
    assert (stopped.path / "metrics.csv").read_bytes() == history
    assert stopped.facts["status"] == "interrupted"
    assert names(stopped) == ([f"{name}.ckpt.damaged" for name in ("best", "last", "previous")] * (damage is flip))


def test_a_lost_best_epoch_is_replaced_by_later_ones(stopped, capsys):
    state = torch.load(stopped.last, weights_only=True)
    state["callbacks"]["Checkpoints"]["best"]["best_epoch"] = 1
    torch.save(state, stopped.last)
    flip(stopped.best)
    recover(stopped)
    assert "has lost its best epoch, 1: later ones take its place" in capsys.readouterr().err
    assert not stopped.best.exists()
    assert resume(stopped.path).metrics["best_epoch"] == 3


def test_a_best_epoch_lost_after_the_last_one_is_replaced_by_it(whole, tmp_path, capsys):
    """Interrupted while it was tested."""
    record = RunRecord(Path(shutil.copytree(whole.path, tmp_path / "run")))
    metrics = record.metrics
    record.end("interrupted")
    (record.path / "metrics.json").unlink()
    state = torch.load(record.last, weights_only=True)
    state["callbacks"]["Checkpoints"]["best"] |= {"best_epoch": 1, "val/acc": 0.0}
    torch.save(state, record.last)
    flip(record.best)
    result = resume(record.path).metrics
    assert "its last, 3, takes the place of its best" in capsys.readouterr().err
    assert {**result, "train_seconds": 0.0} == pytest.approx({**metrics, "train_seconds": 0.0})
    for path in (record.last, record.best):
        best = torch.load(path, weights_only=True)["callbacks"]["Checkpoints"]["best"]
        assert best == pytest.approx({name: value for name, value in result.items() if name in best})


def test_a_checkpoint_that_cannot_be_opened_is_not_moved(stopped, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    before = names(stopped)
    monkeypatch.setattr("vitrine.training.weights.zipfile.ZipFile", refuse)
    with pytest.raises(RunError, match=r"cannot read .*last\.ckpt: Permission denied"):
        recover(stopped)
    assert names(stopped) == before


def test_a_checkpoint_without_a_state_of_training_is_moved_aside(stopped, capsys):
    torch.save({"state_dict": {}, "config": {"model": {}}}, stopped.last)
    recover(stopped)
    assert "is not a checkpoint to resume from: it lacks 'callbacks'" in capsys.readouterr().err
    assert step(stopped.last) == 10


@pytest.mark.whole
def test_without_hard_links_and_locks_the_states_are_kept_as_well(tmp_path, monkeypatch, whole):
    """As on some network file systems; renaming over a file that another process has open is no matter."""

    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr(os, "copy_file_range", refuse)
    with pytest.raises(Interrupted):
        fit(compose([*OVERRIDES, f"paths.output_dir={tmp_path}"]), callbacks=[Stop()])
    record = RunRecord(only_run(tmp_path))
    with record.last.open("rb"), record.previous.open("rb"), (record.path / "run.json").open("rb"):
        assert [step(path) for path in (record.last, record.previous, record.best)] == [12, 10, 10]
        flip(record.last)
        resume(record.path)
    assert_same(record, whole)
    assert not list(record.path.rglob(".*"))


class Rivals(Callback):
    """Tries everything else that writes to a run while it is trained."""

    def __init__(self, folder):
        self.folder = folder
        self.refused = []

    def on_train_epoch_end(self, *_):
        run = only_run(self.folder)
        for write in (lambda: resume(run), lambda: fit(compose(OVERRIDES), folder=run), lambda: remove_runs([run])):
            with pytest.raises(RunError) as error:
                write()
            self.refused.append(str(error.value))


@pytest.mark.whole
def test_a_run_has_one_writer_at_a_time(tmp_path, whole):
    rivals = Rivals(tmp_path)
    record = RunRecord(fit(compose([*OVERRIDES, f"paths.output_dir={tmp_path}"]), callbacks=[rivals]).run_dir)
    assert len(rivals.refused) == 9
    for resumed, trained, removed in zip(*[iter(rivals.refused)] * 3, strict=True):
        assert f"is still running, as process {os.getpid()} on " in resumed
        assert "already holds a run" in trained
        assert removed.endswith("stop it first; nothing was deleted")
    assert_same(record, whole)
    assert not (record.path / ".lock").exists()


@pytest.mark.whole
def test_of_two_commands_that_resume_a_run_at_once_one_trains_it(stopped, whole):
    both = [start_script("train.py", f"resume={stopped.path}", cwd=ROOT) for _ in range(2)]
    ended = sorted((process.communicate()[1], process.returncode) for process in both)
    (silent, trained), (message, refused) = ended
    assert (trained, refused, silent) == (0, 1, "")
    assert len(message.splitlines()) == 1
    assert "is still running, as process" in message
    assert len(stopped.facts["resumed"]) == 1
    assert_same(stopped, whole)


def test_a_run_that_was_taken_over_is_written_to_no_more(stopped):
    """By a process on another machine, while this one was suspended."""
    with stopped.owned() as own:
        (stopped.path / ".lock").write_text(
            '{"host": "b", "pid": 7, "process": "", "kernel": "k", "since": "now", "token": "t", "beat": 0}'
        )
        for write in (lambda: own.update(status="failed"), lambda: own.write_metrics({}), own.check_claim):
            with pytest.raises(RunError, match="was taken over by process 7 on b, since now"):
                write()
    assert stopped.facts["status"] == "interrupted"
    with pytest.raises(RunLocked):
        stopped.owned().__enter__()
