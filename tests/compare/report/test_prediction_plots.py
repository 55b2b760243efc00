"""Plots of predictions."""

import warnings

import numpy as np

from vitrine.compare.comparison import compare
from vitrine.compare.load import load_results
from vitrine.compare.predictions import Predictions
from vitrine.compare.report.prediction_plots import class_accuracies
from vitrine.compare.report.style import RowStyles


def test_a_class_without_test_images_has_no_accuracy_and_gives_no_warning(tmp_path, write_sweep):
    compared = compare(load_results([write_sweep(tmp_path)]))
    labels, predicted, sure = np.array([0, 0, 2, 2]), np.array([0, 0, 2, 1]), np.full(4, 0.9)
    runs = [Predictions(labels, predicted, sure, sure)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot = class_accuracies([(compared.summaries[0].row, runs)], ["ant", "bee", "newt"], RowStyles(compared))
    assert plot.traces[0]["z"] == [[100.0, None, 50.0]]
    assert "The hardest is newt: 50.0 % on average" in plot.caption
