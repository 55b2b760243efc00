"""The value of a selected configuration beyond its luck, in simulated sweeps and worked examples."""

import json
from pathlib import Path

import numpy as np
import pytest

from vitrine.compare.best_run import latest_by_configuration, luck_sentence, validation_warning
from vitrine.compare.comparison import compare
from vitrine.compare.folds import repetition_of
from vitrine.compare.load import load_results
from vitrine.compare.selection import (
    corrected_for_selection,
    corrected_over_seeds,
    corrected_single_run,
    fresh_seeds,
    fresh_seeds_command,
    own_variance,
)
from vitrine.config.schema import MAX_SEED
from vitrine.runs.registry import RunEntry, RunList, best_runs, find_runs


def simulated_bias(truth, generator):
    """Mean error of the best of means (R, K) with standard error 1, and of its corrected value."""
    means = truth + generator.normal(size=truth.shape)
    corrected = [corrected_for_selection(list(some), [1.0] * len(some), lower_is_better=False) for some in means]
    expected = truth[range(len(truth)), means.argmax(1)]
    return (means.max(1) - expected).mean(), (np.array(corrected) - expected).mean()


@pytest.mark.parametrize("rows", [4, 12])
@pytest.mark.parametrize(("spread", "left"), [(0.0, 0.4), (1.0, 0.25), (3.0, 0.1)])
def test_most_of_the_bias_of_the_best_mean_is_gone(rows, spread, left):
    generator = np.random.default_rng(0)
    naive, bias = simulated_bias(spread * generator.normal(size=(500, rows)), generator)
    assert naive > 0.2
    assert -0.1 * naive < bias < left * naive


@pytest.mark.parametrize("rows", [4, 12])
@pytest.mark.parametrize("ahead", [2, 4, 6])
def test_the_only_good_one_of_equal_others_is_hardly_corrected_too_far(rows, ahead):
    truth = np.zeros((500, rows))
    truth[:, 0] = ahead
    naive, bias = simulated_bias(truth, np.random.default_rng(0))
    assert -0.35 < bias < 0.25 * max(naive, 0.2)


@pytest.mark.parametrize("rows", [3, 4, 8, 12])
def test_no_mean_gains_and_one_far_ahead_loses_nothing(rows):
    assert corrected_for_selection([0.9] * (rows - 1) + [0.97], [0.005] * rows, lower_is_better=False) == pytest.approx(
        0.97
    )
    for means in np.random.default_rng(0).normal(size=(100, rows)):
        assert corrected_for_selection(list(means), [0.3] * rows, lower_is_better=False) <= means.max()


@pytest.mark.parametrize("outliers", [[-100.0], [-100.0, -30.0]])
def test_configurations_that_failed_to_learn_do_not_hide_the_luck_of_the_others(outliers):
    means = list(np.random.default_rng(0).normal(size=9))
    with_them, without = (
        corrected_for_selection(some, [1.0] * len(some), lower_is_better=False) for some in ([*means, *outliers], means)
    )
    assert with_them == pytest.approx(without, abs=0.1)
    assert without < max(means) - 0.3


def test_correction_depends_on_nothing_but_values_and_direction():
    means, errors = [1.0, 2.0, 2.5, 2.2], [0.5, 0.5, 0.2, 0.5]
    corrected = corrected_for_selection(means, errors, lower_is_better=False)
    assert corrected < 2.5
    assert corrected_for_selection(means[::-1], errors[::-1], lower_is_better=False) == corrected
    lowest = corrected_for_selection([-mean for mean in means], errors, lower_is_better=True)
    assert lowest == -corrected
    scaled = corrected_for_selection([10 + 3 * mean for mean in means], [3 * e for e in errors], lower_is_better=False)
    assert scaled == pytest.approx(10 + 3 * corrected)
    assert corrected_for_selection([1.0, 2.0, 4.0], [0.0] * 3, lower_is_better=False) == 4.0


def test_chance_is_estimated_from_seeds():
    groups = [[0.90, 0.92], [0.95, 0.97], [0.91, 0.93], [0.90, 0.91]]
    error = ((3 * 0.0002 + 0.00005) / 4 / 2) ** 0.5
    means = [np.mean(values) for values in groups]
    rows = [{10 * row + seed: value for seed, value in enumerate(values)} for row, values in enumerate(groups)]
    expected = corrected_for_selection(means, [error] * 4, lower_is_better=False)
    assert corrected_over_seeds(rows, lower_is_better=False) == pytest.approx(expected)
    assert corrected_over_seeds([{0: 0.9}, {0: 0.91}, {0: 0.92}], lower_is_better=False) is None
    assert corrected_over_seeds(rows[:2], lower_is_better=False) is None


