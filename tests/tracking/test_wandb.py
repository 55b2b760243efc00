"""The W&B tracker and its replay, with a client that takes whatever it is given."""

import json
import threading
import time
from unittest.mock import Mock, call

import numpy as np
import pytest
import wandb
from PIL import Image
from scipy.special import softmax

from vitrine import compose
from vitrine.cli.wandb_sync import replay, sync
from vitrine.config.loggers import WandbConfig
from vitrine.config.serialize import to_plain
from vitrine.errors import RunError
from vitrine.runs import RunRecord
from vitrine.tracking import wandb as tracking
from vitrine.tracking.loggers import start_trackers
from vitrine.tracking.wandb import WandbTracker, push
from vitrine.tracking.wandb_values import completed, config_values, run_title

PLACE = (None, "vitrine")


@pytest.fixture
def client(monkeypatch) -> Mock:
    """What stands for the client's run."""
    run = Mock()
    run.settings.sync_dir, run.starting_step = "run-1", 0
    monkeypatch.setattr(WandbTracker, "_start", lambda self: run)
    return run


def config_of(*overrides):
    return compose(["model=vit_nano", *overrides])


def new_record(folder, **facts) -> RunRecord:
    """A run of one row that W&B may know."""
    record = RunRecord.create(folder, "word")
    record.update(**({"id": record.name, "status": "interrupted", "wandb_id": "abc"} | facts))
    (record.path / "metrics.csv").write_text("epoch,step,seconds,train/loss\n1,10,2.5,0.25\n")
    return record


def test_a_run_of_a_lost_machine_is_replayed_as_interrupted(tmp_path, client):
    """``--force`` pushes runs that are still marked as running on a machine that is gone."""
    record = new_record(tmp_path, status="running", host="a-machine-that-is-gone")
    push(record, config_of("logger=wandb"), PLACE)
    client.finish.assert_called_once_with(exit_code=255)
    assert client.summary.update.call_args.args[0]["status"] == "interrupted"
    assert record.facts["wandb_pushed"] is not None


def test_a_resumed_run_is_running_there_until_it_ends(tmp_path, client):
    """Otherwise one that is killed would keep the status of the session before."""
    push(new_record(tmp_path), config_of("logger=wandb"), PLACE)
    first, last = (update.args[0]["status"] for update in client.summary.update.call_args_list)
    assert (first, last) == ("running", "interrupted")


def test_the_predictions_table_takes_the_memory_of_its_rows(tmp_path, monkeypatch):
    record = new_record(tmp_path, classes=["zero", "one"])
    np.savez(record.path / "predictions.npz", logits=np.eye(2)[[0, 1, 1]], labels=np.array([0, 1, 0]))
    monkeypatch.setattr(tracking, "MAX_TABLE_ROWS", 2)
    monkeypatch.setattr("scipy.special.softmax", spy := Mock(wraps=softmax))
    assert len(tracking.prediction_tables(record)["predictions"].data) == len(spy.call_args.args[0]) == 2


def test_a_run_that_was_resumed_without_wandb_is_to_be_pushed_again(tmp_path, client, capsys):
    record = new_record(tmp_path, wandb_open=False, wandb_kept=[], wandb_pushed="2026-01-31T12:00:00+00:00")
    record.write_config(to_plain(config_of()))
    assert start_trackers(config_of(), record, 10, None, "") == []
    assert sync([record.path], dry_run=True) == 0
    assert "1 to push, 0 pushed before" in capsys.readouterr().out
    config = config_of("logger=wandb")
    WandbTracker(config.logger.wandb, config, record, None, "").finish("finished", {}, {})
    assert record.facts["wandb_pushed"] is None, "it lacks the session before"
    client.starting_step = 10
    push(record, config, PLACE)
    assert record.facts["wandb_pushed"] is not None


def test_a_replay_sends_no_file_that_a_link_in_the_run_folder_leads_to(tmp_path, client):
    """The folder may be another person's, and name a project of theirs."""
    record = new_record(tmp_path / "runs", status="finished", classes=["zero", "one"])
    record.write_metrics({"test/acc": 0.5})
    passport, answers = tmp_path / "passport.png", tmp_path / "answers.npz"
    Image.new("L", (3, 3)).save(passport)
    np.savez(answers, logits=np.eye(2), labels=np.arange(2))
    (record.path / "curves.png").symlink_to(passport)
    for name in ("lr_range", "confusion", "own"):
        (record.path / f"{name}.png").write_bytes(passport.read_bytes())
    (record.path / "predictions.npz").symlink_to(answers)
    push(record, config_of("logger=wandb"), PLACE)
    sent = [set(call.args[0]) for call in client.log.call_args_list]
    assert sent[1:-1] == [{"lr_range"}, {"confusion"}]


