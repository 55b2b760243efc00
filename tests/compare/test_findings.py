"""What is said in words, and what is warned of or refused."""

import numpy as np
import pytest
from scipy import stats

from vitrine.compare.comparison import compare
from vitrine.compare.load import gather
from vitrine.errors import RunError


def compared(folder, **options):
    return compare(gather([folder]), **options)


def words_of(folder, **options) -> dict[str, list[str]]:
    return {one.row.label: one.words for one in compared(folder, **options).findings.comparisons}


def write_rows(write_run, folder, **accs):
    for scheme, values in accs.items():
        for seed, acc in enumerate(values):
            write_run(folder, f"position={scheme}", seed=seed, acc=acc, predictions=False)


def test_a_difference_that_is_there_is_said_with_its_interval_and_seeds(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.98, 0.981, 0.979, 0.982, 0.98], rope=[0.984, 0.985, 0.984, 0.985, 0.985])
    said = compared(tmp_path)
    assert words_of(tmp_path) == {"rope": ["rope is better than learned by 0.42 points (0.32 to 0.52), 5 seeds"]}
    assert said.findings.words == ["highest mean test accuracy of 2 configurations: rope, 98.46 ± 0.07 % over 5 runs"]
    assert words_of(tmp_path, baseline="rope") == {
        "learned": ["learned is worse than rope by 0.42 points (0.32 to 0.52), 5 seeds"]
    }


def test_of_losses_less_is_better(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.90, 0.91, 0.92], rope=[0.95, 0.961, 0.97])
    found = compared(tmp_path, metric="test/loss")
    assert found.findings.words == ["lowest mean test loss of 2 configurations: rope, 0.0397 ± 0.0249 nats over 3 runs"]
    assert [one.row.label for one in found.summaries] == ["rope", "learned"]
    assert found.summaries[0].best == pytest.approx(0.03)
    (one,) = found.findings.comparisons
    assert one.verdict == "better"
    assert one.words == ["rope is better than learned by 0.0503 nats (0.0489 to 0.0518), 3 seeds"]


def test_a_difference_that_cannot_be_told_says_how_many_seeds_would_show_it(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.98, 0.983], rope=[0.9838, 0.983])
    (words,) = words_of(tmp_path)["rope"]
    # 17 are the fewest pairs whose t, noncentral by 0.002 / 0.00269 * sqrt(17), is beyond its 5 % bound in 80 %.
    assert words == "rope and learned: no difference can be told from 2 seeds; about 17 would show 0.2 points"
    assert words_of(tmp_path, smallest=0.004)["rope"] == [
        "rope and learned: no difference can be told from 2 seeds; about 6 would show 0.4 points"
    ]


def test_pairs_that_all_differ_by_the_same_are_not_judged(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.5, 0.75], rope=[0.625, 0.875])
    (one,) = compared(tmp_path).findings.comparisons
    assert one.verdict == "open"
    assert one.words == ["rope and learned: all pairs differ by the same 12.50 points, which 2 seeds cannot judge"]


def test_a_run_that_diverged_is_named_and_not_counted(tmp_path, write_run):
    write_run(tmp_path, seed=0)
    reached = {"test/acc": 0.1, "val/acc": 0.1, "test/loss": float("nan")}
    lost = write_run(tmp_path, seed=1, metrics=reached)
    found = compared(tmp_path, metric="test/loss")
    assert found.summaries[0].interval.count == 1
    told = f"1 of the runs diverged, test/loss being no number, and are not counted: {lost}"
    assert told in found.caveats
    with pytest.raises(RunError, match="every run diverged"):
        compared(lost, metric="test/loss")


def test_one_seed_is_not_enough_to_say_anything(tmp_path, write_run):
    write_rows(write_run, tmp_path, learned=[0.9], rope=[0.99])
    found = compared(tmp_path)
    assert found.findings.comparisons[0].words == [
        "rope and learned: no difference can be told from 1 seed; 3 at least are needed"
    ]
    assert "fewer than 3 seeds, which say little of a mean: every row" in found.caveats


def test_what_holds_alone_but_not_among_many_comparisons_is_said_so(tmp_path, write_run):
    write_rows(
        write_run,
        tmp_path,
        learned=[0.90, 0.91, 0.92, 0.905],
        rope=[0.915, 0.93, 0.926, 0.917],
        none=[0.90, 0.92, 0.91, 0.90],
        conv=[0.91, 0.90, 0.92, 0.90],
        alibi2d=[0.899, 0.915, 0.91, 0.92],
    )
    words = words_of(tmp_path)["rope"][0]
    assert words.startswith(
        "rope and learned: no difference can be told from 4 seeds once 4 comparisons are corrected for"
    )
    rope = next(one for one in compared(tmp_path).findings.comparisons if one.row.label == "rope")
    assert rope.difference.p < 0.05 < rope.p
    assert rope.p == pytest.approx(4 * rope.difference.p)


