"""Findings in sentences, caveats, and comparisons that are refused."""

import itertools
import json
import math
import re
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats

from vitrine.compare import failures
from vitrine.compare.comparison import compare
from vitrine.compare.difference import difference
from vitrine.compare.load import load_results
from vitrine.compare.metric import Metric, format_p
from vitrine.compare.seed_plan import Plan, largest_spread
from vitrine.compare.simultaneous import Family, PooledVariance
from vitrine.compare.table import tabulate
from vitrine.compare.table_formats import cells
from vitrine.config.metrics import difference_problem
from vitrine.errors import RunError
from vitrine.runs import RunRecord

THESE = ", on these 360 images"  # where no predictions are stored


def compared(folder, **options):
    return compare(load_results([folder]), **options)


def sentences_of(folder, **options) -> dict[str, list[str]]:
    return {tested.row.label: tested.sentences for tested in compared(folder, **options).findings.comparisons}


def write_rows(write_run, folder, **accs):
    for scheme, values in accs.items():
        for seed, acc in enumerate(values):
            write_run(folder, f"position={scheme}", seed=seed, acc=acc, predictions=False)


def test_a_significant_difference_is_reported_with_its_interval_and_seeds(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.98, 0.981, 0.979, 0.982, 0.98], rope=[0.984, 0.985, 0.984, 0.985, 0.985])
    found = compared(tmp_path)
    assert sentences_of(tmp_path) == {
        "rope": [
            "rope is better than learned by 0.42 points (95 % interval 0.32 to 0.52; 5 seeds, r = 0.72, on these "
            "360 images)"
        ]
    }
    assert found.findings.sentences == [
        "highest mean test accuracy of 2 configurations: rope, 98.46 ± 0.10 % over 5 runs"
    ]
    assert sentences_of(tmp_path, baseline="rope") == {
        "learned": [
            "learned is worse than rope by 0.42 points (95 % interval 0.32 to 0.52; 5 seeds, r = 0.72, on these "
            "360 images)"
        ]
    }


def test_lower_losses_are_better(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.90, 0.91, 0.92], rope=[0.95, 0.961, 0.97])
    found = compared(tmp_path, metric="test/loss")
    assert found.findings.sentences == [
        "lowest mean test loss of 2 configurations: rope, 0.0397 ± 0.0249 nats over 3 runs"
    ]
    assert [summary.row.label for summary in found.summaries] == ["rope", "learned"]
    assert found.summaries[0].best == pytest.approx(0.03)
    (tested,) = found.findings.comparisons
    assert tested.verdict == "better"
    assert tested.sentences == [
        "rope is better than learned by 0.0503 nats (95 % interval 0.0489 to 0.0518; 3 seeds, r = 1.00, on these 360 "
        "images)"
    ]


@pytest.mark.parametrize(
    ("metric", "facts", "images"),
    [
        ("test/loss", {}, ", on these 360 images"),
        ("test/macro_f1", {}, ", on these 360 images"),
        ("val/macro_f1", {}, ", on these 144 images"),
        ("val/auroc", {"images": {}}, ", on these images"),
        ("train_seconds", {}, ""),
    ],
)
def test_a_finding_by_any_metric_of_images_is_about_these(tmp_path, write_run, metric, facts, images):
    for scheme, value in (("learned", 0.5), ("rope", 0.6)):
        for seed in range(3):
            measured = {metric: value + 0.001 * (seed if scheme == "rope" else seed**2)}
            write_run(tmp_path, f"position={scheme}", seed=seed, metrics=measured, facts=facts)
    (tested,) = compared(tmp_path, metric=metric).findings.comparisons
    assert tested.verdict != "inconclusive"
    assert re.search(rf"; 3 seeds, r = 0\.9\d{images}\)$", tested.sentences[0])


@pytest.mark.parametrize("metric", ["test/ece", "val/ece", "test/ece/above5"])
def test_calibration_errors_differ_without_a_verdict(tmp_path, write_run, metric):
    """Of perfect probabilities, too, the less accurate ones have a larger error on finitely many images."""
    for scheme, value in (("learned", 0.01), ("rope", 0.02), ("none", 0.03)):
        for seed in range(3):
            write_run(tmp_path, f"position={scheme}", seed=seed, metrics={metric: value * (1 + seed / 10)})
    found = compared(tmp_path, metric=metric, difference_of_interest=0.05)
    assert [tested.kind for tested in found.findings.comparisons] == ["without a verdict"] * 2
    said = found.findings.comparisons[0].sentences[0]
    assert said.startswith(f"rope and learned: no verdict, since {found.metric.title} depends on accuracy, too; ")
    assert said.endswith("the difference is +0.0110 over 3 seeds, r = 1.00")
    assert len(found.findings.sentences) == 1, "nor which rows may be the best"
    assert [
        text
        for text in found.caveats
        if f"; cross-entropy, {metric[:4].rstrip('/')}/loss where it is trained, is a proper score" in text
    ]


def test_a_finding_on_one_test_image_is_about_this(tmp_path, write_run):
    for scheme, right in (("learned", (0, 1, 0)), ("rope", (1, 1, 1))):
        for seed, one in enumerate(right):
            facts, labels = {"images": {"test": 1}}, np.zeros(1, int)
            where = tmp_path, f"position={scheme}"
            write_run(*where, seed=seed, acc=one, right=np.array([one == 1]), labels=labels, facts=facts)
    (tested,) = compared(tmp_path).findings.comparisons
    assert not tested.difference.new_images
    assert "no significant difference over 3 seeds, on this 1 image; " in tested.sentences[0]


def test_an_insignificant_difference_comes_with_what_so_many_seeds_can_show(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.98, 0.983, 0.981], rope=[0.9838, 0.983, 0.980])
    (sentence,) = sentences_of(tmp_path)["rope"]
    # Three pairs detect 3.26 standard deviations of a pair's difference, 0.00253, with 80 %.
    assert sentence == (
        "rope and learned: no significant difference over 3 seeds, r = -0.01, on these 360 images; smallest difference "
        "that 3 seeds detect with 80 % power: 0.83 points"
    )
    (sentence,) = sentences_of(tmp_path, difference_of_interest=0.004)["rope"]
    # With its upper 80 % bound, 0.00536, seventeen.
    assert sentence == (
        "rope and learned: no significant difference over 3 seeds, r = -0.01, on these 360 images; detecting 0.4 "
        "points with 80 % power takes up to 17 fresh seeds, or sweep=decide seed=3"
    )


def test_no_difference_of_accuracies_is_above_100_points(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.2, 0.9, 0.3], rope=[0.9, 0.3, 0.6])
    (tested,) = compared(tmp_path).findings.comparisons
    assert (tested.difference.low, tested.difference.high) == (-1, 1)
    assert tested.sentences[0].endswith("; 3 seeds cannot detect any possible difference with 80 % power")
    (tested,) = compared(tmp_path, metric="test/loss").findings.comparisons
    assert tested.difference.high > 1
    assert "; smallest difference that 3 seeds detect with 80 % power: " in tested.sentences[0]


def test_seeds_that_are_not_shared_are_planned_for_each_side(tmp_path, write_run):
    for seed, acc in enumerate([0.90, 0.91, 0.92, 0.91, 0.90, 0.93]):
        position = "position=learned" if seed < 3 else "position=rope"
        write_run(tmp_path, position, seed=seed, acc=acc, predictions=False)
    (tested,) = compared(tmp_path).findings.comparisons
    assert "; smallest difference that 3 seeds each detect with 80 % power: " in tested.sentences[0]


