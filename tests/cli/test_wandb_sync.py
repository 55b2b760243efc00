"""The command that pushes runs to Weights & Biases later."""

from unittest.mock import Mock

import pytest

from vitrine import compose
from vitrine.cli.wandb_sync import replay, sync
from vitrine.config.serialize import to_plain
from vitrine.runs import RunRecord


@pytest.mark.parametrize("key", ["entity", "project"])
def test_an_interpolation_in_a_run_folder_is_not_resolved(tmp_path, monkeypatch, key):
    """A run from someone else would otherwise send values of this machine's environment."""
    monkeypatch.setenv("SECRET", "swordfish")
    monkeypatch.setattr("vitrine.tracking.wandb.push", lambda *_: pytest.fail("pushed"))
    values = to_plain(compose(["model=vit_nano", "logger=wandb"]))
    values["logger"]["wandb"][key] = "${oc.env:SECRET}"
    record = RunRecord(tmp_path)
    record.write_config(values)
    problem = replay(record)
    assert f"logger.wandb.{key}" in problem
    assert "interpolation" in problem
    assert "swordfish" not in problem


@pytest.mark.parametrize(("named", "place"), [([None, "mine"], "mine"), (["me", "mine"], "me/mine"), (None, "vitrine")])
def test_a_run_goes_where_the_list_says_whatever_its_configuration_says(tmp_path, capsys, monkeypatch, named, place):
    record = RunRecord(tmp_path)
    record.update(status="finished", wandb_id="a", wandb_project=named, wandb_kept=["offline-run-1"])
    overrides = ["logger.wandb.entity=they", "logger.wandb.project=theirs"]
    record.write_config(to_plain(compose(["model=vit_nano", "logger=wandb", *overrides])))
    record.write_metrics({"val/acc": 0.5})
    assert sync([tmp_path], dry_run=True) == 0
    assert f"{tmp_path}  to {place}\n" in capsys.readouterr().out
    monkeypatch.setattr("vitrine.tracking.wandb.WandbTracker", tracker := Mock())
    assert replay(record) == ""
    settings = tracker.call_args.args[0]
    assert (settings.entity, settings.project) == tuple(named or [None, "vitrine"])