def test_a_replay_reads_no_picture_but_png(tmp_path, client):
    """Pillow would hand PostScript to Ghostscript."""
    record = new_record(tmp_path, status="finished")
    record.write_metrics({"val/acc": 0.5})
    Image.new("L", (3, 3)).save(record.path / "curves.png", format="EPS")
    with pytest.raises(RunError, match=r"pictures, tables or checkpoints were not sent: cannot identify image file"):
        push(record, config_of("logger=wandb"), PLACE)


def test_a_replay_waits_for_longer_than_a_run_does(tmp_path, client, monkeypatch):
    monkeypatch.setattr(tracking, "INTERRUPTED_SECONDS", 0.01)
    monkeypatch.setattr(WandbTracker, "_start", lambda self: time.sleep(0.5) or client)
    record = new_record(tmp_path)
    push(record, config_of("logger=wandb", "logger.wandb.timeout=0.01"), PLACE)
    assert record.facts["wandb_pushed"] is not None


@pytest.mark.parametrize("source", ["a-secret-place/weights.pt", "a-secret-place/runs/run-1", "/a-secret-place/run-1/"])
def test_a_private_run_sends_no_path_of_its_initial_weights_or_teacher(source):
    config = config_of("logger=wandb", "logger.wandb.private=true")
    config.model.pretrained = config.distill.teacher = source
    name, sent = "weights.pt" if source.endswith(".pt") else "run-1", config_values(config, config.logger.wandb)
    assert (sent["model"]["pretrained"], sent["distill"]["teacher"]) == (name, name)


@pytest.mark.parametrize("private", [True, False])
def test_a_private_run_sends_no_path_in_the_options_of_a_part(private):
    config = config_of("logger=wandb", f"logger.wandb.private={private}")
    path = "/a-secret-place/masks.npz"
    config.callbacks.parts_options = {"Watch": {"file": path, "more": [{"deep": [path, 1]}], "word": "mean"}}
    config.logger.parts_options = {"Log": {"folder": "C:\\a-secret-place\\logs\\"}}
    config.data.options = config.model.position_options = {"file": path}
    sent = config_values(config, config.logger.wandb)
    assert ("a-secret-place" in json.dumps(sent)) is not private
    if private:
        known = {"file": "masks.npz", "more": [{"deep": ["masks.npz", 1]}], "word": "mean"}
        assert sent["callbacks"]["parts_options"]["Watch"] == known
        assert sent["logger"]["parts_options"] == {"Log": {"folder": "logs"}}


@pytest.mark.parametrize("private", [True, False])
def test_a_private_run_sends_no_speed(tmp_path, client, private):
    config = config_of("logger=wandb", f"logger.wandb.private={private}")
    tracker = WandbTracker(config.logger.wandb, config, new_record(tmp_path), None, "")
    speed = dict.fromkeys(("images_per_second", "data_share", "mfu_measured", "mfu_datasheet"), 0.5)
    tracker.log({"epoch": 1, "val/acc": 0.75, **speed}, 10)
    tracker.finish("finished", {}, {})
    sent = {"epoch": 1, "val/acc": 0.75, "step": 10} | ({} if private else speed)
    assert client.log.call_args_list == [call(sent, step=10), call({}, step=10, commit=True)]


@pytest.mark.parametrize("private", [True, False])
def test_a_private_run_sends_no_picture_of_its_images(tmp_path, client, private):
    config = config_of("logger=wandb", f"logger.wandb.private={private}")
    plots = {name: tmp_path / f"{name}.png" for name in ("curves", "confusion", "attention")}
    for path in plots.values():
        Image.new("L", (1, 1)).save(path)
    WandbTracker(config.logger.wandb, config, new_record(tmp_path), None, "").finish(
        "finished", {"val/acc": 0.5}, plots
    )
    sent = {name for call in client.log.call_args_list for name in call.args[0]}
    assert sent == {"curves", "confusion"} | (set() if private else {"attention"})


@pytest.mark.parametrize("private", [False, True])
def test_a_private_run_of_before_such_were_refused_sends_no_checkpoint(tmp_path, client, private):
    config, record = config_of("logger=wandb", "logger.wandb.checkpoints=best"), new_record(tmp_path)
    config.logger.wandb.private = private
    record.best.touch()
    WandbTracker(config.logger.wandb, config, record, None, "").finish("finished", {}, {})
    assert client.log_artifact.called != private


def test_a_picture_that_cannot_be_sent_keeps_back_no_metric(tmp_path, client):
    (tmp_path / "curves.png").touch()
    record, config = new_record(tmp_path), config_of("logger=wandb")
    tracker = WandbTracker(config.logger.wandb, config, record, None, "")
    with pytest.raises(RunError, match="pictures, tables or checkpoints were not sent: cannot identify"):
        tracker.finish("finished", {"val/acc": 0.5}, {"curves": tmp_path / "curves.png"})
    assert client.summary.update.call_args.args[0]["val/acc"] == 0.5
    client.finish.assert_called_once_with(exit_code=0)
    assert (record.facts["wandb_open"], record.facts["wandb_pushed"]) == (True, None)