def test_rows_are_equal_within_a_difference_that_holds_their_interval(tmp_path, write_run):
    learned = [0.90, 0.91, 0.92, 0.905]
    write_rows(write_run, tmp_path, learned=learned, rope=[acc + 0.0001 * number for number, acc in enumerate(learned)])
    (sentence,) = sentences_of(tmp_path, difference_of_interest=0.01)["rope"]
    assert sentence == (
        "rope and learned are equal within 1 point (95 % interval -0.01 to +0.04; 4 seeds, r = 1.00, on these 360 "
        "images)"
    )


@pytest.mark.parametrize(
    ("learned", "rope"),
    [((0.90, 0.901), (0.951, 0.955)), ((0.90, 0.901), (0.89, 0.92)), ((0.90, 0.905, 0.91), (0.951, 0.955))],
    ids=["p < 0.05", "p > 0.05", "of three"],
)
def test_two_seeds_on_a_side_support_no_test(tmp_path, write_run, learned, rope):
    write_rows(write_run, tmp_path, learned=learned, rope=rope)
    found = compared(tmp_path, difference_of_interest=0.5)
    (tested,) = found.findings.comparisons
    assert tested.kind == "without a verdict"
    assert tested.sentences == ["rope and learned cannot be compared with 2 seeds: at least 3 are needed"]
    (row,) = [cells(found, summary) for summary in found.summaries if summary.row is tested.row]
    assert row[5:7] == [Metric("test/acc").signed(tested.difference.mean), "—"]


def test_a_verdict_and_its_interval_agree_in_every_row(tmp_path, write_run):
    rng = np.random.default_rng(0)
    accs = {name: rng.normal(0.9 + 0.05 * (name == "rope"), 0.002, 4) for name in ("learned", "rope", "none", "conv")}
    write_rows(write_run, tmp_path, **{name: list(values) for name, values in accs.items()})
    found, rows = compared(tmp_path).findings.comparisons, [dict(enumerate(values)) for values in accs.values()]
    assert {tested.verdict for tested in found} == {"better", "inconclusive"}
    for tested in found:
        excludes_zero = tested.difference.low > 0 or tested.difference.high < 0
        assert (tested.verdict != "inconclusive") == excludes_zero == (tested.difference.corrected < 0.05)
        assert tested.difference.sd == pytest.approx(math.sqrt(2 * PooledVariance.of(rows).variance))
        half_width = Family(3, "dunnett", pooled=True).critical_t(9) * tested.difference.sd / 2
        assert tested.difference.high - tested.difference.mean == pytest.approx(half_width)


def test_a_row_that_fails_more_often_is_not_called_better(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.90, 0.91, 0.92], rope=[0.95, 0.961, 0.97])
    write_run(tmp_path, "position=rope", seed=0, status="failed")  # and finished before
    assert compared(tmp_path).findings.comparisons[0].verdict == "better"
    write_run(tmp_path, "position=rope", seed=3, status="failed")
    (tested,) = compared(tmp_path).findings.comparisons
    assert tested.verdict == "inconclusive"
    assert tested.sentences == [
        "rope and learned: no verdict, since means are over survivors; the difference is +5.03 points over 3 seeds, "
        "r = 1.00; of rope, 1 of 4 runs failed or diverged (95 % interval 1% to 81%)"
    ]
    assert np.isnan(
        [tested.difference.corrected, tested.difference.p, tested.difference.low, tested.difference.high]
    ).all()
    (worse,) = compared(tmp_path, baseline="rope").findings.comparisons
    assert worse.verdict == "inconclusive"
    write_run(tmp_path, "position=learned", seed=3, status="failed")
    (tested,) = compared(tmp_path).findings.comparisons
    assert tested.verdict == "better"
    assert (
        "; of rope, 1 of 4 runs failed or diverged (95 % interval 1% to 81%) and of learned, 1 of "
        in tested.sentences[0]
    )


def test_a_configuration_whose_runs_all_failed_is_a_caveat_with_its_rate(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.90, 0.91, 0.92])
    sweep = "position=learned,rope optimizer.lr=1e-3 seed=0,1"
    write_run(tmp_path, "position=rope", seed=0, status="failed", sweep=sweep)
    write_run(tmp_path, "position=rope", seed=0, status="diverged", sweep=sweep)
    write_run(tmp_path, "position=rope", seed=1, status="diverged", sweep=sweep)
    write_run(tmp_path, "position=learned", seed=7, status="failed")
    caveats = [text for text in compared(tmp_path).caveats if "has no row" in text]
    rate = "2 of 2 runs failed or diverged (95 % interval 16% to 100%)"
    assert caveats == [f"position=rope, optimizer.lr=0.001 has no row: {rate}"]


def test_failures_of_every_combination_count_in_a_main_effect(tmp_path, write_run, monkeypatch):
    for patch, (learned, rope) in {"2": ((0.90, 0.91, 0.92), (0.95, 0.961, 0.97)), "4": ((0.8,) * 3, (0.85,))}.items():
        for scheme, accs in {"learned": learned, "rope": rope}.items():
            for seed, acc in enumerate(accs):
                write_run(tmp_path, f"position={scheme}", f"patch={patch}", seed=seed, acc=acc, predictions=False)
    for seed in (1, 2):  # which finished with patch=2
        write_run(tmp_path, "position=rope", "patch=4", seed=seed, status="failed")
    (tested,) = compared(tmp_path, by="position").findings.comparisons
    assert tested.verdict == "inconclusive"
    assert "of rope, 2 of 6 runs failed or diverged" in tested.sentences[0]
    keys = Mock(side_effect=failures.configuration_key)
    monkeypatch.setattr(failures, "configuration_key", keys)
    runs = load_results([tmp_path]).runs
    finished, unfinished = ([run for run in runs if run.status == status] for status in ("finished", "failed"))
    failures.failure_rates(tabulate(finished).main_effect("position"), unfinished)
    assert keys.call_count == len(runs)  # it serialises a whole configuration


def test_combinations_that_always_failed_count_in_a_main_effect(tmp_path, write_run):
    for patch, accs in {"2": (0.95, 0.961, 0.97), "4": (0.90, 0.91, 0.92)}.items():
        for seed, acc in enumerate(accs):
            write_run(tmp_path, "position=learned", f"patch={patch}", seed=seed, acc=acc, predictions=False)
            status = "failed" if patch == "2" else "finished"
            write_run(tmp_path, "position=rope", f"patch={patch}", seed=seed, acc=acc, predictions=False, status=status)
    (tested,) = compared(tmp_path, by="patch", baseline="4").findings.comparisons
    assert tested.verdict == "inconclusive"
    assert "of patch=2, 3 of 6 runs failed or diverged" in tested.sentences[0]


def test_the_best_of_survivors_is_not_looked_for(tmp_path, write_run):
    rows = {"learned": [0.90, 0.91, 0.92], "rope": [0.95, 0.961, 0.97], "none": [0.951, 0.958, 0.973]}
    write_rows(write_run, tmp_path, **rows)
    assert len(compared(tmp_path).findings.sentences) == 3
    write_run(tmp_path, "position=rope", seed=3, status="failed")
    (best,) = compared(tmp_path).findings.sentences
    assert best.startswith("highest mean test accuracy of 3 configurations: none, ")


