"""What the best configuration of a sweep is said to be worth."""

import itertools
import json

import numpy as np
import pytest

from vitrine.compare.selection import corrected_over_seeds
from vitrine.files import write_text
from vitrine.runs import RunRecord
from vitrine.sweeps.selected import print_selection
from vitrine.sweeps.summary import SweepSummary, print_trials
from vitrine.sweeps.sweep import FORMAT, best_configuration
from vitrine.sweeps.trial import TrialResult

METRIC = "val/acc"


def shown(varies, values, capsys, overlap=0.0):
    """Return the corrected value that is printed for the best configuration."""
    results = [TrialResult("finished", {METRIC: value}) for value in values]
    best = best_configuration(varies, results, METRIC)
    print_selection(best, [], varies, results, METRIC, overlap)
    return float(capsys.readouterr().out.partition("the best of 4, is ")[2].partition(" corrected")[0])


def test_folds_share_training_images_and_seeds_of_a_fold_are_no_repetitions(capsys):
    rng = np.random.default_rng(0)
    rows, folds, seeds = 4, 5, 3
    values = 0.9 + 0.01 * rng.normal(size=(rows, folds, 1)) + 0.001 * rng.normal(size=(rows, folds, seeds))
    places = list(itertools.product(range(rows), range(folds), range(seeds)))
    varies = [{"depth": str(row), "data.fold": str(fold), "seed": str(seed)} for row, fold, seed in places]
    found = shown(varies, [float(values[place]) for place in places], capsys, overlap=1 / 4)
    by_fold = values.mean(axis=2)
    expected = corrected_over_seeds([dict(enumerate(row)) for row in by_fold], overlap=1 / 4, lower_is_better=False)
    assert found == pytest.approx(expected, abs=1e-4)
    as_seeds = corrected_over_seeds([dict(enumerate(row.ravel())) for row in values], lower_is_better=False)
    assert abs(expected - as_seeds) > 5e-4


def test_the_overlap_of_folds_is_of_their_number_in_the_configuration(tmp_path, capsys):
    """Four folds of ten, where a file sets the number."""
    values = 0.5 + 0.01 * np.random.default_rng(0).normal(size=(4, 4))
    trials = []
    for row, fold in itertools.product(range(4), range(4)):
        record = RunRecord.at(tmp_path / f"trial-{row}-{fold}")
        record.start()
        record.write_config({"data": {"folds": 10, "fold": fold}})
        record.write_metrics({METRIC: values[row, fold]})
        record.end("finished")
        trials.append({"folder": record.path.name, "varies": {"depth": str(row), "data.fold": str(fold)}})
    described = {"own_name": "", "metric": METRIC, "common": [], "keys": ["depth", "data.fold"], "planned": 0}
    write_text(tmp_path / "sweep.json", json.dumps({"format": FORMAT, **described, "trials": trials}))
    by_fold, best = [dict(enumerate(row)) for row in values], int(values.mean(axis=1).argmax())
    expected = f"{corrected_over_seeds(by_fold, 1 / 9, lower_is_better=False):.4f} corrected"
    assert f"{corrected_over_seeds(by_fold, 1 / 3, lower_is_better=False):.4f} corrected" != expected
    print_trials(SweepSummary.read(tmp_path))
    assert expected in capsys.readouterr().out
    (tmp_path / f"trial-{best}-0/config.yaml").unlink()
    print_trials(SweepSummary.read(tmp_path))
    printed = capsys.readouterr()
    assert ("best on validation" in printed.out, "corrected" in printed.out) == (True, False)
    assert "config.yaml" in printed.err


def test_seeds_are_repetitions(capsys):
    values = 0.9 + 0.01 * np.random.default_rng(0).normal(size=(4, 3))
    varies = [{"depth": str(row), "seed": str(seed)} for row, seed in itertools.product(range(4), range(3))]
    expected = corrected_over_seeds([dict(enumerate(row)) for row in values], lower_is_better=False)
    assert shown(varies, [float(value) for value in values.ravel()], capsys) == pytest.approx(expected, abs=1e-4)


def test_luck_that_does_not_show_is_not_taken_off(capsys):
    values = np.add.outer([0.95, 0.9, 0.8], [0.0, 0.001, -0.001])
    values[1:] += [0.0, 0.001, -0.001]
    varies = [{"depth": str(row), "seed": str(seed)} for row, seed in itertools.product(range(3), range(3))]
    results = [TrialResult("finished", {METRIC: float(value)}) for value in values.ravel()]
    print_selection(best_configuration(varies, results, METRIC), [], varies, results, METRIC)
    first = "its val/acc, the best of 3, hardly changes when corrected for that choice; on fresh seeds:"
    assert capsys.readouterr().out.splitlines()[0] == first


@pytest.mark.parametrize("repeated", ["seed", "data.fold"])
def test_the_best_is_said_to_be_a_mean_of_runs_whatever_was_repeated(tmp_path, capsys, repeated):
    trials = [
        {"folder": f"trial-{depth}-{number}", "varies": {"depth": str(depth), repeated: str(number)}}
        for depth in range(2)
        for number in range(3 - depth)
    ]
    described = {"own_name": "", "metric": METRIC, "common": [], "keys": ["depth", repeated], "planned": 0}
    write_text(tmp_path / "sweep.json", json.dumps({"format": FORMAT, **described, "trials": trials}))
    for trial in trials:
        record = RunRecord.at(tmp_path / trial["folder"])
        record.start()
        record.write_metrics({METRIC: 0.5})
        record.end("finished")
    print_trials(SweepSummary.read(tmp_path))
    assert "mean of 3 runs; 1 configuration with fewer runs left out)" in capsys.readouterr().out
