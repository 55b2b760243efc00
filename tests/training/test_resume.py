"""A run that was stopped and goes on is the run that was never stopped, to the last bit."""

import csv
import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from helpers.levels import quick, slow
from helpers.running import ROOT, only_run, start_script, write_image_folder
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from vitrine import compose, fit, resume
from vitrine.config.serialize import to_plain
from vitrine.errors import ConfigError, Interrupted, OutOfTime, RunError
from vitrine.runs import RunRecord, provenance
from vitrine.training.callbacks import TrainingLog
from vitrine.training.compile import Compilation
from vitrine.training.graceful_stop import TimeLimit
from vitrine.training.resume import _check_checkpoint, _stretched_schedule

# Everything that draws random numbers or keeps state is on. 4 epochs of 11 steps.
OVERRIDES = [
    "model=vit_nano",
    "depth=2",
    "data.batch_size=112",
    "trainer.max_epochs=4",
    "trainer.deterministic=true",
    "trainer.log_every_n_steps=4",
    "model.mlp_dropout=0.1",
    "model.attention_dropout=0.1",
    "model.drop_path=0.2",
    "model.patch_dropout=0.25",
    "callbacks=[default,ema]",
]


class SignalAt(Callback):
    """Counts steps, and sends this process a signal after one of them."""

    def __init__(self, step, number=signal.SIGINT):
        self.step, self.number, self.seen = step, number, 0

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]

    def on_train_batch_end(self, trainer, *_):
        self.seen += 1
        if trainer.global_step == self.step:
            os.kill(os.getpid(), self.number)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    return RunRecord(fit(compose([*OVERRIDES, f"paths.output_dir={folder}"])).run_dir)


def rows(record):
    """metrics.csv without what a clock decides."""
    with (record.path / "metrics.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    timed = ("seconds", "images_per_second")
    return [{key: value for key, value in row.items() if key not in timed} for row in found if not row[timed[1]]]


def weights(path):
    checkpoint = torch.load(path, weights_only=True)
    return {**checkpoint["state_dict"], **{f"now.{name}": v for name, v in checkpoint["current_model_state"].items()}}


def assert_same(record, whole):
    assert record.facts["status"] == "finished"
    assert rows(record) == rows(whole)
    for name in ("best.ckpt", "last.ckpt"):
        one, other = weights(record.path / "checkpoints" / name), weights(whole.path / "checkpoints" / name)
        assert all(torch.equal(one[key], other[key]) for key in other)
    one, other = ({k: v for k, v in r.metrics.items() if k != "train_seconds"} for r in (record, whole))
    assert one == other


@pytest.mark.parametrize(
    ("step", "number"),
    [
        pytest.param(1, signal.SIGINT, marks=pytest.mark.whole),  # the first step
        (17, signal.SIGTERM),  # in the middle of an epoch
        pytest.param(22, signal.SIGINT, marks=pytest.mark.whole),  # the last step of an epoch, before its validation
    ],
)
def test_an_interrupted_run_resumes_bit_equal(whole, tmp_path, monkeypatch, step, number):
    with pytest.raises(Interrupted, match=r"resume\("):
        fit(compose([*OVERRIDES, f"paths.output_dir={tmp_path}"]), callbacks=[SignalAt(step, number)])
    record = RunRecord(only_run(tmp_path))
    assert (record.facts["status"], record.facts["user"]) == ("interrupted", provenance.user())
    assert torch.load(record.last, weights_only=True)["global_step"] == step
    began, later = record.facts["code"], {"commit": "def", "changed": True, "untracked": []}
    monkeypatch.setattr(provenance, "code_state", lambda: (later, "a difference"))
    at_first = record.facts["versions"]["torch"]
    monkeypatch.setattr(provenance, "versions", lambda: {**record.facts["versions"], "torch": "9.0"})
    reads = Mock(wraps=torch.load)
    monkeypatch.setattr(torch, "load", reads)

    again, random_state = SignalAt(step, number), torch.get_rng_state()
    result = resume(record.path, callbacks=[again])

    assert torch.equal(torch.get_rng_state(), random_state), "the caller's"

    assert again.seen == 44, "a callback goes on, with the state that it had"
    assert [call.args[0] for call in reads.call_args_list].count(record.last) == 2  # Lightning reads it a third time
    assert result.run_dir == record.path
    assert_same(record, whole)
    (again,) = record.facts["resumed"]
    assert (again["code"], again["before"]) == (later, {"versions.torch": at_first})
    assert (record.facts["code"], record.facts["versions"]["torch"]) == (began, "9.0")
    assert (record.path / "code.1.diff").read_text() == "a difference"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("own", "steps"),
    [
        (["optimizer=muon", "augment.elastic=0.04", "augment.rand={}"], [7]),
        (["optimizer=schedule_free", "callbacks=default"], [7]),
        (
            ["trainer.precision=64-true", "callbacks=[default,ema]", "model.depth=1", "model.drop_path=0"],
            [7],
        ),  # with an average of the weights
        (["trainer.image_schedule=[4,0.5]"], [7, 17]),  # of 11 steps on small images, and after them
    ],
)
def test_other_ways_of_training_resume_bit_equal(tmp_path, own, steps):
    overrides = [*OVERRIDES, "trainer.max_epochs=2", *own]
    never_stopped = RunRecord(fit(compose([*overrides, f"paths.output_dir={tmp_path / 'whole'}"])).run_dir)
    for step in steps:
        folder = tmp_path / f"stopped-{step}"
        with pytest.raises(Interrupted):
            fit(compose([*overrides, f"paths.output_dir={folder}"]), callbacks=[SignalAt(step)])
        record = RunRecord(only_run(folder))

        resume(record.path)

        assert_same(record, never_stopped)