def test_what_seeds_can_show_includes_what_the_images_hide(tmp_path, write_run):
    generator = np.random.default_rng(0)
    for scheme in ("learned", "rope"):
        difficulty = generator.choice([0.5, 0.99], 100)
        for seed in range(8):
            right = generator.random(100) < difficulty
            write_run(tmp_path, f"position={scheme}", seed=seed, acc=float(right.mean()), right=right)
    (tested,) = compared(tmp_path).findings.comparisons
    (sentence, _) = tested.sentences
    shown = float(sentence.partition("80 % power: ")[2].split()[0])
    assert shown > 100 * (tested.difference.high - tested.difference.mean) * 1.1, "half of it has a power of 50 %"
    wanted = compared(tmp_path, difference_of_interest=0.001).findings.comparisons[0].sentences[0]
    assert wanted.endswith("; detecting 0.1 points with 80 % power takes more test images")


def test_a_run_that_finished_with_nan_counts_as_diverged(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.90, 0.91, 0.92], rope=[0.95, 0.961, 0.97])
    write_run(tmp_path, "position=rope", seed=3, metrics={"test/acc": 0.1, "test/loss": math.nan})
    (tested,) = compared(tmp_path, metric="test/loss").findings.comparisons
    assert tested.verdict == "inconclusive"
    assert tested.sentences[0].endswith(
        "nats over 3 seeds, r = 1.00; of rope, 1 of 4 runs failed or diverged (95 % interval 1% to 81%)"
    )


def test_rows_that_fail_differently_often_are_not_called_equal(tmp_path, write_run):
    learned = [0.90, 0.91, 0.92, 0.905]
    write_rows(write_run, tmp_path, learned=learned, rope=[acc + 0.0001 * number for number, acc in enumerate(learned)])
    write_run(tmp_path, "position=learned", seed=7, status="diverged")
    (sentence,) = sentences_of(tmp_path, difference_of_interest=0.01)["rope"]
    assert sentence.startswith("rope and learned: no verdict, since means are over survivors; the difference is +0.02 ")
    assert "; of learned, 1 of 5 runs failed" in sentence


def test_a_best_mean_that_owes_nothing_to_luck_is_not_shown_twice(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.90, 0.91, 0.92], rope=[0.95, 0.961, 0.97], none=[0.85, 0.86, 0.87])
    best = compared(tmp_path).findings.sentences[0]
    assert best.startswith("highest mean test accuracy of 3 configurations: rope, 96.03 ± ")
    assert best.endswith(" % over 3 runs")


def test_the_best_of_several_rows_comes_with_what_its_selection_means(tmp_path, write_run):
    rows = {"learned": [0.90, 0.91, 0.92], "rope": [0.95, 0.961, 0.97], "none": [0.951, 0.958, 0.973]}
    write_rows(write_run, tmp_path, **rows)
    best, among, fresh = compared(tmp_path).findings.sentences
    assert best.startswith("highest mean test accuracy of 3 configurations: none, 96.07 ± ")
    shrunk = float(best.partition("; ")[2].split()[0])
    assert 96.0 < shrunk <= 96.07, "the rows share their seeds, whose luck selects none of them"
    assert best.endswith(" % corrected for choosing the best of 3")
    assert among == "with 95 % confidence, on these 360 images, the best of all 3 is among 2 of them: none and rope"
    assert fresh.startswith("to measure none on fresh seeds: ")
    assert fresh.endswith(" seed=3,4,5")
    assert " -m like=" in fresh
    (losses,) = [text for text in compared(tmp_path, metric="test/loss").findings.sentences if "95 %" in text]
    assert losses == among
    write_rows(write_run, tmp_path / "more", conv=[0.99, 0.991, 0.993])
    sentences = compared(tmp_path).findings.sentences
    assert "with 95 % confidence, on these 360 images, conv is the best of all 4" in sentences


def test_no_row_that_is_worse_than_the_baseline_may_be_the_best(tmp_path, write_run):
    """None errs where rope errs, and learned elsewhere: the part over images is small for none and rope alone."""
    right = {scheme: np.ones(1000, bool) for scheme in ("rope", "none", "learned")}
    right["rope"][:160] = right["none"][:160] = right["none"][-32:] = right["learned"][300:458] = False
    for scheme, more in {"rope": (0, 2, 4), "none": (3, 1, 5), "learned": (1, 4, 2)}.items():
        for seed, wrong in enumerate(more):
            of_seed = right[scheme].copy()
            of_seed[700 : 700 + wrong] = False
            metrics, labels = {"test/acc": float(of_seed.mean())}, np.arange(1000) % 10
            write_run(tmp_path, f"position={scheme}", seed=seed, right=of_seed, labels=labels, metrics=metrics)
    found = compared(tmp_path).findings
    assert "common variance of all rows" in found.method
    assert {one.row.label: one.verdict for one in found.comparisons} == {"learned": "inconclusive", "none": "worse"}
    assert [row.label for row in found.candidates] == ["learned", "rope"]


def test_pairs_that_were_computed_differently_are_reported(tmp_path, write_run):
    for seed in range(3):
        write_run(tmp_path, "position=learned", seed=seed, facts={"compiled": "nothing", "precision": "32-true"})
        facts = {"compiled": "blocks" if seed else "nothing", "precision": "32-true", "device": "CPU, 2 threads"}
        write_run(tmp_path, "position=rope", seed=seed, facts=facts)
    caveats = compared(tmp_path).caveats
    assert (
        "2 of 3 pairs with equal seeds differ in compilation (blocks and nothing): part of their difference may be due "
        "to that, and they share less than their seed"
    ) in caveats
    assert any(
        "3 of 3 pairs with equal seeds differ in device or number of threads (CPU, 1 thr" in text for text in caveats
    )
    assert not any("differ in precision" in text for text in caveats)


def test_what_the_rows_compare_is_no_caveat(tmp_path, write_run):
    for compile_ in ("nothing", "blocks"):
        for seed in range(3):
            write_run(tmp_path, f"trainer.compile={compile_}", seed=seed, facts={"compiled": compile_})
    assert not any("differ in compilation" in text for text in compared(tmp_path).caveats)


def test_the_best_epoch_by_the_images_that_are_compared_is_a_caveat(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.90, 0.91, 0.92], rope=[0.95, 0.961, 0.97])
    caveat = "val/acc is that of each run's best epoch on the same images"
    assert any(text.startswith(caveat) for text in compared(tmp_path, metric="val/acc").caveats)
    assert not any("best epoch" in text for text in compared(tmp_path).caveats)


def test_pairs_with_their_own_variances_are_corrected_by_bonferroni(tmp_path, write_run):
    seeds = itertools.count()
    for scheme, accs in {
        "learned": (0.90, 0.91, 0.92),
        "rope": (0.95, 0.961, 0.97),
        "none": (0.91, 0.92, 0.93),
    }.items():
        for acc in accs:
            write_run(tmp_path, f"position={scheme}", seed=next(seeds), acc=acc, predictions=False)
    for tested in compared(tmp_path, baseline="rope").findings.comparisons:
        alone = difference(
            *(row.values_by_seed("test/acc") for row in (tested.row, compared(tmp_path).table.row("rope"))), Family(3)
        )
        assert (tested.difference.low, tested.difference.high) == pytest.approx((alone.low, alone.high))