@pytest.mark.parametrize("private", [True, False])
def test_a_replay_without_the_wandb_settings_is_as_private_as_the_run_was(tmp_path, client, private):
    """A resume with ``logger=csv`` removes the settings from the configuration of the run."""
    record = new_record(tmp_path, code={"commit": "abc"})
    config = config_of("logger=wandb", f"logger.wandb.private={private}")
    WandbTracker(config.logger.wandb, config, record, None, "").finish("interrupted", {}, {})
    client.reset_mock()
    push(record, config_of("logger=csv"), PLACE)
    assert ("commit" in client.summary.update.call_args.args[0]) is not private


def test_wandbs_variables_label_a_run_and_its_replay(tmp_path, client, monkeypatch):
    variables = {"NAME": "mine", "RUN_GROUP": "pilot", "TAGS": "a,b", "NOTES": "first try"}
    for name, value in variables.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    record, config = new_record(tmp_path), config_of("logger=wandb", "logger.wandb.notes=typed")
    settings = completed(config.logger.wandb, record)
    assert (settings.name, settings.group, settings.tags, settings.notes) == ("mine", "pilot", ["a", "b"], "typed")
    WandbTracker(settings, config, record, None, "").finish("interrupted", {}, {})
    for name in variables:
        monkeypatch.setenv(f"WANDB_{name}", "of another shell")
    assert completed(config.logger.wandb, record) == settings, "when it is resumed"
    push(record, config, PLACE)
    assert record.facts["wandb_labels"] == {
        "name": "mine",
        "group": "pilot",
        "tags": ["a", "b"],
        "notes": "typed",
    }


def test_names_are_as_long_as_wandb_accepts(tmp_path, client):
    record, varies = new_record(tmp_path), ["optimizer.lr=0.00470066," * 6 + end for end in ("seed=0", "seed=1")]
    titles = {run_title(record, WandbConfig(), one) for one in varies}
    assert [len(title) for title in titles] == [128, 128]
    tracker = WandbTracker(WandbConfig(), config_of("logger=wandb"), record, "a" * 129, varies[0])
    assert len(tracker._arguments["group"]) == 128


def test_the_reason_of_a_refused_setting_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(WandbTracker, "_start", lambda self: wandb.Settings(run_tags=["x" * 65]))
    tracker = WandbTracker(WandbConfig(), config_of("logger=wandb"), new_record(tmp_path), None, "")
    with pytest.raises(RunError, match=r"^W&B's client refuses run_tags: .* is 65 characters"):
        tracker.finish("finished", {}, {})


def test_a_replay_of_a_run_that_says_nothing_of_privacy_is_private(tmp_path, client):
    push(new_record(tmp_path, code={"commit": "abc"}), config_of("logger=csv"), PLACE)
    assert client.summary.update.call_args.args[0] == {"status": "interrupted"}


def test_ctrl_c_ends_a_replay_and_leaves_the_run_to_be_pushed(tmp_path, client, monkeypatch):
    hanging = threading.Event()
    monkeypatch.setattr(WandbTracker, "_start", lambda self: hanging.wait(600))
    monkeypatch.setattr(WandbTracker, "_seconds_to_wait", Mock(side_effect=KeyboardInterrupt))
    record = new_record(tmp_path)
    record.write_config(to_plain(config_of("logger=wandb")))
    with pytest.raises(KeyboardInterrupt):
        replay(record)
    hanging.set()
    assert (record.facts["wandb_open"], record.facts["wandb_pushed"]) == (True, None)


def test_a_run_that_is_resumed_meanwhile_is_not_replayed(tmp_path, client):
    record = new_record(tmp_path)
    record.write_config(to_plain(config_of("logger=wandb")))
    with record.owned():
        before = (record.path / "run.json").read_text()
        assert replay(record).startswith(f"skipped: {record.path} is still running")
        assert (record.path / "run.json").read_text() == before
    assert not client.log.called
    assert replay(record) == ""
    assert client.log.called


def test_a_sweep_of_vitrine_inside_one_of_wandb_is_refused(tmp_path, monkeypatch, client):
    """All its trials would be one W&B run, that of the agent."""
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep1")
    monkeypatch.setenv("WANDB_RUN_ID", "run1")
    config, record = config_of("logger=wandb"), new_record(tmp_path, wandb_id=None)
    with pytest.raises(RunError, match="`wandb agent` has one W&B run for each command"):
        WandbTracker(config.logger.wandb, config, record, "a-sweep", "seed=0")
    assert record.facts["wandb_id"] is None
