"""The W&B tracker and its replay, with a client that takes whatever it is given."""

import time
from unittest.mock import Mock

import pytest

from vitrine import compose
from vitrine.runs import RunRecord
from vitrine.tracking import wandb as tracking
from vitrine.tracking.wandb import WandbTracker, push


@pytest.fixture
def client(monkeypatch) -> Mock:
    """What stands for the client's run."""
    run = Mock()
    run.settings.sync_dir = "run-1"
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
    push(record, config_of("logger=wandb"))
    client.finish.assert_called_once_with(exit_code=255)
    assert client.summary.update.call_args.args[0]["status"] == "interrupted"
    assert record.facts["wandb_pushed"] is not None


def test_a_replay_waits_for_longer_than_a_run_does(tmp_path, client, monkeypatch):
    monkeypatch.setattr(tracking, "INTERRUPTED_SECONDS", 0.01)
    monkeypatch.setattr(WandbTracker, "_start", lambda self: time.sleep(0.5) or client)
    record = new_record(tmp_path)
    push(record, config_of("logger=wandb", "logger.wandb.timeout=0.01"))
    assert record.facts["wandb_pushed"] is not None
