"""Early stopping in a search: the rules, and the runs that real trainings and real commands leave."""

import json
import time
import warnings
from pathlib import Path

import optuna
import pytest
from helpers.pruning import After
from helpers.running import SMALL, descendants, run_script, start_script, wait_until_gone
from optuna.trial import TrialState

import vitrine
from vitrine.errors import Pruned
from vitrine.runs import RunRecord
from vitrine.sweeps.pruner import Pruner
from vitrine.sweeps.study import make_pruner, open_study
from vitrine.training.fit import fit
from vitrine.training.resume import resume


def study_of(folder, *curves):
    """A study of finished trials with these accuracies after each epoch."""
    study = open_study(folder, ["val/acc"])
    for curve in curves:
        trial = study.ask()
        for epoch, value in enumerate(curve, start=1):
            trial.report(value, epoch)
        study.tell(trial, curve[-1])
    return study


def test_the_median_pruner_needs_five_others_and_a_quarter_of_the_epochs(tmp_path):
    study = study_of(tmp_path, *[[0.2, 0.3 + 0.1 * number, 0.8, 0.9] for number in range(5)])
    bad, good = study.ask(), study.ask()
    rule = Pruner(tmp_path, bad.number, "median", "val/acc", epochs=8)
    assert not rule(1, {"val/acc": 0.0})
    assert rule(2, {"val/acc": 0.4})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rule(2, {"val/acc": 0.9})  # a resumed run repeats an epoch
    assert not Pruner(tmp_path, good.number, "median", "val/acc", epochs=8)(2, {"val/acc": 0.6})
    assert open_study(tmp_path).trials[bad.number].intermediate_values == {1: 0.0, 2: 0.4}


@pytest.mark.parametrize(("long", "stops"), [(4, False), (5, True)])
def test_the_median_pruner_counts_the_runs_that_reached_the_epoch(tmp_path, long, stops):
    study = study_of(tmp_path, *[[0.9] * 6] * long, *[[0.9] * 4] * 5)
    bad = study.ask()
    assert Pruner(tmp_path, bad.number, "median", "val/acc", epochs=20)(6, {"val/acc": 0.4}) == stops


def test_successive_halving_keeps_the_best_quarter(tmp_path):
    study = open_study(tmp_path, ["val/acc"])
    stopped = []
    for value in (0.5, 0.4, 0.6, 0.3, 0.2):
        trial = study.ask()
        stopped.append(
            Pruner(tmp_path, trial.number, "successive_halving", "val/acc", epochs=16)(1, {"val/acc": value})
        )
        study.tell(trial, state=TrialState.PRUNED if stopped[-1] else None, values=None if stopped[-1] else value)
    assert stopped == [False, True, False, True, True]


def first_stop(pruner, epochs, last_good):
    """The epoch that stops a run which is better than six others up to an epoch, and worse after it."""
    study = optuna.create_study(direction="maximize", pruner=pruner)
    for curve in [*[[0.5] * epochs] * 6, [0.9] * last_good + [0.0] * (epochs - last_good)]:
        trial, stop = study.ask(), None
        for epoch, value in enumerate(curve[:-1], start=1):  # the last epoch ends a run anyway
            trial.report(value, epoch)
            if trial.should_prune():
                stop = epoch
                break
        study.tell(trial, curve[-1])
    return stop


@pytest.mark.parametrize(
    ("name", "epochs", "stops"),
    [
        ("successive_halving", 16, [1, 4]),
        ("successive_halving", 20, [2, 8]),
        ("successive_halving", 100, [7, 28]),
        ("median", 7, [2]),
        ("median", 10, [3]),
    ],
)
def test_a_run_is_stopped_at_the_epochs_that_the_docs_name(name, epochs, stops):
    """The first time that it can be, and after having passed that, the next time; the median judges its best epoch."""
    found = [0]
    while (stop := first_stop(make_pruner(name, epochs), epochs, found[-1])) is not None:
        found.append(stop)
    assert found[1:] == stops


def test_a_run_that_is_interrupted_as_it_is_pruned_is_pruned_after_it_was_resumed(tmp_path):
    """Successive halving judges a run at 1/16 of the epochs, and next at 1/4."""
    study = open_study(tmp_path, ["val/acc"])
    good, bad = study.ask(), study.ask()
    asked = [
        Pruner(tmp_path, trial.number, "successive_halving", "val/acc", epochs=16)(epoch, {"val/acc": value})
        for trial, epoch, value in ((good, 1, 0.5), (bad, 1, 0.4), (bad, 2, 0.45), (good, 2, 0.55))
    ]
    assert asked == [False, True, True, False]