def test_a_baseline_chosen_by_its_result_counts_as_all_pairs(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.91, 0.92, 0.90], rope=[0.96, 0.94, 0.95], none=[0.91, 0.92, 0.93])
    plain, chosen = compared(tmp_path), compared(tmp_path, baseline="rope")
    assert not any("chosen by its result" in text for text in plain.caveats)
    assert any("intervals hold for all 3 pairs of rows" in text for text in chosen.caveats)
    (tested,) = [one for one in chosen.findings.comparisons if one.row.label == "learned"]
    assert tested.difference.corrected > tested.difference.p
    (plainly,) = [one for one in plain.findings.comparisons if one.row.label == "rope"]
    assert tested.difference.corrected > plainly.difference.corrected, "Tukey's of three pairs, and Dunnett's of two"
    assert "Tukey's correction for all 3 pairs" in chosen.findings.method
    assert "Dunnett's correction for 2 comparisons" in plain.findings.method
    assert not any("chosen by" in text for text in compared(tmp_path, baseline="none").caveats)


def test_pairs_without_variance_are_not_tested(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.5, 0.75, 0.25], rope=[0.625, 0.875, 0.375])
    (tested,) = compared(tmp_path).findings.comparisons
    assert tested.verdict == "inconclusive"
    assert tested.sentences == [
        "rope and learned: all pairs differ by exactly 12.50 points, so no test is possible (3 seeds, r = 1.00)"
    ]


def test_pairs_that_all_differ_by_the_same_are_tested_with_the_variance_of_all_rows(tmp_path, write_run):
    learned, rope = [0.9543, 0.9570, 0.9382, 0.9434], [0.9628, 0.9596, 0.9641, 0.9514]
    write_rows(write_run, tmp_path, learned=learned, rope=rope, none=[acc - 0.05 for acc in learned])
    worse = next(tested for tested in compared(tmp_path).findings.comparisons if tested.row.label == "none")
    interval = "none is worse than learned by 5.00 points (simultaneous 95 % interval 3.51 to 6.49; 4 seeds, r = 1.00,"
    assert (worse.kind, worse.sentences[0].startswith(interval)) == ("worse", True)
    assert "after correction for 2 comparisons" in sentences_of(tmp_path)["rope"][0]


def test_a_diverged_run_is_named_and_left_out(tmp_path, write_run):
    write_run(tmp_path, seed=0)
    reached = {"test/acc": 0.1, "val/acc": 0.1, "test/loss": float("nan")}
    lost = write_run(tmp_path, seed=1, metrics=reached)
    found = compared(tmp_path, metric="test/loss")
    assert found.summaries[0].interval.count == 1
    caveat = f"1 run diverged (test/loss is NaN or infinite) and is left out: {lost}"
    assert caveat in found.caveats
    with pytest.raises(RunError, match="every run diverged"):
        compared(lost, metric="test/loss")


def test_a_metric_that_is_not_defined_is_no_divergence(tmp_path, write_run):
    reached = {"test/acc": 0.9, "test/loss": 0.1, "test/auroc": math.nan}
    lost = write_run(tmp_path, seed=9, metrics=reached, predictions=False)
    with pytest.raises(RunError, match="test/auroc is not defined on these images: it is NaN or infinite in 1 run"):
        compared(tmp_path, metric="test/auroc")
    for seed, auroc in enumerate((0.9, 0.92, 0.91)):
        write_run(tmp_path, seed=seed, metrics=reached | {"test/auroc": auroc}, predictions=False)
    found = compared(tmp_path, metric="test/auroc")
    assert found.findings.failed["the configuration"].failed == 0
    assert f"1 run without a defined test/auroc is left out: {lost}" in found.caveats


def test_one_seed_supports_no_conclusion(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.9], rope=[0.99])
    found = compared(tmp_path)
    assert found.findings.comparisons[0].sentences == [
        "rope and learned cannot be compared with 1 seed: at least 3 are needed"
    ]
    assert "fewer than 3 seeds, too few to estimate a mean: every row" in found.caveats


def test_a_difference_that_correction_makes_insignificant_is_reported_with_both_p_values(tmp_path, write_run):
    write_rows(
        write_run,
        tmp_path,
        learned=[0.90, 0.91, 0.92, 0.905],
        rope=[0.915, 0.93, 0.926, 0.917],
        none=[0.90, 0.92, 0.91, 0.90],
        conv=[0.91, 0.90, 0.92, 0.90],
        alibi2d=[0.899, 0.915, 0.91, 0.92],
    )
    sentence = sentences_of(tmp_path)["rope"][0]
    assert sentence.startswith(
        f"rope and learned: no significant difference over 4 seeds, r = 0.74{THESE}, after correction for 4 comparisons"
    )
    rope = next(tested for tested in compared(tmp_path).findings.comparisons if tested.row.label == "rope")
    assert rope.difference.p < 0.05 < rope.difference.corrected


def test_unmatched_seeds_are_compared_as_groups(tmp_path, write_run):
    for scheme, seeds in (("learned", (0, 1, 2)), ("rope", (7, 8, 9, 10))):
        for seed in seeds:
            acc = {"learned": 0.9, "rope": 0.95}[scheme] + 0.001 * (seed % 3)
            write_run(tmp_path, f"position={scheme}", seed=seed, acc=acc, predictions=False)
    sentences = sentences_of(tmp_path)["rope"]
    assert sentences[0].endswith("4 and 3 seeds, unpaired, on these 360 images)"), (
        "the row's seeds, and then the baseline's"
    )


def test_predictions_distinguish_two_models_with_one_seed(tmp_path, write_run):
    right = np.arange(100) < 80
    write_run(tmp_path, "position=learned", acc=0.8, right=right)
    write_run(tmp_path, "position=rope", acc=0.92, right=(np.arange(100) < 95) & (np.arange(100) >= 3))
    (tested,) = compared(tmp_path).findings.comparisons
    assert tested.on_images.only == [(15, 3)]
    assert tested.on_images.p == [pytest.approx(stats.binomtest(3, 18).pvalue)]
    assert tested.sentences[1].startswith(
        "on the same 100 test images, the two models differ: 15 are correct only with rope, 3 only with learned "
        "(McNemar's exact test, p = 0.008); the difference is +"
    )
    low, high = tested.on_images.low, tested.on_images.high
    assert low < 0.12 < high
    assert (low, high) == pytest.approx((0.12 - 1.96 * 0.0406, 0.12 + 1.96 * 0.0406), abs=0.012)


def test_a_p_value_that_is_corrected_and_an_interval_that_is_not_say_so(tmp_path, write_run):
    right = np.arange(100) < 80
    write_run(tmp_path, "position=learned", acc=0.8, right=right)
    write_run(tmp_path, "position=rope", acc=0.9, right=(np.arange(100) < 95) & (np.arange(100) >= 5))
    write_run(tmp_path, "position=none", acc=0.8, right=np.arange(100) >= 20)
    rope = next(one for one in compared(tmp_path).findings.comparisons if one.row.label == "rope")
    assert ", corrected for 2 pairs of models); the difference is " in rope.sentences[1]
    assert rope.sentences[1].endswith("over images alone (Tango's 95 % interval, of these rows alone)")


