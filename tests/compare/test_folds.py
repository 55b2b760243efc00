"""Folds are repetitions that share training images: one row, paired, with intervals that allow for the overlap."""

import itertools

import numpy as np
import pytest
from scipy import stats

from vitrine.compare.caveats import _fold_caveat
from vitrine.compare.comparison import compare
from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.compare.difference import difference
from vitrine.compare.folds import Fold
from vitrine.compare.load import load_results
from vitrine.compare.table import ConfigurationRow, Table
from vitrine.errors import RunError
from vitrine.sweeps.summary import mixed_images
from vitrine.sweeps.sweep import best_configuration
from vitrine.sweeps.trial import TrialResult

LEARNED = [0.90, 0.93, 0.91, 0.89, 0.92]
ROPE = [0.94, 0.95, 0.94, 0.93, 0.95]


@pytest.fixture
def folds(tmp_path, write_run):
    """Writes five folds of two schemes, each validated on images of its own."""
    for scheme, accuracies in (("learned", LEARNED), ("rope", ROPE)):
        for fold, acc in enumerate(accuracies):
            write(write_run, tmp_path, fold, acc, position=scheme)
    return tmp_path


def write(write_run, folder, fold, acc, *, position, split=0, **options):
    words = [f"position={position}", "data.folds=5", f"data.fold={fold}", f"data.val_seed={split}"]
    facts = {"validation": f"{split}-{fold}", "images": {"train": 1150 - fold % 2, "val": 287 + fold % 2, "test": 360}}
    metrics = {"val/acc": acc, "val/loss": 1 - acc, "test/acc": acc, "test/loss": 1 - acc, "train_seconds": 1.0}
    write_run(folder, *words, facts=facts, metrics=metrics, predictions=False, **options)


def test_folds_are_repetitions_of_one_row_and_intervals_are_corrected(folds):
    found = compare(load_results([folds]), metric="val/acc")
    assert [row.label for row in found.table.rows] == ["learned", "rope"]
    assert found.table.columns == ["position"]
    (tested,) = found.findings.comparisons
    differences = np.array(ROPE) - np.array(LEARNED)
    variance = differences.var(ddof=1) * (1 / 5 + 1 / 4)  # Nadeau and Bengio: 287 validation images to 1,150
    half_width = stats.t.ppf(0.975, 4) * variance**0.5
    assert (tested.difference.low, tested.difference.high) == pytest.approx(
        (differences.mean() - half_width, differences.mean() + half_width)
    )
    assert tested.difference.p == pytest.approx(2 * stats.t.sf(differences.mean() / variance**0.5, 4))
    assert "5 folds" in tested.sentences[0]
    assert "on these" not in tested.sentences[0], "each fold is validated on images of its own"
    assert "on these 360 images" in compare(load_results([folds]), metric="test/acc").sentences[-1]
    assert "over 5 folds" in found.findings.sentences[0]
    assert found.summaries[0].interval.half_width == pytest.approx(
        stats.t.ppf(0.975, 4) * (np.var(ROPE, ddof=1) * (1 / 5 + 1 / 4)) ** 0.5
    )
    caveats = " ".join(found.caveats)
    assert "Nadeau and Bengio" in caveats
    assert "different validation splits" not in caveats
    assert "different data" not in caveats


@pytest.mark.whole
def test_several_seeds_on_a_fold_count_once_and_another_division_repeats(folds, write_run):
    write(write_run, folds, 0, 0.96, position="rope", seed=1)
    found = compare(load_results([folds]), metric="val/acc")
    (tested,) = found.findings.comparisons
    assert tested.difference.counts == (5, 5)
    mean = np.mean([(0.94 + 0.96) / 2, *ROPE[1:]])
    assert tested.difference.mean == pytest.approx(mean - np.mean(LEARNED))
    assert found.findings.sentences[0].startswith("highest mean validation accuracy of 2 configurations: rope")
    for scheme, accuracies in (("learned", LEARNED), ("rope", ROPE)):
        for fold, acc in enumerate(accuracies[:4]):
            write(write_run, folds, fold, acc - 0.005, position=scheme, split=1)
    found = compare(load_results([folds]), metric="val/acc")
    assert found.table.columns == ["position"]
    assert found.findings.comparisons[0].difference.counts == (9, 9)
    assert "not every fold ran: learned (9 of 10) and rope (9 of 10)" in " ".join(found.caveats)


def test_each_number_of_folds_is_whole_by_itself():
    ran = {"three": [Fold(number, 3, 0) for number in range(3)], "five": [Fold(number, 5, 0) for number in range(3)]}
    rows = [ConfigurationRow(label, {}, dict.fromkeys(folds)) for label, folds in ran.items()]
    assert _fold_caveat(Table([], rows, {}, [])).endswith("; not every fold ran: five (3 of 5)")


def test_a_division_that_a_filter_leaves_out_may_have_been_chosen_by_its_result(tmp_path, write_run):
    for scheme, gain in (("learned", 0.0), ("rope", 0.03)):
        for split, sign in enumerate((1, -1)):
            for fold in range(3):
                acc = LEARNED[fold] + sign * (gain + fold * gain / 30)
                write(write_run, tmp_path, fold, acc, position=scheme, split=split)
    (tmp_path / "sweep.json").write_text('{"trials": []}')
    found = compare(load_results([tmp_path], ["data.val_seed=0"]), metric="test/acc")
    (tested,) = found.findings.comparisons
    assert "no verdict, since seeds or folds that ran are left out" in tested.sentences[0]
    assert not any("of the sweep" in caveat for caveat in found.caveats), "no configuration is left out"