@pytest.mark.parametrize(
    ("rows", "seeds", "shared", "left"), [(1, 3, 0, 0.15), (1, 10, 0, 0.15), (12, 3, 0, 0.2), (12, 3, 2, 0.2)]
)
def test_the_luck_of_a_run_is_taken_off_where_configurations_are_equal(rows, seeds, shared, left):
    """What a seed adds to all of them, ``shared``, is no luck of one."""
    rng = np.random.default_rng(0)
    effects = shared * rng.normal(size=(400, 1, seeds))
    runs = effects + rng.normal(size=(400, rows, seeds))
    corrected = [
        corrected_single_run([dict(enumerate(row)) for row in groups], lower_is_better=False)
        for groups in runs.tolist()
    ]
    assert abs(np.mean(corrected - effects.mean(axis=(1, 2)))) < left


def test_a_single_run_keeps_what_its_configuration_is_better_by():
    groups = [{0: 0.90, 1: 0.92}, {2: 0.95, 3: 0.97}, {4: 0.91, 5: 0.93}]
    corrected = corrected_single_run(groups, lower_is_better=False)
    assert 0.95 < corrected <= 0.96
    alone = corrected_single_run([{0: 0.96, 1: 0.97, 2: 0.98}], lower_is_better=False)
    assert alone == pytest.approx(0.97), "there is no other"
    negative = [{seed: -value for seed, value in values.items()} for values in groups]
    assert corrected_single_run(negative, lower_is_better=True) == -corrected
    assert corrected_single_run([{0: 0.9, 1: 0.91}], lower_is_better=False) is None


@pytest.mark.parametrize(("rows", "seeds", "shared"), [(4, 3, 0.9), (4, 5, 0.7), (10, 3, 0.5), (4, 3, 0.0)])
def test_the_luck_of_seeds_that_all_rows_share_is_no_reason_to_shrink(rows, seeds, shared):
    rng = np.random.default_rng(0)
    found = []
    for _ in range(1000):
        truth = rng.normal(size=(rows, 1))
        luck = (shared / (1 - shared)) ** 0.5 * rng.normal(size=seeds)  # correlation of two rows: shared
        values = truth + luck + rng.normal(size=(rows, seeds))
        best = int(values.mean(1).argmax())
        corrected = corrected_over_seeds([dict(enumerate(row)) for row in values], lower_is_better=False)
        expected = truth[best, 0] + luck.mean()
        found.append((values[best].mean() - expected, corrected - expected))
    naive, bias = np.mean(found, axis=0)
    assert naive > 0.15
    assert -0.15 * naive < bias < 0.5 * naive


def test_seeds_that_some_rows_share_count_as_theirs():
    rows = [{0: 1.0, 1: 2.0, 2: 3.0}, {0: 1.1, 1: 2.1}, {1: 2.3, 2: 3.3}]
    assert own_variance(rows) == pytest.approx(0.0, abs=1e-12)
    assert own_variance([{0: 1.0, 1: 2.0}, {2: 1.0, 3: 2.0}]) == pytest.approx(0.5)


def test_fresh_seeds_are_as_many_others_at_least_three():
    assert fresh_seeds([0]) == "seed=1,2,3"
    assert fresh_seeds([0, 5, 2, 3]) == "seed=6,7,8,9"
    assert fresh_seeds([]) == "seed=0,1,2"
    assert fresh_seeds(range(10)) == "seed=10,11,12,13,14,15,16,17,18,19"
    assert fresh_seeds(range(500)) == "seed=range(500,1000)"
    assert fresh_seeds([5, 6, 7], [MAX_SEED - 3]) == f"seed={MAX_SEED - 2},{MAX_SEED - 1},{MAX_SEED}"
    assert fresh_seeds([1, 6, 7], [MAX_SEED - 2]) == "seed=2,3,4"
    assert fresh_seeds_command(Path("outputs/a"), {}, range(11)).endswith(" -m like=outputs/a 'seed=range(11,22)'")
    assert fresh_seeds_command(Path("outputs/a b"), {}, [1]).endswith(" -m 'like=outputs/a b' seed=2,3,4")


