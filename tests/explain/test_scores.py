"""Scores of classes are scikit-learn's, and their intervals cover as often as they promise."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from vitrine.compare.predictions import Predictions, calibration
from vitrine.compare.report.prediction_plots import confusion_matrix
from vitrine.explain.results import (
    calibration_section,
    confusion_section,
    draw_images,
    draw_reliability,
    draw_scores,
    wrong_section,
)
from vitrine.explain.scores import class_scores, wilson


def test_scores_are_those_of_scikit_learn():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 6, 200)
    predicted = np.where(generator.random(200) < 0.7, labels, generator.integers(0, 6, 200))
    found = class_scores(labels, predicted, 6)
    precision, recall, f1, support = precision_recall_fscore_support(labels, predicted)
    for values, expected in ((found.recall, recall), (found.precision, precision), (found.f1, f1)):
        assert values[:, 0] == pytest.approx(expected)
        assert (values[:, 1] <= values[:, 0]).all()
        assert (values[:, 2] >= values[:, 0]).all()
    assert found.support.tolist() == support.tolist()


@pytest.mark.parametrize("several", [False, True])
def test_where_images_come_in_groups_the_intervals_are_of_as_many_as_tell_as_much(several):
    """Each image is there ten times, as of a patient: the intervals are about as wide as without the copies."""
    generator = np.random.default_rng(0)
    labels, predicted = (np.repeat(generator.integers(0, 3, 200), 10) for _ in range(2))
    if several:
        labels, predicted = (values[:, None] == np.arange(3) for values in (labels, predicted))
    found = class_scores(labels, predicted, 3, np.repeat(np.arange(200), 10))
    apart, copies = class_scores(labels[::10], predicted[::10], 3), class_scores(labels, predicted, 3)
    for name in ("recall", "precision", "f1"):
        values, once, ten = (getattr(one, name) for one in (found, apart, copies))
        assert values[:, 0] == pytest.approx(once[:, 0])
        assert np.ptp(values[:, 1:], axis=1) == pytest.approx(np.ptp(once[:, 1:], axis=1), rel=0.05)
        assert np.ptp(values[:, 1:], axis=1) == pytest.approx(np.sqrt(10) * np.ptp(ten[:, 1:], axis=1), rel=0.15)


def test_a_class_without_images_has_no_score_in_groups_either():
    found = class_scores(np.array([0, 0, 2]), np.array([0, 2, 2]), 4, np.arange(3))
    assert np.isnan(found.recall[[1, 3]]).all()
    assert not np.isnan(found.recall[[0, 2]]).any()


def test_wilsons_interval_ends_at_0_and_1_exactly_and_encloses_its_share():
    for count in range(1, 60):
        found = wilson(np.arange(count + 1), np.full(count + 1, count))
        assert (found[0, 1], found[-1, 2]) == (0, 1)
        assert (found[:, 1] <= found[:, 0]).all()
        assert (found[:, 0] <= found[:, 2]).all()


def test_wilsons_interval_is_the_published_one():
    """Newcombe (1998), Statistics in Medicine 17, table I, method 3: 81 of 263 and 0 of 20."""
    assert wilson(np.array([81, 0]), np.array([263, 20])) == pytest.approx(
        np.array([[81 / 263, 0.2553, 0.3662], [0, 0, 0.1611]]), abs=5e-5
    )


def test_a_class_without_images_has_no_score():
    found = class_scores(np.array([0, 0, 2]), np.array([0, 2, 2]), 4)
    assert np.isnan(found.recall[[1, 3]]).all()
    assert np.isnan(found.precision[[1, 3]]).all()
    assert found.support.tolist() == [2, 0, 1, 0]


def test_predictions_beyond_the_datas_classes_count_as_wrong():
    found = class_scores(np.array([0, 1]), np.array([0, 77]), 2)
    assert found.recall[:, 0].tolist() == [1, 0]


def test_names_written_from_right_to_left_keep_the_order_of_a_sentence():
    found = Predictions(np.array([0, 1, 1]), np.array([1, 1, 1]), np.ones(3), np.ones(3))
    text = confusion_section(found, ["قطة", "dog"]).text
    assert "Most often: \u2068قطة\u2069 as dog (1)." in text


@pytest.mark.parametrize("others", [0, 5])
def test_images_taken_for_an_output_that_is_no_class_are_mistakes(others):
    labels = np.arange(360) % 10
    predicted = labels.copy()
    predicted[:30], predicted[31 : 31 + 10 * others : 10] = 11, 0
    found = Predictions(labels, predicted, np.ones(360), np.ones(360))
    section = confusion_section(found, list("0123456789"))
    most = f" Most often: 1 as 0 ({others})." if others else ""
    outside = " 30 images were taken for an output without a class."
    always = " Always answering 0 would be right for 10.00 %."
    assert section.text == f"{30 + others} mistakes in 360 test images.{most}{always}{outside}"
    _, shares = section.figures
    assert shares.numbers[1][1] == f"{100 * 33 / 36:.1f}"
    assert shares.caption == "In per cent of the true class."
    row, styles = SimpleNamespace(), SimpleNamespace(name=lambda row: "A")
    plot = confusion_matrix(row, [found], list("0123456789"), styles)
    assert plot.caption.endswith(outside.strip())
    assert plot.traces[0]["meta"]["sizes"] == [36] * 10


@pytest.mark.parametrize(
    ("wrong", "text"), [(1, "Of 2 test images, 1 is wrong."), (2, "Of 2 test images, 2 are wrong.")]
)
def test_wrong_images_are_counted_in_a_sentence(wrong, text):
    images = SimpleNamespace(
        kind="test image", pixels=lambda chosen: np.zeros((len(chosen), 1, 8, 8), np.uint8), files=lambda chosen: []
    )
    found = Predictions(np.zeros(2, int), np.array([wrong - 1, 1]), np.full(2, 0.9), np.full(2, 0.1))
    assert wrong_section(images, found, ["a", "b"]).text == text


@pytest.mark.parametrize(
    ("confidence", "text"),
    [
        (0.75, "is as confident as it is accurate."),
        (0.70, "is underconfident by 5.00 points."),
        (0.80, "is overconfident by 5.00 points."),
    ],
)
def test_mean_confidence_is_compared_with_accuracy(confidence, text):
    found = Predictions(np.zeros(4, int), np.array([0, 0, 0, 1]), np.full(4, confidence), np.full(4, 0.5))
    assert calibration_section(calibration([found])).text.endswith(text)


def test_bars_of_neighbouring_bins_stand_side_by_side():
    confidences = np.array([0.0, 0.126, 0.143, 1.0])
    found = calibration([Predictions(np.zeros(4, int), np.zeros(4, int), confidences, confidences)])
    _, below = draw_reliability(found).axes
    edges = [edge for bar in below.patches for edge in (bar.get_x(), bar.get_x() + bar.get_width())]
    assert edges == sorted(edges)
    assert 0 <= edges[0] < edges[-1] <= 100


def test_long_names_of_classes_stay_apart():
    names = ["Corn_(maize)_rust", "Corn_(maize)_healthy"]
    (axes,) = draw_scores(class_scores(np.array([0, 1]), np.array([0, 1]), 2), [1, 0], names).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Corn_(m…ealthy", "Corn_(m…)_rust"]
    rows = [[str(index), *pair, "90.0", "5.0"] for index, pair in enumerate((names, names[::-1]))]
    first, second, *_ = draw_images(np.zeros((2, 1, 8, 8), np.uint8), rows, names).axes
    assert first.get_title() != second.get_title()
    assert first.get_xlabel() != second.get_xlabel()


def test_the_interval_of_f1_covers_its_value():
    """Of 1,000 samples of 200 images, 95 % of the intervals hold the F1 of the population, within two points."""
    generator = np.random.default_rng(1)
    shares = np.array([0.32, 0.05, 0.08, 0.55])  # right, missed, taken for it, elsewhere
    true_f1 = 2 * shares[0] / (2 * shares[0] + shares[1] + shares[2])
    correct, missed, taken, _ = generator.multinomial(200, shares, size=1000).T
    overlap = wilson(correct, correct + missed + taken)
    low, high = (2 * overlap / (1 + overlap))[:, 1:].T
    assert abs(((low <= true_f1) & (true_f1 <= high)).mean() - 0.95) < 0.02