def test_a_run_of_a_trial_that_has_ended_is_not_pruned(tmp_path):
    study = study_of(tmp_path, *[[0.9, 0.9]] * 6)
    assert not Pruner(tmp_path, 0, "median", "val/acc", epochs=4)(3, {"val/acc": 0.0})
    assert len(study.trials) == 6


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    """A real training of three epochs that was stopped after the second."""
    config = vitrine.compose(
        [
            *SMALL,
            "trainer.max_epochs=3",
            "debug.limit_batches=2",
            "accelerator=cpu",
            f"paths.output_dir={tmp_path_factory.mktemp('pruned')}",
        ]
    )
    with pytest.raises(Pruned, match=r"after epoch 2 of 3, at val/acc 0\.\d{4}, val/loss"):
        fit(config, pruning_rule=After(2))
    (run,) = (Path(config.paths.output_dir) / "runs").iterdir()
    return RunRecord(run)


def test_a_pruned_run_is_marked_is_not_tested_and_can_be_resumed(pruned):
    assert pruned.status == "pruned"
    assert pruned.facts["error"].startswith("after epoch 2 of 3")
    assert pruned.metrics == {}
    assert [row["epoch"] for row in pruned.history() if "val/acc" in row] == [1, 2]
    assert not (pruned.path / "predictions.npz").exists()
    result = resume(pruned.path)
    assert pruned.status == "finished"
    assert "test/acc" in result.metrics


@pytest.mark.whole
def test_rank_0_decides_for_all_ranks(tmp_path):
    config = vitrine.compose([*SMALL, "debug.limit_batches=2", "accelerator=cpu_ddp", f"paths.output_dir={tmp_path}"])
    with pytest.raises(Pruned, match="after epoch 1 of 2"):
        fit(config, folder=tmp_path / "run", pruning_rule=After(1))
    assert RunRecord(tmp_path / "run").status == "pruned"


def test_the_last_epoch_stops_nothing(tmp_path):
    config = vitrine.compose(
        [*SMALL, "trainer.max_epochs=1", "debug.limit_batches=1", "accelerator=cpu", f"paths.output_dir={tmp_path}"]
    )
    assert "test/acc" in fit(config, pruning_rule=After(1)).metrics


@pytest.mark.whole
def test_a_killed_search_of_real_trainings_is_resumed_and_prunes(tmp_path):
    overrides = [
        *SMALL,
        "data.batch_size=64",
        "accelerator=cpu",
        "optimizer.lr=3e-3,1e-7",
        "sweep.sampler=grid",
        "sweep.metrics=[val/loss]",
        "sweep.pruner=successive_halving",
    ]
    forked = ["hydra/launcher=process", "launcher.workers=1", "launcher.threads=1"]
    first = start_script("train.py", "-m", *overrides, *forked, cwd=tmp_path)
    while not list(tmp_path.glob("outputs/sweeps/*/*/checkpoints/last.ckpt")):
        assert first.poll() is None
        time.sleep(0.05)
    trials = descendants(first.pid)
    first.kill()
    wait_until_gone(trials)
    done = run_script("train.py", "-m", *overrides, *forked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "outputs" / "sweeps").iterdir()
    facts = json.loads((folder / "sweep.json").read_text())["search"]
    assert [(row["varies"]["optimizer.lr"], row["state"]) for row in facts["trials"]] == [
        ("0.003", "finished"),
        ("1e-07", "pruned"),
    ]
    good, bad = (RunRecord(folder / row["folders"][0]) for row in facts["trials"])
    assert (good.status, bad.status) == ("finished", "pruned")
    assert facts["trials"][0]["values"] == {"val/loss": good.metrics["val/loss"]}
    assert [row["epoch"] for row in good.history() if "val/acc" in row] == [1, 2]
    assert [row["epoch"] for row in bad.history() if "val/acc" in row] == [1]
    assert "pruned after epoch 1 of 2" in done.stdout
    assert "python train.py" in done.stdout
    assert "optimizer.lr=0.003" in done.stdout