STOPPING = [
    *OVERRIDES[:3],
    "trainer.max_epochs=6",
    "callbacks=[default,early_stopping]",
    "callbacks.early_stopping.patience=2",
    "callbacks.early_stopping.min_delta=9",  # so that no epoch is better than the first
]


@pytest.mark.whole
@pytest.mark.parametrize("step", [slow(23), 33])
def test_a_resumed_run_stops_early_where_it_would_have(tmp_path, step, capsys):
    with pytest.raises(Interrupted):
        fit(compose([*STOPPING, f"paths.output_dir={tmp_path}"]), callbacks=[SignalAt(step)])
    record = RunRecord(only_run(tmp_path))

    resume(record.path)

    assert record.facts["status"] == "finished"
    assert record.history()[-1]["epoch"] == 3

    capsys.readouterr()
    resume(record.path)
    planned = record.config["trainer"]["max_epochs"]
    resume(record.path, compose([f"trainer.max_epochs={planned + 1}", f"resume={record.path}"]))
    printed = capsys.readouterr()
    why = "stopped early after epoch 3: val/loss did not improve by 9 for 2 epochs"
    assert printed.out.count(f"{record.path} is finished; it {why}; it stays stopped\n") == 2
    assert "learning rate" not in printed.err, "it trains no further step"
    assert record.history()[-1]["epoch"] == record.facts["epochs"] == 3