def test_mcnemars_p_values_are_corrected_for_all_pairs(sweep):
    found = compared(sweep).findings.comparisons
    alone = [stats.binomtest(ours, ours + theirs).pvalue for row in found for ours, theirs in row.on_images.only]
    assert len(alone) == 6
    assert min(p for row in found for p in row.on_images.p) == pytest.approx(min(1, 6 * min(alone)))
    rope = next(tested for tested in found if tested.row.label == "rope")
    assert "finds a difference in 0 of 3 pairs of models with equal seeds; the difference is " in rope.sentences[1]


def test_one_pair_with_equal_seeds_is_not_taken_for_all_models(tmp_path, write_run):
    every = np.arange(100)
    for seed, right in ((0, every < 70), (1, every < 70), (2, every < 90)):
        write_run(tmp_path, "position=learned", seed=seed, acc=right.mean(), right=right)
        write_run(tmp_path, "position=rope", seed=seed + 2, acc=0.7, right=every < 70)
    sentence = compared(tmp_path).findings.comparisons[0].sentences[1]
    assert sentence.startswith(
        "on the same 100 test images, the only two models with equal seeds differ: 0 are correct only with rope, 20 "
        "only with learned (McNemar's exact test, p < 0.001); the difference between means over all models is -"
    )


def test_mcnemars_test_names_the_side_with_more_correct_images(tmp_path, write_run):
    every = np.arange(100)
    for seed, right in enumerate((every < 60, every < 60, every < 90)):
        write_run(tmp_path, "position=learned", seed=seed, acc=0.6, right=right)
        write_run(tmp_path, "position=rope", seed=seed, acc=0.9, right=every < 90 if seed < 2 else every < 60)
    sentence = compared(tmp_path).findings.comparisons[0].sentences[1]
    assert (
        "finds a difference in 3 of 3 pairs of models with equal seeds, 2 in favour of rope and 1 in favour of learned;"
        in sentence
    )
    sentence = compared(tmp_path, baseline="rope").findings.comparisons[0].sentences[1]
    assert "equal seeds, 1 in favour of learned and 2 in favour of rope;" in sentence


def test_the_bootstrap_uses_the_runs_of_the_difference(tmp_path, write_run):
    every = np.arange(100)
    for seed in range(3):
        write_run(tmp_path, "position=learned", seed=seed, acc=0.8, right=every < 80)
    for seed in range(2):
        write_run(tmp_path, "position=rope", seed=seed, acc=0.8, right=every < 80)
    write_run(tmp_path, "position=learned", seed=3, acc=0.1, right=every < 10)
    (tested,) = compared(tmp_path).findings.comparisons
    assert tested.difference.counts == (2, 4)
    assert tested.difference.mean == pytest.approx(0.8 - (3 * 0.8 + 0.1) / 4)
    assert 0 < tested.on_images.low < tested.difference.mean < tested.on_images.high


def test_the_interval_of_one_of_several_equal_rows_is_called_simultaneous(tmp_path, write_run):
    learned, steps = [0.90, 0.91, 0.92, 0.905], {"rope": 2, "none": 3}
    near = {
        name: [acc + 0.0001 * (number % step) for number, acc in enumerate(learned)] for name, step in steps.items()
    }
    write_rows(write_run, tmp_path, learned=learned, **near)
    found = sentences_of(tmp_path, difference_of_interest=0.01)
    for name in near:
        assert found[name][0].startswith(f"{name} and learned are equal within 1 point (simultaneous 95 % interval ")


def test_a_requested_difference_is_planned_for_or_called_equal(tmp_path, write_run):
    learned = [0.9, 0.91, 0.92, 0.905, 0.9]
    apart = [0.0, 0.004, 0.001, 0.0045, 0.002]
    write_rows(write_run, tmp_path, learned=learned, rope=[a + b for a, b in zip(learned, apart, strict=True)])
    sentences = sentences_of(tmp_path, difference_of_interest=0.02)["rope"]
    assert sentences[0].startswith("rope and learned are equal within 2 points (95 % interval ")
    sentences = sentences_of(tmp_path, difference_of_interest=0.004)["rope"]
    assert sentences[0].endswith("points with 80 % power takes up to 7 fresh seeds, or sweep=decide seed=5")


def test_a_difference_that_does_not_matter_is_better_by_no_more_than_that(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.9, 0.91, 0.92], rope=[0.902, 0.9121, 0.9219])
    (sentence,) = sentences_of(tmp_path, difference_of_interest=0.01)["rope"]
    assert sentence.startswith(
        "rope is better than learned by 0.20 points, but by no more than 1 point (95 % interval "
    )


def test_seeds_are_planned_for_the_test_of_rows_that_share_a_variance(tmp_path, write_run):
    rng, names = np.random.default_rng(0), ("learned", "rope", "none", "conv")
    write_rows(write_run, tmp_path, **{name: list(rng.normal(0.9, 0.002, 4)) for name in names})
    found = compared(tmp_path, difference_of_interest=0.002).findings.comparisons
    sd, family = found[0].difference.sd, Family(3, "dunnett", pooled=True)
    needed = Plan(largest_spread(sd, 9), True, family, freedom_per_seed=3).seeds_for(0.002)
    for tested in found:
        assert tested.sentences[0].endswith(f" power takes up to {needed} fresh seeds, or sweep=decide seed=4")


@pytest.mark.parametrize(
    ("facts", "warned"),
    [
        (
            {"validation": "other"},
            "selected their checkpoints on different validation splits: 292becf10e12e92c (1 run) and other (1 run)",
        ),
        (
            {"code": {"commit": "fedcba98", "changed": True}},
            "versions of the code: 0123456 (1 run) and fedcba9",
        ),
        (
            {"code": {"commit": "0123456789abcdef", "changed": True}},
            "1 of 2 runs used uncommitted code",
        ),
        ({"versions": {"torch": "2.11.0"}}, "different versions of torch: 2.15.0 (1 run) and 2.11.0 (1 run)"),
        (
            {"resumed": [{"at": "2026-01-31", "before": {"device": "NVIDIA H200"}}, {"at": "2026-02-01"}]},
            "1 of 2 runs had another device, precision or version of torch before resuming; see resumed in run.json",
        ),
        ({"epochs": 9}, "runs trained for different numbers of epochs: 4 (1 run) and 9 (1 run)"),
        (
            {"images": {"train": 1000, "val": 144, "test": 360}},
            "different data: digits, 1,293 images (1 run) and digits, 1,000",
        ),
        (
            {"device": "NVIDIA H200"},
            "images/s and times were measured on different devices: CPU, 1 thread (1 run) and NVI",
        ),
    ],
)
def test_caveats_name_what_differs_between_runs(tmp_path, write_run, facts, warned):
    write_run(tmp_path, seed=0)
    write_run(tmp_path, seed=1, facts=facts)
    assert any(warned in text for text in compared(tmp_path).caveats), compared(tmp_path).caveats


def test_a_teacher_with_other_weights_for_some_runs_is_a_caveat(tmp_path, write_run):
    for seed, (teacher, sha256) in enumerate([("/t", "a"), ("/t", "b"), ("/moved", "b")]):
        write_run(tmp_path, seed=seed, facts={"teacher": {"run": teacher, "sha256": sha256}})
    assert compared(tmp_path).caveats == ["2 runs were taught by different weights of the same teacher, /t"]


def test_runs_that_stopped_early_in_different_epochs_have_no_caveat(tmp_path, write_run):
    for seed in range(3):
        write_run(tmp_path, "callbacks=[default,early_stopping]", seed=seed, facts={"epochs": 4 + seed})
    assert compared(tmp_path).caveats == []


