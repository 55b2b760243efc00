"""Plots of predictions."""

import warnings

import numpy as np
import pytest

from vitrine.compare.comparison import compare
from vitrine.compare.load import load_results
from vitrine.compare.predictions import Predictions, calibration
from vitrine.compare.report.prediction_plots import class_accuracies, confusion_matrix, reliability_diagram
from vitrine.compare.report.style import RowStyles


def test_a_class_without_test_images_has_no_accuracy_and_gives_no_warning(tmp_path, write_sweep):
    compared = compare(load_results([write_sweep(tmp_path)]))
    labels, predicted, sure = np.array([0, 0, 2, 2]), np.array([0, 0, 2, 1]), np.full(4, 0.9)
    runs = [Predictions(labels, predicted, sure, sure)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot = class_accuracies([(compared.summaries[0].row, runs)], ["ant", "bee", "newt"], RowStyles(compared))
    assert plot.traces[0]["z"] == [[100.0, None, 50.0]]
    assert "The hardest is newt: 50.0 % on average of these." in plot.caption


@pytest.mark.parametrize(
    ("rows", "missing", "shown"),
    [
        (8, 0, ""),
        (8, 1, "Of 8 configurations, 7 are shown: where predictions are stored. Of these, "),
        (9, 0, "Of 9 configurations, 8 are shown: the best and the baseline. Of these, "),
        (9, 7, "Of 9 configurations, 1 is shown: the best and the baseline, where predictions are stored. "),
    ],
)
def test_captions_are_about_the_configurations_that_are_shown(tmp_path, write_run, rows, missing, shown):
    for number in range(rows):
        write_run(tmp_path, acc=0.9 - 0.01 * number, model={"drop_path": 0.01 * number}, predictions=False)
    styles, even = RowStyles(compare(load_results([tmp_path]))), np.arange(4) % 2
    by_row = [(row, [Predictions(even, even, np.full(4, 0.9), even)]) for row in styles.coloured[missing:]]
    caption = reliability_diagram([(row, calibration(runs)) for row, runs in by_row], styles).caption
    has = "an" if len(by_row) == 1 else "the lowest"
    assert caption.startswith(f"{shown}{styles.name(by_row[0][0])} has {has} expected calibration error ")
    caption = class_accuracies(by_row, ["ant", "bee"], styles).caption
    assert caption == f"Test accuracy on each class, in %. {shown.removesuffix('Of these, ')}".strip(), "all are alike"


@pytest.mark.parametrize(
    ("labels", "predicted", "hardest", "mistaken"),
    [
        ([0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 2, 2], " The hardest is ant: 50.0 % on average.", ""),
        ([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 2, 2], " The hardest are ant and bee: 50.0 % on average.", ""),
        ([0, 0, 1, 1, 2, 2], [1, 1, 1, 1, 2, 2], " The hardest is ant: 0.0 % on average.", "ant for bee, 2 of 2. "),
        (
            [0, 0, 1, 1, 2, 2],
            [1, 1, 2, 2, 1, 1],
            "",
            "ant for bee, 2 of 2, and 2 other pairs of classes as often. ",
        ),
    ],
)
def test_ties_are_no_findings(tmp_path, write_run, labels, predicted, hardest, mistaken):
    write_run(tmp_path, predictions=False)
    styles, sure = RowStyles(compare(load_results([tmp_path]))), np.full(6, 0.9)
    (row,), runs, names = (
        styles.coloured,
        [Predictions(np.array(labels), np.array(predicted), sure, sure)],
        ["ant", "bee", "newt"],
    )
    caption = class_accuracies([(row, runs)], names, styles).caption
    assert caption == f"Test accuracy on each class, in %.{hardest}"
    most = f"Most often, {styles.name(row)} mistakes {mistaken}" if mistaken else ""
    caption = confusion_matrix(row, runs, names, styles).caption
    assert caption == f"{most}Mistakes are coloured by their share of the true class."
