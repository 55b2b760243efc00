"""A sweep and a search written by an earlier version: the same commands find their trials and train none again."""

import json
import shutil
from pathlib import Path

import pytest
from helpers.running import ROOT

from vitrine.command.compose import points
from vitrine.runs import RunRecord
from vitrine.sweeps.run import run

SMALL = ["model=vit_nano", "model.dim=8", "model.heads=2", "model.depth=1", "data=digits", "trainer.compile=nothing"]
SMALL += ["trainer.accelerator=cpu", "augment=none"]
SWEEP = [*SMALL, "trainer.max_epochs=2", "position=learned,sincos2d", "seed=0,1"]
SEARCH = [*SMALL, "trainer.max_epochs=1", "sweep.sampler=tpe", "sweep.n_trials=3"]
SEARCH += ["optimizer.lr=tag(log,interval(1e-4,1e-2))", "position=learned,rope"]


@pytest.fixture
def old(tmp_path, monkeypatch):
    """Folder of the old sweeps, where the commands are given."""
    shutil.copytree(ROOT / "tests" / "old_runs" / "sweeps", tmp_path / "outputs" / "sweeps")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "outputs" / "sweeps"


def rerun(*overrides: str) -> int:
    """Give the command; return how many trials failed."""
    return run(points("train", list(overrides), multirun=True), "basic")


def trained(folder: Path) -> dict[str, int]:
    """When the run.json of each trial was last written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("*/*/run.json")}


def test_a_finished_sweep_is_not_trained_again(old, capsys):
    before = trained(old)
    assert rerun(*SWEEP) == 0
    assert trained(old) == before
    shown = capsys.readouterr().out
    assert "4 trials, 4 already finished" in shown
    _, _, after = shown.partition("its val/acc, the best of 2, may be too good by chance; on fresh seeds:\n")
    measure = after.splitlines()[0]
    assert " -m " in measure
    assert measure.endswith(" seed=2,3,4")
    assert measure.count("seed=") == 1


def test_a_finished_search_is_not_trained_again(old):
    before = trained(old)
    assert rerun(*SEARCH) == 0
    assert trained(old) == before


@pytest.mark.whole
def test_more_seeds_are_trained_beside_the_old_ones_and_reported_as_of_another_version(old, capsys):
    before = trained(old)
    assert rerun(*SWEEP, "seed=1,2") == 0
    after = trained(old)
    assert {name: after[name] for name in before} == before
    new = sorted(after.keys() - before.keys())
    assert [name.rpartition("_")[0] for name in new] == ["position-learned_seed-2", "position-sincos2d_seed-2"]
    (sweep,) = old.glob("*position-seed*")
    assert all(RunRecord(sweep / name).facts["fingerprint"].startswith(name[-8:]) for name in new)
    assert len(json.loads((sweep / "sweep.json").read_text())["trials"]) == 6
    assert "trials of different versions of vitrine (fingerprint versions 1 and 3)" in capsys.readouterr().err


@pytest.mark.whole
def test_an_interrupted_old_trial_is_resumed_in_its_folder(old):
    (folder,) = old.glob("*/position=sincos2d,seed=1_*")
    (folder / "metrics.json").unlink()
    RunRecord(folder).end("interrupted")
    before = trained(old)
    assert rerun(*SWEEP) == 1, "its data cannot be checked"
    assert rerun(*SWEEP, "accept_changed_data=true") == 0
    after = trained(old)
    assert [name for name in after if after[name] != before.get(name)] == [folder.name]
    assert RunRecord(folder).facts["data_fingerprint"], "it can be from now on"
    assert len(RunRecord(folder).facts["resumed"]) == 1
    assert RunRecord(folder).status == "finished"


def test_a_search_finds_a_combination_that_was_trained_before(old):
    """A new study in the folder of the old trials, as where its journal was lost."""
    (folder,) = old.glob("*lr-position*")
    (old_trial,) = folder.glob("optimizer.lr=0.00174754,*")
    (folder / "study.journal").unlink()
    (folder / "sweep.json").unlink()
    before = trained(old)
    values = ["optimizer.lr=0.00174754", "position=rope,rope"]
    grid = [*SMALL, "trainer.max_epochs=1", "sweep.sampler=grid", f"sweep.name={folder.name}", *values]
    assert rerun(*grid) == 0
    assert trained(old) == before
    (trial,) = json.loads((folder / "sweep.json").read_text())["trials"]
    assert trial["folder"] == old_trial.name