@pytest.mark.whole
def test_a_run_that_was_interrupted_once_it_had_stopped_early_trains_no_more(tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patched:
        patched.setattr(TimeLimit, "over", lambda self, *, trained=False: trained)
        with pytest.raises(OutOfTime):
            fit(compose([*STOPPING, "trainer.max_time=1h", f"paths.output_dir={tmp_path}"]))
    record = RunRecord(only_run(tmp_path))
    assert record.metrics == {}

    resume(record.path)

    assert record.facts["status"] == "finished"
    assert record.history()[-1]["epoch"] == record.facts["epochs"] == 3
    assert "stopped early after epoch 3: " in capsys.readouterr().out


class StopAt(Callback):
    """Ends training as Lightning's Timer does, after an optimiser step."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        trainer.should_stop = trainer.global_step == self.step


TINY = ["model=vit_nano", "depth=1", "model.dim=32", "model.heads=2", "data.batch_size=256", "trainer.compile=nothing"]


@pytest.mark.whole
@pytest.mark.parametrize("step", quick([5, 3], [3]))
def test_a_run_that_a_callback_has_stopped_can_be_trained_longer(tmp_path, step, capsys):
    """At the end of the first epoch of five steps, or inside it."""
    overrides = [*TINY, "trainer.max_epochs=2", "callbacks=[default,early_stopping]", f"paths.output_dir={tmp_path}"]
    record = RunRecord(fit(compose(overrides), callbacks=[StopAt(step)]).run_dir)
    assert "stopped after epoch 1 of 2 by a callback\n" in capsys.readouterr().out
    assert record.facts["epochs"] == 1

    resume(record.path, compose([f"resume={record.path}", "trainer.max_epochs=3"]))

    assert "stopped" not in capsys.readouterr().out
    ends = [row for row in record.history() if "val/loss" in row]
    assert [(row["epoch"], row["step"]) for row in ends] == [(epoch, step + 5 * (epoch - 1)) for epoch in range(1, 4)]
    assert record.facts["epochs"] == 3


def test_a_patience_exhausted_in_the_last_epoch_ends_the_run(tmp_path, capsys):
    stopping = ["callbacks=[default,early_stopping]", "callbacks.early_stopping.patience=1", STOPPING[-1]]
    overrides = [*TINY, "trainer.max_epochs=2", *stopping, f"paths.output_dir={tmp_path}"]
    record = RunRecord(fit(compose(overrides)).run_dir)
    assert "stopped" not in capsys.readouterr().out, "it has trained all its epochs"
    (record.path / "metrics.csv").unlink()

    resume(record.path, compose([f"resume={record.path}", "trainer.max_epochs=5"]))

    printed = capsys.readouterr()
    why = "stopped early after epoch 2: val/loss did not improve by 9 for 1 epoch"
    assert f"{record.path} is finished; it {why}; it stays stopped\n" in printed.out
    assert not printed.err
    assert record.config["trainer"]["max_epochs"] == 2


@pytest.mark.whole
def test_compilation_inside_an_epoch_does_not_count_as_waiting_for_data(tmp_path, monkeypatch):
    overrides = ["model=vit_nano", "depth=1", "trainer.max_epochs=1", "data.batch_size=112"]
    with pytest.raises(Interrupted):
        fit(compose([*overrides, f"paths.output_dir={tmp_path}"]), callbacks=[SignalAt(3)])
    decide = Compilation._compile

    def slowly(*arguments):
        time.sleep(3)
        return decide(*arguments)

    monkeypatch.setattr(Compilation, "_compile", slowly)
    result = resume(only_run(tmp_path))
    assert RunRecord(result.run_dir).facts["speed"]["data_share"] < 0.5


@pytest.mark.whole
def test_a_run_out_of_time_stops_and_resumes_bit_equal(whole, tmp_path):
    overrides = [*OVERRIDES, "trainer.max_time=1h", f"paths.output_dir={tmp_path}"]
    with pytest.raises(OutOfTime, match=r"trainer\.max_time is over; resume with: resume\("):
        fit(compose(overrides), time_from=time.time() - 3600)
    record = RunRecord(only_run(tmp_path))
    assert (record.facts["status"], record.facts["reason"]) == ("interrupted", "trainer.max_time is over")
    assert torch.load(record.last, weights_only=True)["global_step"] == 1, "each session gets a step further"

    with pytest.raises(OutOfTime):
        resume(record.path, time_from=time.time() - 3600)
    assert torch.load(record.last, weights_only=True)["global_step"] == 2

    resume(record.path, compose(["trainer.max_time=2h", f"resume={record.path}"]))

    assert_same(record, whole)
    assert record.facts["reason"] is None
    assert record.config["trainer"]["max_time"] == "2h"
    assert [one["step"] for one in record.facts["start_ups"]] == [0, 1, 2]


@pytest.mark.whole
def test_a_run_without_time_for_its_test_is_tested_on_resume(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(TimeLimit, "over", lambda self, *, trained=False: trained)
        with pytest.raises(OutOfTime):
            fit(compose([*OVERRIDES, "trainer.max_time=1h", f"paths.output_dir={tmp_path}"]))
    record = RunRecord(only_run(tmp_path))
    assert torch.load(record.last, weights_only=True)["global_step"] == 44
    assert record.metrics == {}
    speed = record.facts["speed"]
    assert speed["images_per_second"] > 0

    resume(record.path)

    assert_same(record, whole)
    assert record.facts["speed"] == speed, "that of the session that trained"


@pytest.mark.whole
def test_streamed_images_resume_inside_an_epoch_also_from_memory(tmp_path):
    write_image_folder(tmp_path / "pictures", "train", "test", size=(12, 9))
    data = ["data=imagefolder", f"data.root={tmp_path / 'pictures'}", "data.image_size=8", "patch=2"]
    data += ["data.train_size=10", "augment.crop=0", "augment.resized_crop=[0.3,1.0]"]
    overrides = [*OVERRIDES, *data, "data.batch_size=8", f"paths.data_dir={tmp_path}"]  # 4 epochs of 4 steps
    whole = RunRecord(fit(compose([*overrides, f"paths.output_dir={tmp_path / 'whole'}"])).run_dir)
    for name, changes in (("disk", []), ("memory", ["data.storage=memory"])):
        streamed = [*overrides, "data.storage=disk", "data.workers=2", f"paths.output_dir={tmp_path / name}"]
        with pytest.raises(Interrupted):
            fit(compose(streamed), callbacks=[SignalAt(6)])
        assert multiprocessing.active_children() == []
        record = RunRecord(only_run(tmp_path / name))
        assert torch.load(record.last, weights_only=True)["global_step"] == 6

        resume(record.path, compose([*changes, f"resume={record.path}"]))

        assert_same(record, whole)
        assert record.facts["storage"]["place"] == name


@pytest.mark.whole
def test_a_killed_run_resumes_from_its_last_epoch(whole, tmp_path):
    running = start_script("train.py", *OVERRIDES, f"paths.output_dir={tmp_path}", cwd=ROOT)
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob("**/best.ckpt")) and time.monotonic() < deadline:
        time.sleep(0.01)
    running.kill()
    running.wait()
    record = RunRecord(only_run(tmp_path))
    if torch.load(record.last, weights_only=True)["epoch"] == 0:
        record.best.unlink()  # as if it had been killed between writing last.ckpt and linking best.ckpt
    assert record.facts["status"] == "running", "it could not say that it was killed"
    assert record.status == "interrupted", "but it is found out"
    assert record.metrics == {}

    resume(record.path)

    assert_same(record, whole)


@pytest.mark.slow
def test_a_run_killed_a_hundred_times_equals_a_run_that_was_never_killed(tmp_path):
    overrides = [*OVERRIDES, "trainer.max_epochs=400"]
    expected = RunRecord(fit(compose([*overrides, f"paths.output_dir={tmp_path / 'whole'}"])).run_dir)
    arguments, moments = [*overrides, f"paths.output_dir={tmp_path / 'killed'}"], random.Random(0)
    for _ in range(100):
        epochs = _epochs(tmp_path / "killed")
        running = start_script("train.py", *arguments, cwd=ROOT)
        while _epochs(tmp_path / "killed") <= epochs:
            assert running.poll() is None
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.2))
        assert running.poll() is None, "it has ended before it could be killed"
        running.kill()
        running.wait()
        record = RunRecord(only_run(tmp_path / "killed"))
        arguments = [f"resume={record.path}"]

    resume(record.path)

    assert_same(record, expected)
    assert len(record.facts["resumed"]) == 100


def _epochs(folder):
    """Number of validated epochs in a run's metrics."""
    histories = (RunRecord(path.parent).history() for path in folder.glob("**/metrics.csv"))
    return sum("val/acc" in row for history in histories for row in history)


@pytest.mark.whole
def test_a_run_killed_before_its_first_checkpoint_restarts_in_its_folder(whole, tmp_path):
    with pytest.raises(Interrupted):
        fit(compose([*OVERRIDES, f"paths.output_dir={tmp_path}"]), callbacks=[SignalAt(3)])
    record = RunRecord(only_run(tmp_path))
    record.last.unlink()
    resume(record.path)
    assert_same(record, whole)


@pytest.mark.whole
def test_more_epochs_train_a_finished_run_longer(whole, tmp_path, capsys, monkeypatch):
    record = RunRecord(tmp_path / "copy")
    shutil.copytree(whole.path, record.path)
    overrides = ["trainer.max_epochs=5", f"resume={record.path}"]
    rates, log = [], TrainingLog.on_train_batch_end

    def watched(self, trainer, module, *given):
        rates.append(module.lr)
        log(self, trainer, module, *given)

    monkeypatch.setattr(TrainingLog, "on_train_batch_end", watched)

    resume(record.path, compose(overrides))

    note = "trainer.max_epochs=5, not 4: schedule=cosine is now that of 5 epochs: the learning rate goes from "
    assert f"vitrine: {note}4.82e-06 at step 44 to 0.000373 at the next\n" in capsys.readouterr().err
    assert record.history()[-1]["epoch"] == 5
    assert record.config["trainer"]["max_epochs"] == 5
    assert rows(record)[: len(rows(whole))] == rows(whole)
    assert rates[0] == pytest.approx(0.000373, rel=2e-3), "the rate that was announced"
    assert all(rate > later for rate, later in pairwise(rates))


@pytest.mark.parametrize(
    ("overrides", "done", "rates"),
    [
        (["schedule=constant"], 40, None),
        (["schedule=constant_with_warmup"], 40, "learning rate goes from 0.1 at step 40 to 0.082 at the next"),
        (["schedule=constant", "finetune.warmup=0.05"], 40, None),  # 25 steps are behind it
        (["schedule=constant", "finetune.warmup=0.2"], 40, "learning rate goes from 0.1 at step 40 to 0.041 at the"),
        (
            ["schedule=linear", "schedule.warmup=0", "finetune.head_lr=0.5"],
            40,
            "the head's learning rate goes from 0.0",
        ),
        (["schedule=linear", "schedule.warmup=0"], 35, "learning rate goes from 0.015 at step 35 to 0.093 at the next"),
        (["trainer.max_epochs=4", "schedule=linear"], 40, None),  # a run of 50 epochs, which now ends
        (["trainer.max_epochs=4", "schedule=linear"], 45, None),  # in its fifth
    ],
)
def test_what_more_epochs_do_to_the_learning_rate_is_reported(overrides, done, rates, tmp_path):
    """Of four epochs of 10 steps all or some are done, of now fifty."""
    config = compose(["model=vit_nano", "optimizer.lr=0.1", "trainer.max_epochs=50", *overrides])
    planned = 50 if config.trainer.max_epochs == 4 else 4
    record = RunRecord.create(tmp_path, "stretched")
    (record.path / "run.json").write_text(json.dumps({"status": "interrupted", "steps_per_epoch": 10}))
    epochs, inside = divmod(done, 10)
    progress = {"started": epochs + (inside > 0), "processed": epochs}
    batches = {"processed": inside or 10}
    loops = {"fit_loop": {"epoch_progress": {"current": progress}, "epoch_loop.batch_progress": {"current": batches}}}
    note = _stretched_schedule(config, record, {"global_step": done, "loops": loops}, planned, steps=10)
    assert bool(note) == bool(rates)
    assert f"schedule={config.schedule.name} is now that of 50 epochs: " in note or not rates
    assert (rates or "") in note


def test_the_name_of_a_finished_run_does_nothing_to_the_terminal(whole, tmp_path, capsys):
    resume(Path(shutil.copytree(whole.path, tmp_path / "a\x1b[31m")))
    printed = capsys.readouterr().out
    assert r"a\x1b[31m is finished" in printed
    assert "\x1b[31m is finished" not in printed


def test_resuming_a_finished_run_changes_nothing(whole, capsys):
    before = {path: path.stat().st_mtime_ns for path in whole.path.rglob("*")}
    assert resume(whole.path).metrics == whole.metrics
    assert "is finished; trainer.max_epochs=N with N > 4" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in whole.path.rglob("*")} == before