def test_seeds_that_do_not_match_are_compared_as_groups(tmp_path, write_run):
    for scheme, seeds in (("learned", (0, 1, 2)), ("rope", (7, 8, 9, 10))):
        for seed in seeds:
            acc = {"learned": 0.9, "rope": 0.95}[scheme] + 0.001 * (seed % 3)
            write_run(tmp_path, f"position={scheme}", seed=seed, acc=acc, predictions=False)
    words = words_of(tmp_path)["rope"]
    assert words[0].endswith("4 and 3 seeds, not paired"), "the row's seeds, and then the baseline's"


def test_predictions_tell_two_single_models_apart_where_seeds_cannot(tmp_path, write_run):
    right = np.arange(100) < 80
    write_run(tmp_path, "position=learned", acc=0.8, right=right)
    write_run(tmp_path, "position=rope", acc=0.92, right=(np.arange(100) < 95) & (np.arange(100) >= 3))
    (one,) = compared(tmp_path).findings.comparisons
    assert one.on_images.only == [(15, 3)]
    assert one.on_images.p == [pytest.approx(stats.binomtest(3, 18).pvalue)]
    assert one.words[1].startswith(
        "on the same 100 test images these two models differ: rope alone has 15 right, learned alone 3 "
        "(McNemar's exact test, p = 0.008); over images alone the difference is +"
    )
    low, high = one.on_images.low, one.on_images.high
    assert low < 0.12 < high
    assert (low, high) == pytest.approx((0.12 - 1.96 * 0.0406, 0.12 + 1.96 * 0.0406), abs=0.012)


def test_mcnemars_p_values_are_corrected_for_all_pairs(sweep):
    found = compared(sweep).findings.comparisons
    alone = [stats.binomtest(one, one + other).pvalue for row in found for one, other in row.on_images.only]
    assert len(alone) == 6
    assert min(p for row in found for p in row.on_images.p) == pytest.approx(min(1, 6 * min(alone)))
    rope = next(one for one in found if one.row.label == "rope")
    assert "tells 0 of 3 pairs of models with the same seed apart; over images alone" in rope.words[1]


def test_mcnemars_test_says_which_side_has_more_right(tmp_path, write_run):
    every = np.arange(100)
    for seed, right in enumerate((every < 60, every < 60, every < 90)):
        write_run(tmp_path, "position=learned", seed=seed, acc=0.6, right=right)
        write_run(tmp_path, "position=rope", seed=seed, acc=0.9, right=every < 90 if seed < 2 else every < 60)
    words = compared(tmp_path).findings.comparisons[0].words[1]
    assert "tells 3 of 3 pairs of models with the same seed apart: rope has more right in 2, learned in 1;" in words


def test_the_bootstrap_is_of_the_runs_that_the_difference_is_of(tmp_path, write_run):
    every = np.arange(100)
    for seed in range(3):
        write_run(tmp_path, "position=learned", seed=seed, acc=0.8, right=every < 80)
    for seed in range(2):
        write_run(tmp_path, "position=rope", seed=seed, acc=0.8, right=every < 80)
    write_run(tmp_path, "position=learned", seed=3, acc=0.1, right=every < 10)
    (one,) = compared(tmp_path).findings.comparisons
    assert (one.difference.mean, one.difference.counts) == (0, (2, 2))
    assert (one.on_images.low, one.on_images.high) == (0, 0)


def test_only_of_a_difference_that_was_asked_for_it_is_said_that_it_would_have_been_seen(tmp_path, write_run):
    learned = [0.9, 0.91, 0.92, 0.905, 0.9]
    apart = [0.0, 0.004, 0.001, 0.0045, 0.002]
    write_rows(write_run, tmp_path, learned=learned, rope=[a + b for a, b in zip(learned, apart, strict=True)])
    assert "would probably have been seen" not in " ".join(words_of(tmp_path)["rope"])
    words = words_of(tmp_path, smallest=0.02)["rope"]
    assert words[0].endswith("told from 5 seeds; a difference of 2 points would probably have been seen")


@pytest.mark.parametrize(
    ("facts", "warned"),
    [
        (
            {"validation": "other"},
            "runs were chosen on different validation images: 292becf10e12e92c (1 run) and other (1 run)",
        ),
        (
            {"code": {"commit": "fedcba98", "changed": True}},
            "versions of the code: 0123456 (1 run) and fedcba9",
        ),
        (
            {"code": {"commit": "0123456789abcdef", "changed": True}},
            "1 of 2 runs were made by code that was not committed",
        ),
        ({"versions": {"torch": "2.11.0"}}, "different versions of torch: 2.15.0 (1 run) and 2.11.0 (1 run)"),
        ({"epochs": 9}, "runs trained for different numbers of epochs: 4 (1 run) and 9 (1 run)"),
        (
            {"images": {"train": 1000, "val": 144, "test": 360}},
            "different data: digits, 1,293 images (1 run) and digits, 1,000",
        ),
        (
            {"device": "NVIDIA H200"},
            "images/s and times were measured on more than one device: CPU, 1 thread (1 run) and NVI",
        ),
    ],
)
def test_what_weakens_a_comparison_is_warned_of(tmp_path, write_run, facts, warned):
    write_run(tmp_path, seed=0)
    write_run(tmp_path, seed=1, facts=facts)
    assert any(warned in words for words in compared(tmp_path).caveats), compared(tmp_path).caveats