def test_trials_with_different_fingerprint_versions_are_reported(tmp_path, write_run):
    write_run(tmp_path, seed=0, sweep="seed=0,1")  # by a release without versions, which is version 1
    write_run(tmp_path, seed=1, sweep="seed=0,1", facts={"fingerprint_version": 2})
    caveat = (
        "runs have trial fingerprints of different versions, so a row may average over different algorithms: "
        "version 1 (1 run) and version 2 (1 run)"
    )
    assert caveat in compared(tmp_path).caveats


def test_three_seeds_of_one_configuration_have_no_caveats(tmp_path, write_run):
    for seed in range(3):
        write_run(tmp_path, seed=seed)
    found = compared(tmp_path)
    assert found.caveats == []
    assert found.findings.sentences == ["test accuracy of the configuration: 90.00 ± 0.20 % over 3 runs"]


def test_pruned_runs_are_counted_not_named(tmp_path, write_run):
    write_run(tmp_path, seed=0)
    for seed in (1, 2):
        write_run(tmp_path, seed=seed, status="pruned")
    assert "2 runs are not finished and left out: 2 pruned by the search" in compared(tmp_path).caveats
    failed = write_run(tmp_path, seed=3, status="failed")
    caveat = f"3 runs are not finished and left out: 2 pruned by the search and {failed} (failed)"
    assert caveat in compared(tmp_path).caveats


def test_selection_among_many_rows_on_the_test_set_is_a_caveat(tmp_path, write_run):
    for number in range(6):
        write_run(tmp_path, seed=0, model={"drop_path": number / 10}, predictions=False)
    caveat = "the best of 6 rows is selected on the test set"
    assert any(text.startswith(caveat) for text in compared(tmp_path).caveats)
    assert not any(text.startswith("the best of") for text in compared(tmp_path, metric="val/acc").caveats)


def test_unfinished_and_damaged_runs_are_named_and_left_out(tmp_path, write_run):
    write_run(tmp_path, seed=0)
    failed = write_run(tmp_path, seed=1, status="failed")
    broken = write_run(tmp_path, seed=2)
    (broken / "run.json").write_text('{"status": "fin')
    found = compared(tmp_path)
    assert found.summaries[0].interval.count == 1
    assert f"1 run is not finished and left out: {failed} (failed)" in found.caveats
    assert any(f"1 record is damaged and left out: cannot read {broken / 'run.json'}" in text for text in found.caveats)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json", "[]"),
        ("config.yaml", "model: ["),
        ("metrics.json", '{"test/acc": "good"}'),
        ("metrics.json", "{}"),
        ("metrics.csv", "epoch,step,seconds\r\n1,2,three\r\n"),
        ("predictions.npz", "no archive"),
    ],
)
def test_every_damaged_part_of_a_record_is_named(tmp_path, write_run, name, content):
    write_run(tmp_path, seed=0)
    broken = write_run(tmp_path, seed=1)
    (broken / name).write_text(content)
    found = load_results([tmp_path])
    ((folder, why),) = found.damaged
    assert folder == str(broken)
    assert name in why
    assert compare(found).summaries[0].interval.count == 1


def test_only_listed_runs_are_compared(tmp_path, write_run):
    kept = write_run(tmp_path / "sweep", seed=0)
    removed = write_run(tmp_path / "sweep", seed=1)
    removed.rename(removed.with_name(f".{removed.name}.removed"))
    (kept / "checkpoints" / "run.json").write_text((kept / "run.json").read_text())
    found = load_results([tmp_path, tmp_path / "sweep", kept])
    assert [run.folder.resolve() for run in found.runs] == [kept]
    assert found.damaged == []


def test_invalid_predictions_damage_the_record(tmp_path, write_run):
    write_run(tmp_path, seed=0)
    broken = write_run(tmp_path, seed=1)
    for arrays in (
        {"labels": np.arange(100) % 10},
        {"labels": np.arange(100) % 10, "logits": np.zeros((99, 10))},
        {"labels": np.arange(100) % 10, "logits": np.zeros((100, 4))},
    ):
        np.savez(broken / "predictions.npz", **arrays)
        found = compared(tmp_path)
        assert found.summaries[0].interval.count == 1
        (caveat,) = [text for text in found.caveats if text.startswith("1 record is damaged and left out: ")]
        assert str(broken) in caveat


def test_runs_of_one_value_are_compared_and_none_is_selected_by_its_result(tmp_path, write_run):
    for seed, data in enumerate(["digits", "mnist", "mnist"]):
        write_run(
            tmp_path, f"data={data}", seed=seed, labels=(np.arange(100) + seed) % 10, predictions=data == "digits"
        )
    with pytest.raises(
        RunError, match=r"one of them \(data=digits leaves out others, --across data compares on each\)"
    ):
        compared(tmp_path)
    found = compare(load_results([tmp_path], ["data=mnist"]))
    assert [run.seed for run in found.runs] == [1, 2]
    for wrong, problem in {
        "data=minst": "no run has data=minst",
        "dat=mnist": "no run has a column dat; did you mean",
        "test/acc=0.9": "is not a key of the configuration",
    }.items():
        with pytest.raises(RunError, match=problem):
            load_results([tmp_path], [wrong])


def test_different_test_sets_are_refused(tmp_path, write_run):
    write_run(tmp_path, seed=0)
    other = write_run(tmp_path, seed=1, labels=(np.arange(100) + 1) % 10)
    with pytest.raises(RunError, match=r"use different test sets.*run-s0.*; .*run-s1.*give runs of only one"):
        compared(tmp_path)
    assert compared(tmp_path, metric="val/acc").findings.comparisons == []
    (other / "predictions.npz").unlink()
    assert compared(tmp_path), "what is not known to differ is not refused"
    write_run(tmp_path, seed=2, predictions=False, facts={"images": {"train": 1293, "val": 144, "test": 300}})
    with pytest.raises(RunError, match=r"digits, 360 images: .* and 1 more; digits, 300 images"):
        compared(tmp_path)


def test_different_validation_splits_are_refused_for_validation_metrics(tmp_path, write_run):
    write_run(tmp_path, seed=0)
    write_run(tmp_path, seed=1, facts={"validation": "other"})
    with pytest.raises(RunError, match="use different validation splits"):
        compared(tmp_path, metric="val/acc")


def test_different_losses_are_refused_where_a_loss_is_compared(tmp_path, write_run):
    write_run(tmp_path, predictions=False)
    write_run(tmp_path, "loss.label_smoothing=0.1", "loss.class_weights=balanced", predictions=False)
    assert compared(tmp_path, metric="test/loss"), "what is of training alone changes no measure"
    write_run(tmp_path, "loss=focal", predictions=False)
    match = r"different losses: cross_entropy \(2 runs\) and focal loss.gamma=2 \(1 run\); .*--metric test/acc"
    with pytest.raises(RunError, match=match):
        compared(tmp_path, metric="test/loss")
    assert compared(tmp_path, metric="test/acc")
    write_run(tmp_path / "targets", "data.targets=[digit,above5]", predictions=False)
    write_run(tmp_path / "targets", "data.targets=[digit]", predictions=False)
    with pytest.raises(RunError, match="different losses: cross_entropy of 2 targets"):
        compared(tmp_path / "targets", metric="val/loss")