def test_overrides_that_would_make_another_run_are_refused(whole):
    overrides = ["model.depth=3", "optimizer.lr=1", "trainer.max_epochs=2", f"resume={whole.path}"]
    with pytest.raises(ConfigError) as error:
        compose(overrides)
    assert [fault.key for fault in error.value.faults] == ["model.depth", "optimizer.lr"]
    with pytest.raises(ConfigError) as error:
        resume(whole.path, compose([*OVERRIDES, "model.depth=3"]))
    assert [fault.key for fault in error.value.faults] == ["model.depth"]
    with pytest.raises(ConfigError, match="must be >= 4, the number of epochs done"):
        resume(whole.path, compose(overrides[2:]))
    with pytest.raises(ConfigError, match=r"use callbacks\.monitor"):
        resume(whole.path, callbacks=[ModelCheckpoint()])


def test_a_running_run_is_not_resumed(whole, tmp_path):
    record = RunRecord(tmp_path / "copy")
    shutil.copytree(whole.path, record.path)
    record.start()
    with pytest.raises(RunError, match=f"still running, as process {os.getpid()}"):
        resume(record.path)


def test_an_edited_configuration_is_refused(whole, tmp_path):
    record = RunRecord(tmp_path / "copy")
    shutil.copytree(whole.path, record.path)
    record.end("interrupted")
    config = record.config
    config["model"]["depth"], config["seed"], config["tags"] = 3, 8, ["edited"]
    record.write_config(config)
    named = "was trained with: model.depth=3, not 2; seed=8, not 0; set it back, and resume"
    with pytest.raises(RunError, match=f"{named}$"):
        resume(record.path)