def test_three_seeds_of_one_configuration_leave_nothing_to_warn_of(tmp_path, write_run):
    for seed in range(3):
        write_run(tmp_path, seed=seed)
    found = compared(tmp_path)
    assert found.caveats == []
    assert found.findings.words == ["test accuracy of the configuration: 90.00 ± 0.00 % over 3 runs"]


def test_runs_that_their_search_pruned_are_counted_up_and_not_named(tmp_path, write_run):
    write_run(tmp_path, seed=0)
    for seed in (1, 2):
        write_run(tmp_path, seed=seed, status="pruned")
    assert "2 runs are not finished and not counted: 2 pruned by their search" in compared(tmp_path).caveats
    failed = write_run(tmp_path, seed=3, status="failed")
    told = f"3 runs are not finished and not counted: 2 pruned by their search and {failed} (failed)"
    assert told in compared(tmp_path).caveats


def test_the_best_of_many_by_test_images_is_warned_of(tmp_path, write_run):
    for number in range(6):
        write_run(tmp_path, seed=0, model={"drop_path": number / 10}, predictions=False)
    told = "the best of 6 rows is chosen on the test images themselves"
    assert any(words.startswith(told) for words in compared(tmp_path).caveats)
    assert not any(words.startswith("the best of") for words in compared(tmp_path, metric="val/acc").caveats)


def test_unfinished_and_damaged_runs_are_named_and_not_counted(tmp_path, write_run):
    write_run(tmp_path, seed=0)
    failed = write_run(tmp_path, seed=1, status="failed")
    broken = write_run(tmp_path, seed=2)
    (broken / "run.json").write_text('{"status": "fin')
    found = compared(tmp_path)
    assert found.summaries[0].interval.count == 1
    assert f"1 run is not finished and not counted: {failed} (failed)" in found.caveats
    assert any(
        f"1 record is damaged and not counted: cannot read {broken / 'run.json'}" in one for one in found.caveats
    )


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
    found = gather([tmp_path])
    ((folder, why),) = found.damaged
    assert folder == str(broken)
    assert name in why
    assert compare(found).summaries[0].interval.count == 1


def test_only_what_is_listed_as_a_run_is_compared(tmp_path, write_run):
    kept = write_run(tmp_path / "sweep", seed=0)
    removed = write_run(tmp_path / "sweep", seed=1)
    removed.rename(removed.with_name(f".{removed.name}.removed"))
    (kept / "checkpoints" / "run.json").write_text((kept / "run.json").read_text())
    found = gather([tmp_path, tmp_path / "sweep", kept])
    assert [run.folder.resolve() for run in found.runs] == [kept]
    assert found.damaged == []


def test_predictions_that_are_none_damage_the_record(tmp_path, write_run):
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
        (told,) = [words for words in found.caveats if words.startswith("1 record is damaged and not counted: ")]
        assert str(broken) in told


def test_other_test_images_are_refused(tmp_path, write_run):
    write_run(tmp_path, seed=0)
    other = write_run(tmp_path, seed=1, labels=(np.arange(100) + 1) % 10)
    with pytest.raises(RunError, match=r"tested on different test sets.*give runs of one.*run-s0.*; .*run-s1"):
        compared(tmp_path)
    assert compared(tmp_path, metric="val/acc").findings.comparisons == []
    (other / "predictions.npz").unlink()
    assert compared(tmp_path), "what is not known to differ is not refused"
    write_run(tmp_path, seed=2, predictions=False, facts={"images": {"train": 1293, "val": 144, "test": 300}})
    with pytest.raises(RunError, match=r"digits, 360 images: .* and 1 more; digits, 300 images"):
        compared(tmp_path)


def test_other_validation_images_are_refused_where_validation_is_compared(tmp_path, write_run):
    write_run(tmp_path, seed=0)
    write_run(tmp_path, seed=1, facts={"validation": "other"})
    with pytest.raises(RunError, match="validated on different images"):
        compared(tmp_path, metric="val/acc")


def test_time_to_an_accuracy_counts_who_reached_it(tmp_path, write_run):
    write_run(tmp_path, seed=0, acc=0.9)  # 0.45, 0.675, 0.7875, 0.84375 after 2, 4, 6, 8 s
    write_run(tmp_path, seed=1, acc=0.8)  # 0.4, 0.6, 0.7, 0.75
    (one,) = compared(tmp_path, target=0.7).summaries
    assert (one.seconds.mean, one.reached) == (6.0, 2)
    (one,) = compared(tmp_path, target=0.8).summaries
    assert (one.seconds.mean, one.reached) == (8.0, 1)
    (one,) = compared(tmp_path, target=0.99).summaries
    assert (one.seconds, one.reached) == (None, 0)
