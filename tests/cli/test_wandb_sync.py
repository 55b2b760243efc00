"""The command that pushes runs to Weights & Biases later."""

import pytest

from vitrine import compose
from vitrine.cli.wandb_sync import has_complete_sessions, replay, sessions
from vitrine.config.serialize import to_plain
from vitrine.errors import RunError
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


@pytest.mark.parametrize("name", ["..", "../../other/wandb/offline-run-1", "/elsewhere"])
def test_a_session_outside_the_run_folder_is_refused(tmp_path, name):
    record = RunRecord(tmp_path)
    record.update(wandb_kept=["offline-run-1", name])
    with pytest.raises(RunError, match="wandb_kept must name folders in wandb/"):
        sessions(record)


@pytest.mark.parametrize("name", ["", "run-1.wandb", "files", "files/media/picture.png"])
def test_a_session_with_a_link_out_of_the_run_folder_is_not_sent(tmp_path, name):
    record = RunRecord(tmp_path / "run")
    session = record.path / "wandb" / "offline-run-1"
    (session / "files" / "media").mkdir(parents=True)
    (session / "run-1.wandb").write_bytes(b"rows")
    record.update(wandb_kept=["offline-run-1"])
    (session / "logs").symlink_to(tmp_path)  # as those of the client
    assert has_complete_sessions(record)
    link = session / name
    moved = tmp_path / "outside"
    if link.exists():
        link.rename(moved)
    else:
        moved.touch()
    link.symlink_to(moved)
    assert not has_complete_sessions(record)