def test_a_checkpoint_of_another_version_is_named(tmp_path):
    config, record = compose([]), RunRecord(tmp_path)
    trained = to_plain(config)
    trained["trainer"]["old_key"] = 1
    with pytest.raises(RunError, match=rf"^{record.last} is of another version of vitrine: trainer\.old_key: Key "):
        _check_checkpoint(config, record, {"config": trained})


@pytest.mark.parametrize(
    ("cut", "lost"),
    [("trainer:", "trainer, callbacks, logger and 7 more"), ("seed:", "seed, name, tags and 2 more")],
)
def test_a_configuration_that_was_cut_short_is_refused(whole, tmp_path, cut, lost):
    record = RunRecord(tmp_path / "copy")
    shutil.copytree(whole.path, record.path)
    file = record.path / "config.yaml"
    file.write_text(file.read_text().partition(f"\n{cut}")[0])
    problem = rf"{file} was cut short: it lacks {lost}; put a whole copy in its place"
    with pytest.raises(RunError, match=problem):
        resume(record.path)
    for key in ("resume", "like"):
        with pytest.raises(ConfigError, match=problem):
            compose([f"{key}={record.path}"])


def test_changed_data_is_refused(whole, tmp_path):
    record = RunRecord(tmp_path / "copy")
    shutil.copytree(whole.path, record.path)
    facts = json.loads((record.path / "run.json").read_text())
    record.update(status="interrupted", validation="0" * len(facts["validation"]))
    with pytest.raises(RunError, match=r"the validation split is .*, not 0000"):
        resume(record.path)