@pytest.mark.parametrize("baseline", ["learned", "rope"])
def test_folds_beside_seeds_are_called_so_and_enlarge_the_intervals_that_they_are_in(tmp_path, write_run, baseline):
    for fold, acc in enumerate(ROPE):
        write(write_run, tmp_path, fold, acc, position="rope")
    for seed, acc in enumerate(LEARNED):
        write_run(tmp_path, "position=learned", seed=seed, acc=acc, predictions=False)
        write_run(tmp_path, "position=none", seed=seed, acc=acc - 0.01 * (seed + 1), predictions=False)
    found = compare(load_results([tmp_path]), metric="test/acc", baseline=f"position={baseline}")
    mean, method = (next(note for note in found.notes if text in note) for text in ("±", "of differences"))
    assert "of the mean over seeds or folds (Student's t)" in mean
    enlarged = "enlarged for shared training images (Nadeau and Bengio, 2003)"
    assert f"{enlarged}{' in 1 of 2' if baseline == 'learned' else ''}; " in method
    assert "over 5 seeds or folds; " in method
    (sentence, *_) = next(
        one.sentences
        for one in found.findings.comparisons
        if {one.row.values["position"], baseline} == {"learned", "rope"}
    )
    counts = "5 seeds and 5 folds" if baseline == "rope" else "5 folds and 5 seeds"
    assert f"{counts}, unpaired" in sentence
    assert "detect" not in sentence, "the number of folds is no choice"


@pytest.mark.whole
def test_folds_and_a_plain_validation_split_are_not_compared(folds, write_run):
    write_run(folds, "position=rope", acc=0.9)
    with pytest.raises(RunError, match="use different validation splits"):
        compare(load_results([folds]), metric="val/acc")


@pytest.mark.whole
def test_learning_curves_over_data_are_about_one_draw_of_it(tmp_path, write_run):
    for fraction, count in (("0.1", 129), ("0.5", 646)):
        for seed in range(3):
            images = {"train": count, "val": 144, "test": 360}
            options = {"seed": seed, "acc": float(fraction) + seed / 100, "facts": {"images": images}}
            write_run(tmp_path, f"data.train_fraction={fraction}", predictions=False, **options)
    found = compare(load_results([tmp_path]))
    assert found.table.columns == ["data.train_fraction"]
    assert "different data" not in " ".join(found.caveats)
    assert "the same part of the images (data.subset_seed=0): intervals are about this draw" in " ".join(found.caveats)


@pytest.mark.parametrize(
    ("draw", "caveat"),
    [
        (
            lambda seed, repeat: repeat,
            "the seeds of a row train on the same parts of the images (data.subset_seed=0,1)",
        ),
        (lambda seed, repeat: 3 * repeat + seed, ""),
    ],
    ids=["all seeds on both", "another of each seed"],
)
def test_a_row_over_several_draws_of_its_data_is_about_them_unless_they_vary_with_the_seed(
    tmp_path, write_run, draw, caveat
):
    for scheme in ("learned", "rope"):
        for seed, repeat in itertools.product(range(3), range(2)):
            words = [f"position={scheme}", "data.train_fraction=0.1", f"data.subset_seed={draw(seed, repeat)}"]
            write_run(tmp_path, *words, seed=seed, acc=0.9 + seed / 100, predictions=False)
    found = compare(load_results([tmp_path]), by="position")
    about = [text.partition(":")[0] for text in found.caveats if "data.subset_seed" in text]
    assert about == ([caveat] if caveat else [])


def test_without_overlap_nothing_changes():
    values, others = dict(enumerate(ROPE)), dict(enumerate(LEARNED))
    result = stats.ttest_rel(ROPE, LEARNED)
    assert difference(values, others).p == pytest.approx(result.pvalue)
    assert difference(values, others, overlap=0.25).p > result.pvalue
    assert ConfidenceInterval.of(ROPE).half_width < ConfidenceInterval.of(ROPE, 0.25).half_width


def test_a_sweep_ranks_means_over_folds_and_its_command_trains_without_them():
    varies = [{"patch": patch, "data.fold": str(fold)} for patch in ("2", "4") for fold in range(3)]
    accuracies = [0.9, 0.7, 0.8, 0.85, 0.84, 0.86]
    results = [TrialResult("finished", {"val/acc": acc}) for acc in accuracies]
    best = best_configuration(varies, results)
    assert best is not None
    assert (best.varies, best.count, best.mean) == ({"patch": "4"}, 3, pytest.approx(0.85))
    common = ["model=vit_nano", "depth='3'", "data.root='my pictures/a.csv'", "data.folds=3"]
    assert best.command(common).endswith(
        "model=vit_nano depth=3 'data.root=my pictures/a.csv' patch=4 data.folds=null data.fold=null"
    )


def test_a_sweep_ranks_means_over_divisions_into_folds():
    varies, results = [], []
    for scheme, of_divisions in {"learned": (0.87, 0.95), "rope": (0.92, 0.92)}.items():
        for split, acc in enumerate(of_divisions):
            for fold in range(5):
                varies.append({"position": scheme, "data.val_seed": str(split), "data.fold": str(fold)})
                results.append(TrialResult("finished", {"val/acc": acc}, validation=(f"{split}-{fold}", "labels")))
    best = best_configuration(varies, results)
    assert best is not None
    assert (best.varies, best.count) == ({"position": "rope"}, 10)
    assert mixed_images(varies, results) == ""