def test_the_command_for_fresh_seeds_is_allowed_to_import_own_parts(tmp_path, write_run):
    """As ``compare`` and ``runs best`` print it; a seed of any row that diverged or was interrupted is not fresh."""
    write_run(tmp_path, seed=5, status="interrupted", model={"position": "rope"})
    parts = {"my_lab.fourier.Fourier": "0123456789abcdef", "my_lab.log.Log": "fedcba9876543210"}
    for position, gain in (("learned", 0.0), ("rope", 0.01), ("my_lab.fourier.Fourier", 0.02)):
        own = position.startswith("my_lab")
        write_run(tmp_path, seed=3 + (position == "rope"), status="diverged", model={"position": position})
        for seed in (0, 1):
            acc = 0.9 + gain + 0.001 * seed
            write_run(tmp_path, seed=seed, acc=acc, model={"position": position}, facts={"parts": parts} if own else {})
    allowed = " 'trust=[my_lab.fourier.Fourier,my_lab.log.Log]' "
    compared = compare(load_results([tmp_path])).findings.sentences[-1]
    assert compared.startswith("to measure my_lab.fourier.Fourier on fresh seeds: ")
    found = find_runs([tmp_path])
    runs = best_runs(found, "val/acc", len(found.entries))
    (luck,) = luck_sentence(latest_by_configuration(runs, "val/acc"), runs[0], "val/acc", found.entries).splitlines()[
        1:
    ]
    assert compared.endswith(f"{allowed}seed=6,7,8")
    assert luck.endswith(f"{allowed}seed=6,7,8")


def test_the_filters_that_the_best_run_is_given_are_spelled_as_filters(tmp_path):
    without, three = (entry(tmp_path, {"validation": folds}, {"data.folds": folds}) for folds in (None, 3))
    assert validation_warning([without, three], without).endswith(": give filters, such as data.folds=null")
    assert RunList([without, three], []).where("data.folds", "null").entries == [without]
    runs = [entry(tmp_path, {"validation": name}, {"data.root": name, "data.name": "x"}) for name in ("a,b", "a")]
    assert validation_warning(runs, runs[0]).endswith(""" such as 'data.root='"'"'a,b'"'"''""")
    assert RunList(runs, []).where("data.root", "'a,b'").entries == runs[:1]
    assert RunList(runs, []).where("data.root", "'a,b',a").entries == runs
    lists = RunList([entry(tmp_path, {}, {"data.targets": ["a,b"]})], [])
    assert lists.where("data.targets", """['a,b']""").entries == lists.where("data.targets", "'a,b'").entries != []
    other = entry(tmp_path, {"validation": "x"}, {"data.folds": None})
    assert validation_warning([without, other], without).endswith("so it need not be better than they are")


def test_runs_of_another_source_of_an_own_part_are_another_configuration(tmp_path):
    config = {"seed": 0, "model.position": "lab.pos.P"}
    parts = [{"lab.pos.P": letter * 64} for letter in "aab"]
    runs = [entry(tmp_path / str(i), {"started": str(i), "parts": one}, config) for i, one in enumerate(parts)]
    assert latest_by_configuration(runs, "val/acc") == [[runs[1]], [runs[2]]]


def test_a_run_from_before_a_key_was_added_is_of_the_configuration_with_its_default(tmp_path):
    configs = [{"seed": 0}, {"seed": 1, "optimizer.nesterov": False}, {"seed": 0, "optimizer.nesterov": True}]
    runs = [entry(tmp_path / str(i), {"started": str(i)}, config) for i, config in enumerate(configs)]
    assert latest_by_configuration(runs, "val/acc") == [runs[:2], runs[2:]]


@pytest.mark.parametrize("config", [{"seed": [1]}, {"data.fold": 0, "data.folds": 3, "data.val_seed": [1]}])
def test_a_seed_of_a_received_run_that_is_no_number_repeats_nothing(tmp_path, config):
    assert repetition_of(config, "name") == "name"
    runs = [entry(tmp_path / str(seed), {}, {"seed": seed}) for seed in ([1], 0)]
    assert latest_by_configuration(runs, "val/acc") == [runs]
    assert hash(repetition_of({"data.fold": 0, "data.folds": 3, "seed": [1]}, "name"))


def entry(path, facts, config):
    """A run in a list, without its folder."""
    return RunEntry(path, facts, {"val/acc": 0.9}, lambda: json.dumps(config))
