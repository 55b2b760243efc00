"""Stored predictions against torchmetrics and scikit-learn, and counts that can be made by hand."""

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, f1_score, recall_score
from torchmetrics.functional.classification import multiclass_calibration_error

from vitrine.compare.load import load_results
from vitrine.compare.predictions import (
    Predictions,
    calibration,
    confusion,
    correct_images,
    hardest_images,
    per_class_accuracy,
    per_class_f1,
)


def judged(predicted, labels, confidence=None, chance=None) -> Predictions:
    labels = np.array(labels)
    confidence = np.full(len(labels), 0.9) if confidence is None else np.array(confidence)
    chance = np.zeros(len(labels)) if chance is None else np.array(chance)
    return Predictions(labels, np.array(predicted), confidence, chance)


def test_probabilities_are_the_softmax_of_the_stored_logits(tmp_path, write_run):
    (run,) = load_results([write_run(tmp_path, acc=0.87)]).runs
    predictions = Predictions.of(run)
    probabilities = torch.tensor(run.logits).softmax(dim=1)
    assert predictions.correct.mean() == pytest.approx(0.87)
    assert torch.allclose(torch.tensor(predictions.confidence), probabilities.max(dim=1).values)
    assert torch.allclose(
        torch.tensor(predictions.true_probability), probabilities[torch.arange(100), torch.tensor(run.labels)]
    )


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        ([[0.1, np.nextafter(np.float32(0.1), np.float32(1)), 0.0]], [1]),  # probabilities in float32 are equal
        ([[0.1, -0.1, 0.2]], [[1, 0, 1]]),
    ],
)
def test_an_image_is_right_by_its_logits_wherever_that_is_asked(tmp_path, write_run, logits, labels):
    folder = write_run(tmp_path)
    path = folder / "predictions.npz"
    np.savez(path, logits=np.array(logits, np.float32), labels=np.array(labels))
    assert Predictions.of(load_results([folder]).runs[0]).correct.tolist() == correct_images(path).tolist() == [True]


def test_calibration_error_is_torchmetrics(tmp_path, write_run):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(5000, 10, generator=generator)
    labels = torch.where(torch.rand(5000, generator=generator) < 0.6, logits.argmax(1), torch.randint(0, 10, (5000,)))
    folder = write_run(tmp_path)
    np.savez(folder / "predictions.npz", logits=logits.numpy(), labels=labels.numpy())
    found = calibration([Predictions.of(load_results([folder]).runs[0])])
    expected = multiclass_calibration_error(logits.softmax(1), labels, num_classes=10, n_bins=15, norm="l1")
    assert found.error == pytest.approx(float(expected), abs=1e-6)
    assert found.count.sum() == 5000
    assert np.average(found.accuracy, weights=found.count) == pytest.approx(
        float((logits.argmax(1) == labels).float().mean())
    )


def test_a_fully_confident_model_with_half_accuracy_has_error_one_half():
    found = calibration([judged([0, 0], [0, 1], [1.0, 1.0])])
    assert (found.error, found.count.tolist(), found.accuracy.tolist()) == (0.5, [2], [0.5])


def test_the_error_of_several_runs_is_the_mean_of_theirs():
    sure, unsure = judged([0, 1], [0, 0], [0.8, 0.8]), judged([0, 0], [0, 0], [0.8, 0.8])
    assert calibration([sure, unsure]).error == pytest.approx((0.3 + 0.2) / 2), "together they would be 0.05 off"


def test_confusion_counts_true_by_predicted_over_runs():
    runs = [judged([0, 1, 1], [0, 0, 1]), judged([0, 0, 1], [0, 0, 1])]
    assert confusion(runs, 3).tolist() == [[3, 1, 0], [0, 2, 0], [0, 0, 0]]


@pytest.mark.parametrize("multi_label", [False, True])
def test_scores_of_classes_are_those_of_scikit_learn(multi_label):
    random = np.random.default_rng(0)
    if multi_label:
        labels, predicted = random.random((2, 90, 4)) < 0.3
    else:
        labels, predicted = random.integers(0, 4, 90), random.integers(0, 6, 90)  # some are taken for no class
        counts = confusion_matrix(labels, predicted, labels=range(4))
        assert confusion([judged(predicted, labels)], 4).tolist() == counts.tolist()
    for ours, theirs in ((per_class_accuracy, recall_score), (per_class_f1, f1_score)):
        expected = theirs(labels, predicted, labels=range(4), average=None)
        assert ours([judged(predicted, labels)], 4)[0] == pytest.approx(expected)


def test_class_accuracy_is_nan_for_a_class_without_images():
    shares = per_class_accuracy([judged([0, 1, 1], [0, 0, 1])], 3)
    assert shares[0, :2].tolist() == [0.5, 1.0]
    assert np.isnan(shares[0, 2])


def test_the_hardest_images_come_first_with_the_class_predicted():
    labels = [3, 3, 3, 3]
    runs = [
        judged([3, 5, 5, 3], labels, chance=[0.9, 0.2, 0.1, 0.8]),
        judged([3, 5, 7, 1], labels, chance=[0.9, 0.2, 0.1, 0.4]),
        judged([3, 8, 5, 3], labels, chance=[0.9, 0.2, 0.1, 0.8]),
    ]
    found = hardest_images(runs, 3)
    assert [(image.index, image.errors, image.mistaken_for) for image in found] == [
        (2, 3, 5),
        (1, 3, 5),
        (3, 1, 1),
    ]
    assert len(hardest_images(runs, 9)) == 3, "an image that all have right is not hard"