def test_time_to_target_counts_the_runs_that_reached_it(tmp_path, write_run):
    write_run(tmp_path, seed=0, acc=0.9)  # 0.45, 0.675, 0.7875, 0.84375 after 2, 4, 6, 8 s
    write_run(tmp_path, seed=1, acc=0.8)  # 0.4, 0.6, 0.7, 0.75
    (row,) = compared(tmp_path, target=0.7).summaries
    assert (row.seconds_to_target.mean, row.reached_target) == (6.0, 2)
    (row,) = compared(tmp_path, target=0.8).summaries
    assert (row.seconds_to_target.mean, row.reached_target) == (8.0, 1)
    (row,) = compared(tmp_path, target=0.99).summaries
    assert (row.seconds_to_target, row.reached_target) == (None, 0)


def test_rows_that_were_not_tested_do_not_count_as_not_different(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.9], rope=[0.91], none=[0.92], conv=[0.93])
    (counted,) = [text for text in compared(tmp_path).findings.sentences if text.startswith("of 3 configurations")]
    assert counted == "of 3 configurations compared with learned: 3 without a verdict"


def test_float32_error_is_no_variance(tmp_path, write_run):
    right = {"learned": (138, 140, 141), "rope": (139, 141, 142)}
    for scheme, counts in right.items():
        for seed, count in enumerate(counts):
            acc = float(np.float32(count / 144))
            write_run(tmp_path, f"position={scheme}", seed=seed, acc=acc, predictions=False)
    (sentence,) = sentences_of(tmp_path)["rope"]
    assert sentence.startswith("rope and learned: all pairs differ by exactly 0.69 points, so no test is possible")


def test_a_bound_that_is_not_zero_is_not_shown_as_zero():
    accuracy, loss = Metric("test/acc"), Metric("test/loss")
    assert (accuracy.signed(0.00003), accuracy.signed(-0.00003)) == ("+0.003", "-0.003")
    assert (accuracy.signed(0.0), accuracy.number(1e-12)) == ("0.00", "0.00")
    assert loss.magnitude(0.00002) == "0.00002 nats"
    assert (accuracy.size(0.00004), accuracy.size(0.0124)) == ("0.004 points", "1.24 points")
    assert (format_p(0.04996), format_p(0.0504)) == ("0.04996", "0.050")
    assert Metric("best_epoch").title == "best epoch"


def test_equal_seeds_have_an_interval_only_where_images_are_counted(tmp_path, write_run):
    for seed in range(3):
        for scheme in ("learned", "rope"):
            values = {"test/acc": 0.9, "test/acc/above5": 0.9, "test/balanced_acc": 0.9, "test/loss": 0.1}
            write_run(tmp_path, f"position={scheme}", seed=seed, metrics=values)
    for metric in ("test/acc", "test/acc/above5"):
        (best,) = compared(tmp_path, metric=metric).findings.sentences
        assert best.endswith(": learned, 90.00 ± 0.20 % over 3 runs")  # t(0.975, 2) = 4.303, times 1 / 360 / 6
    for metric, value in (("test/balanced_acc", "90.00 %"), ("test/loss", "0.1000 nats")):
        (best,) = compared(tmp_path, metric=metric).findings.sentences
        assert best.endswith(f": learned, {value} over 3 runs")


@pytest.mark.parametrize("name", ["weight_loss", "seconds", "ece"])
@pytest.mark.parametrize("kind", ["class_acc", "acc"])
def test_the_accuracy_of_a_class_or_target_is_one_whatever_its_name(tmp_path, write_run, kind, name):
    metric = f"test/{kind}/{name}"
    for scheme, accs in {"learned": (0.90, 0.91, 0.92), "rope": (0.95, 0.961, 0.97)}.items():
        for seed, acc in enumerate(accs):
            write_run(tmp_path, f"position={scheme}", seed=seed, metrics={metric: acc})
    (tested,) = compared(tmp_path, metric=metric).findings.comparisons
    assert tested.verdict == "better"
    assert tested.sentences[0].startswith("rope is better than learned by 5.03 points ")


@pytest.mark.parametrize("metric", ["test/auroc", "test/macro_f1", "val/ece", "test/class_ap/dog"])
def test_intervals_of_a_metric_between_0_and_1_are_between_them(tmp_path, write_run, metric):
    for scheme, values in {"learned": (0.004, 0.001, 0.012), "rope": (0.999, 0.9999, 0.7)}.items():
        for seed, value in enumerate(values):
            write_run(tmp_path, f"position={scheme}", seed=seed, metrics={metric: value, "test/loss": value})
    found, losses = (compared(tmp_path, metric=name) for name in (metric, "test/loss"))
    for row in found.summaries:
        assert 0 < row.interval.low < row.interval.mean < row.interval.high < 1
        assert "[" in found.metric.interval(row.interval), "it is not symmetric"
    assert min(row.interval.low for row in losses.summaries) < 0
    differences = [one.findings.comparisons[0].difference.high for one in (found, losses)]
    assert differences[1] > 1
    assert math.isnan(differences[0]) if metric == "val/ece" else differences[0] == 1


def test_a_metric_has_its_own_unit_and_direction_whatever_it_is_of():
    assert Metric("test/class_ap/loss").value(0.5) == "0.5000"
    assert Metric("test/loss/seconds").value(0.5) == "0.5000 nats"
    assert Metric("train_seconds").value(0.5) == "0.5 s"
    lower = [
        "train_seconds",
        "val/worst_error",
        "val/error_rate",
        "test/nll",
        "val/rmse_of_depth",
        "val/loss",
        "test/loss/acc",
        "test/ece",
        "test/ece/acc",
    ]
    assert all(Metric(name).lower_is_better for name in lower)
    for name in ("val/acc", "test/acc/above5", "test/auroc", "test/ece", "test/class_ap/dog"):
        assert difference_problem(name, 1)
        assert not difference_problem(name, 0.99)
    assert not any(difference_problem(name, 1) for name in ("test/loss", "train_seconds", "val/depth_error"))


@pytest.mark.parametrize("minutes", [(0, 0), (9, 5)], ids=["at once", "the reference last"])
def test_trials_are_in_the_order_of_the_sweep(tmp_path, write_run, minutes):
    command = "model=vit_nano position=rope,learned seed=0,1,2"
    trials = []
    for scheme, minute in zip(("rope", "learned"), minutes, strict=True):
        for seed in range(3):
            facts = {"started": f"2026-01-31T12:{minute:02d}:00+00:00"}
            run = write_run(tmp_path, f"position={scheme}", seed=seed, sweep=command, facts=facts, predictions=False)
            run = run.rename(tmp_path / f"position-{scheme}_seed-{seed}")
            trials.append({"folder": run.name})
    (tmp_path / "sweep.json").write_text(json.dumps({"trials": trials}))
    assert compared(tmp_path).findings.baseline.label == "rope"


def test_of_several_sweeps_that_which_began_first_has_the_baseline(tmp_path, write_run):
    """Whichever of its trials began first; one that failed before it began has no start."""
    for name, schemes in (("later", ["rope", "learned"]), ("earlier", ["none", "sincos2d"])):
        trials = []
        for hour, scheme in enumerate(reversed(schemes), start=12 if name == "later" else 8):
            facts = {"started": f"2026-01-31T{hour:02d}:00:00+00:00"}
            run = write_run(tmp_path / name, f"position={scheme}", facts=facts, predictions=False)
            trials.insert(0, {"folder": run.name})
        (tmp_path / name / "sweep.json").write_text(json.dumps({"trials": trials}))
    write_run(tmp_path / "later", "position=conv", status="failed", facts={"started": ""})
    assert compared(tmp_path).findings.baseline.label == "none"


