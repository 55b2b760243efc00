"""A trial that diverged is an outcome: it is shown with its reason, and tried again only by other code."""

import json
import os
from dataclasses import replace

import pytest
from helpers.searching import run, search

from vitrine.errors import Diverged, RunError
from vitrine.runs import RunRecord, provenance
from vitrine.sweeps.divergence import forget_outdated
from vitrine.sweeps.search_summary import describe_search, print_search, rank_trials
from vitrine.sweeps.trial import read_result, run_trial

ERROR = Diverged("the training loss is NaN", 3, 2.5)


@pytest.fixture
def other_code(monkeypatch):
    """Makes vitrine's code another one from now on."""

    def change():
        monkeypatch.setattr(provenance, "code_state", lambda: ({"commit": "other"}, ""))

    return change


def test_a_diverged_trial_is_trained_again_by_other_code_only(make_trial, small, other_code, capsys):
    optimizer = replace(small.optimizer, name="sgd", lr=100.0, betas=None, momentum=0.9)
    trial = make_trial(optimizer=optimizer, trainer=replace(small.trainer, gradient_clip_val=None))
    result = run_trial(trial)
    assert result.status == "diverged"
    assert result.error.startswith("diverged at step ")
    assert result.error in capsys.readouterr().err
    assert forget_outdated([trial]) == []
    assert run_trial(trial) == result
    other_code()
    assert forget_outdated([trial]) == [trial]
    assert read_result(trial.folder).status == "new"


def test_a_code_diff_that_is_no_file_is_one_line(make_trial, left):
    trial = make_trial()
    record = left(trial, "diverged", error=ERROR.reason)
    os.mkfifo(record.path / "code.diff")
    with pytest.raises(RunError, match=r"cannot read .*code\.diff: it is not a file"):
        forget_outdated([trial])


@pytest.mark.whole
def test_a_search_counts_it_as_bad_and_shows_the_reason(tmp_path, other_code, capsys):
    overrides = ["depth=1,2", "sweep.sampler=grid"]
    one = run(search(tmp_path, *overrides), lambda config: ERROR if config.model.depth == 2 else 0.5)
    assert [trial.state.name for trial in one.trials()] == ["COMPLETE", "PRUNED"]
    assert print_search(one) == 0
    err = capsys.readouterr().err
    line = "vitrine: 1 of 2 trials diverged; only rerun=true or other code tries them again:"
    assert err == f"{line}\n  depth=2: {ERROR.reason}\n"
    assert [trial["state"] for trial in describe_search(one)["search"]["trials"]] == ["finished", "diverged"]

    again = run(search(tmp_path, *overrides), lambda config: 0.6)
    assert [row.state for row in rank_trials(again)] == ["finished", "diverged"]
    other_code()
    again = run(search(tmp_path, *overrides), lambda config: 0.6)
    assert [(row.state, row.values) for row in rank_trials(again)] == [
        ("finished", {"val/acc": 0.6}),
        ("finished", {"val/acc": 0.5}),
    ]


@pytest.mark.whole
def test_a_sweep_with_a_diverged_trial_ends_well_and_does_not_repeat_it(train, tmp_path):
    overrides = ["-m", "model=vit_nano", "depth=1", "trainer.max_epochs=1", "data.batch_size=64", "optimizer=sgd"]
    overrides += ["optimizer.lr=0.01,100", "trainer.gradient_clip_val=null", "sweep.name=two"]
    done = train(*overrides)
    assert done.returncode == 0
    assert "1 of 2 trials diverged" in done.stderr
    assert "optimizer.lr=100: diverged at step " in done.stderr
    kept = json.loads((tmp_path / "outputs/sweeps/two/sweep.json").read_text())
    assert [trial["status"] for trial in kept["trials"]] == ["finished", "diverged"]
    record = RunRecord(tmp_path / "outputs/sweeps/two" / kept["trials"][1]["folder"])
    again = train(*overrides)
    assert again.returncode == 0
    assert "1 already finished" in again.stdout
    assert record.facts["ended"] == RunRecord(record.path).facts["ended"]
