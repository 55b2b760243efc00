"""Runs, a sweep and a search written by an earlier version are still listed, evaluated and compared."""

import json
import re
import shutil

import pytest
from helpers.running import ROOT, run_script

from vitrine import compose
from vitrine.config import EvalConfig
from vitrine.errors import RunError
from vitrine.runs import RunRecord
from vitrine.training.evaluate import evaluate_run
from vitrine.training.resume import resume

pytestmark = pytest.mark.whole

OLD = ROOT / "tests" / "old_runs"
RUNS = sorted(path.parent.relative_to(OLD) for path in OLD.rglob("run.json"))
STOPPED = next(run for run in RUNS if "stopped" in run.name)
FINISHED = [run for run in RUNS if run != STOPPED]
SINGLE = next(run for run in RUNS if "single" in run.name)
SWEEP, SEARCH = (path.parent.relative_to(OLD) for path in sorted(OLD.glob("sweeps/*/sweep.json"), reverse=True))
TRIAL = SWEEP / "position=learned,seed=0_99568a81"


@pytest.fixture
def outputs(tmp_path):
    """A copy of the folder, to be changed."""
    return shutil.copytree(OLD, tmp_path / "outputs")


@pytest.fixture
def script(outputs):
    """Run a command in the folder above ``outputs``."""

    def run(name, *arguments):
        done = run_script(name, *arguments, cwd=outputs.parent)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def stored(run):
    return json.loads((OLD / run / "metrics.json").read_text())


@pytest.mark.quick
def test_the_folder_is_complete():
    assert len(RUNS) == 9
    assert (SWEEP.name, SEARCH.name) == (
        "vit_nano_digits_position-seed_07a8635d",
        "vit_nano_digits_lr-position_f50ee287",
    )


@pytest.mark.quick
def test_all_runs_are_listed_and_shown(script):
    lines = script("scripts/runs.py", "list", "outputs", "--columns", "path,status").splitlines()
    listed = dict(line.split("\t") for line in lines[1:] if "\t" in line)
    assert listed == {f"outputs/{run}": "interrupted" if run == STOPPED else "finished" for run in RUNS}
    lines = script("scripts/runs.py", "show", f"outputs/{TRIAL}").splitlines()
    shown = dict(line.split("\t") for line in lines if "\t" in line)
    assert (shown["status"], shown["model.position"]) == ("finished", "learned")
    assert shown["test/acc"] == f"{stored(TRIAL)['test/acc']:.4f}"


@pytest.mark.quick
def test_the_sweep_and_the_search_are_listed(script):
    shown = script("scripts/sweeps.py")
    assert re.search(rf"{SWEEP.name} +4 +4 ", shown)
    assert re.search(rf"{SEARCH.name} +3 +3 ", shown)


@pytest.mark.parametrize("run", FINISHED, ids=lambda run: run.name)
def test_a_checkpoint_has_its_stored_test_metrics(run, outputs):
    found = evaluate_run(EvalConfig(run=str(outputs / run)))
    assert found["test/acc"] == stored(run)["test/acc"]
    assert found["test/loss"] == pytest.approx(stored(run)["test/loss"], rel=1e-6)


def test_an_evaluation_says_that_its_run_is_unfinished(outputs, capsys):
    evaluate_run(EvalConfig(run=str(outputs / STOPPED)))
    assert "is interrupted, not finished: its best epoch so far is tested" in capsys.readouterr().err


def test_a_trial_is_evaluated_by_its_unquoted_path(script):
    """Its name has ``=`` and ``,``, as trials' names no longer do."""
    assert f"test accuracy  {stored(TRIAL)['test/acc']:.4f}" in script("eval.py", f"run=outputs/{TRIAL}")


@pytest.mark.parametrize("run", [SINGLE, STOPPED, TRIAL], ids=lambda run: run.name)
def test_a_run_is_inherited_by_like(run, outputs, monkeypatch):
    monkeypatch.chdir(outputs.parent)
    config = compose([f"like=outputs/{run}", "optimizer.lr=0.5"])
    record = RunRecord.open(outputs / run)
    model, lr = record.config["model"], record.config["optimizer"]["lr"]
    assert (config.model.dim, config.model.position) == (model["dim"], model["position"])
    assert config.trainer.max_epochs == record.config["trainer"]["max_epochs"]
    assert (lr, config.optimizer.lr) == (pytest.approx(lr), 0.5)


def test_the_sweep_is_compared(script):
    shown = script("scripts/compare.py", f"outputs/{SWEEP}")
    for position in ("learned", "sincos2d"):
        mean = sum(stored(run)["test/acc"] for run in FINISHED if run.name.startswith(f"position={position},seed")) / 2
        assert re.search(rf"{position} +2 +{100 * mean:.2f}", shown), shown


def test_runs_are_compared_by_their_paths(script):
    runs = [run for run in FINISHED if run.parent == SEARCH]
    shown = script("scripts/compare.py", *(f"outputs/{run}" for run in runs))
    for run in runs:
        assert f"{100 * stored(run)['test/acc']:.2f}" in shown


def test_a_run_whose_data_cannot_be_checked_is_not_resumed(outputs):
    with pytest.raises(RunError, match=r"no fingerprint of its data to check it by; .* accept_changed_data=true$"):
        resume(outputs / STOPPED)