def test_models_that_were_tested_on_other_images_are_not_paired_by_image(tmp_path, write_run):
    """Sorted labels of classes of one size are the same, whatever the images."""
    for scheme, files in (("learned", "a"), ("rope", "b")):
        fingerprint = {"data_fingerprint": {"test": {"images": 100, "names": files, "pixels": files}}}
        for seed, acc in enumerate((0.90, 0.92, 0.91)):
            write_run(tmp_path, f"position={scheme}", seed=seed, acc=acc, facts=fingerprint)
    with pytest.raises(RunError, match="use different test sets"):
        compared(tmp_path)
    found = compared(tmp_path, accept_changed_data=True)
    assert any("use different test sets" in caveat for caveat in found.caveats)
    (tested,) = found.findings.comparisons
    assert tested.on_images is None
    assert not tested.difference.new_images


def test_a_lost_run_hardly_changes_the_seeds_that_a_difference_takes(tmp_path, write_run):
    """Equal seeds are correlated; that shows from nine pairs as well as from ten."""
    accs = np.linspace(0.92, 0.95, 10)
    rows = {"learned": accs, "rope": accs + np.tile([0.0004, -0.0004], 5)}
    shown = {}
    for lost in (0, 1):
        folder = tmp_path / str(lost)
        write_rows(write_run, folder, **rows | {"rope": rows["rope"][: 10 - lost]})
        (sentence,) = sentences_of(folder)["rope"]
        shown[lost] = float(re.search(r"80 % power: ([\d.]+) points", sentence)[1])
    assert shown[1] == pytest.approx(shown[0], rel=0.3)


def test_pairs_that_all_differ_by_the_same_tell_of_no_power_where_a_run_is_lost(tmp_path, write_run):
    accs = [0.90, 0.91, 0.93, 0.95, 0.92]
    write_rows(write_run, tmp_path, learned=accs, rope=[acc + 0.01 for acc in accs[:4]])
    (sentence,) = sentences_of(tmp_path)["rope"]
    assert sentence.startswith("rope and learned: no significant difference over 4 and 5 seeds")
    assert "power" not in sentence


def in_groups(path, groups=None, rule="patient"):
    """Let a run be of grouped images, in ``groups`` if it stores them."""
    record = RunRecord.open(path)
    record.write_config(record.config | {"data": record.config["data"] | {"group": rule}})
    if groups is not None:
        with np.load(path / "predictions.npz") as stored:
            np.savez(path / "predictions.npz", **{**stored, "groups": groups})


@pytest.fixture
def of_patients(tmp_path, write_run):
    """Runs on a hundred images of twenty patients, on whom the two schemes are right or wrong as a whole."""
    patients = np.arange(100) // 5
    for scheme, wrong in (("learned", (4, 4, 5)), ("rope", (2, 3, 2))):
        for seed, count in enumerate(wrong):
            right = patients >= count
            write_run(tmp_path, f"position={scheme}", seed=seed, acc=right.mean(), right=right)
    return sorted(tmp_path.iterdir()), patients


def test_images_that_come_in_groups_are_no_independent_sample(tmp_path, of_patients):
    for path in of_patients[0]:
        in_groups(path)
    caveats = compared(tmp_path).caveats
    (caveat,) = (text for text in caveats if "groups" in text)
    assert caveat.startswith("test images come in groups (data.group=patient), and in which ones is not stored:")
    assert caveat.endswith(", so both are too small; --fixed-images has intervals over seeds for these images")
    results = load_results([tmp_path])
    assert not any("groups" in text for text in compare(results, metric="val/acc").caveats)
    one_seed = load_results([path for path in of_patients[0] if RunRecord(path).config["seed"] == 0])
    for found in (compare(results, fixed_images=True), compare(one_seed)):
        assert "over images alone" in found.findings.comparisons[0].sentences[1]
        (caveat,) = (text for text in found.caveats if "groups" in text)
        assert caveat.endswith(": p-values and intervals over images take each as independent, so both are too small")


def test_where_groups_are_stored_they_are_the_sample(tmp_path, of_patients):
    paths, patients = of_patients
    of_images = compared(tmp_path).findings.comparisons[0]
    in_groups(paths[0], patients)  # of the same images: what one run knows holds for all
    for path in paths[1:]:
        in_groups(path)
    found = compared(tmp_path)
    (tested,) = found.findings.comparisons
    assert not any("groups" in text for text in found.caveats)
    assert "variance over groups of test images" in found.findings.method
    assert tested.difference.mean == of_images.difference.mean
    assert tested.difference.image_freedom == 19
    assert tested.difference.image_variance == pytest.approx(5 * of_images.difference.image_variance, rel=0.1)
    assert of_images.difference.high - of_images.difference.low < tested.difference.high - tested.difference.low
    assert tested.on_images.only == [], "McNemar's test takes images as independent"
    assert tested.sentences[1].startswith("on the same 100 test images in 20 groups, the difference is ")
    assert tested.sentences[1].endswith(" points over groups alone (95 % interval, Student's t)")
    half = stats.t.ppf(0.975, 19) * math.sqrt(tested.difference.image_variance)
    assert tested.on_images.high - tested.on_images.low == pytest.approx(2 * half, rel=0.2)


def test_groups_by_two_rules_and_a_single_one_are_no_sample(tmp_path, of_patients):
    paths, patients = of_patients
    for path in paths:
        is_rope = RunRecord(path).config["model"]["position"] == "rope"
        in_groups(path, *((patients // 2, "ward") if is_rope else (patients, "patient")))
    (caveat,) = (text for text in compared(tmp_path).caveats if "groups" in text)
    assert caveat.startswith(
        "test images come in groups (data.group=patient and ward), which differ between runs: p-values and "
    )
    for path in paths:
        in_groups(path, np.repeat([0, 1, 2], [90, 5, 5]))  # one patient has nearly all images
    (tested,) = compared(tmp_path).findings.comparisons
    assert not tested.difference.new_images
    assert tested.on_images is None


def test_what_groups_leave_in_doubt_is_a_caveat(tmp_path, of_patients):
    paths, patients = of_patients
    for path in paths:
        in_groups(path, patients // 2)
    compared_groups = compared(tmp_path, difference_of_interest=0.001)
    (caveat,) = (text for text in compared_groups.caveats if "groups" in text)
    assert caveat.startswith(
        "test images come in 10 groups (data.group=patient): intervals for other images do not know"
    )
    assert compared_groups.findings.comparisons[0].sentences[0].endswith("takes more groups of test images")
    in_groups(paths[0], patients)
    (caveat,) = (text for text in compared(tmp_path).caveats if "groups" in text)
    assert "(data.group=patient), which differ between runs: " in caveat, "by one rule, as after an edited column"


def test_intervals_over_groups_of_several_rows_are_of_each_alone(tmp_path, of_patients, write_run):
    paths, patients = of_patients
    for seed in range(3):
        right = patients >= 3 + (seed == 1)
        paths.append(write_run(tmp_path, "position=none", seed=seed, acc=right.mean(), right=right))
    for path in paths:
        in_groups(path, patients)
    said = sentences_of(tmp_path)
    assert all(said[row][1].endswith("(95 % interval, Student's t, of these rows alone)") for row in ("rope", "none"))
