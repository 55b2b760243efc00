"""The report's Plotly plots of stored predictions: reliability diagram, accuracy per class, confusion matrices."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vitrine.compare.predictions import Calibration, Predictions, confusion, per_class_accuracy, per_class_f1
from vitrine.compare.report.style import OTHER, Plot, RowStyles, escape, five_digits
from vitrine.compare.table import ConfigurationRow
from vitrine.figure_style import shorten
from vitrine.text import isolated, listed, plural

MAX_TEXT_COLUMNS = 12  # of a heatmap whose cells have room for a number
MAX_TABLE_CLASSES = 25


def reliability_diagram(calibrations: Sequence[tuple[ConfigurationRow, Calibration]], styles: RowStyles) -> Plot:
    """Plot accuracy against confidence."""
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [0, 100],
            "y": [0, 100],
            "line": {"color": OTHER, "width": 1, "dash": "dot"},
            "hoverinfo": "skip",
            "meta": {},
        }
    ]
    for row, calibrated in calibrations[::-1]:
        colour, symbol, key = styles.style(row)
        hover = f"{styles.label(row)}: confidence %{{x:.1f}} %, accuracy %{{y:.1f}} %, %{{text}}<extra></extra>"
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": five_digits(100 * calibrated.confidence),
                "y": five_digits(100 * calibrated.accuracy),
                "text": [plural(count, "image") for count in calibrated.count.tolist()],
                "line": {"color": colour, "width": 2},
                "marker": {"color": colour, "symbol": symbol, "size": 7},
                "hovertemplate": hover,
                "meta": {"row": key},
            }
        )
    best, lowest = min(calibrations, key=lambda pair: pair[1].error)
    shown = styles.shown(len(calibrations))
    lead, has = ("Of these, " if shown else "", "the lowest") if len(calibrations) > 1 else ("", "an")
    caption = (
        f"{shown} {lead}{styles.name(best)} has {has} expected calibration error (15 bins, mean over runs): "
        f"{100 * lowest.error:.1f} points. Below the dotted line, a model is overconfident."
    ).strip()
    layout = {
        "height": 420,
        "xaxis": {"title": {"text": "confidence (%)"}, "range": [0, 103]},
        "yaxis": {"title": {"text": "accuracy (%)"}, "range": [0, 103]},
        "hovermode": "closest",
    }
    numbers = [["configuration", "ECE (points)"]]
    numbers += [[row.label, f"{100 * calibrated.error:.2f}"] for row, calibrated in calibrations]
    return Plot("Calibration", caption, traces, layout, numbers)


def class_accuracies(
    by_row: Sequence[tuple[ConfigurationRow, list[Predictions]]], names: list[str], styles: RowStyles
) -> Plot:
    """Plot the accuracy on each class: rows by classes. Where images have several labels, it is F1."""
    multi_label = by_row[0][1][0].multi_label
    score, what = (per_class_f1, "F1 of each class") if multi_label else (per_class_accuracy, "accuracy on each class")
    accuracies = np.array([score(runs, len(names)).mean(axis=0) for _, runs in by_row])
    rows, short_names = [styles.label(row) for row, _ in by_row], list(map(escape, shorten(names, 14)))
    texts = [["" if np.isnan(value) else f"{100 * value:.1f}" for value in line] for line in accuracies]
    shown = styles.shown(len(by_row))
    caption = f"Test {what}, in %. {shown}".strip()
    if hardest := _hardest(accuracies, names):
        caption += f" The hardest {hardest}{' of these' if shown else ''}."
    numbers = [["configuration", *names]]
    numbers += [[row.label, *line] for (row, _), line in zip(by_row, texts, strict=True)]
    plot = heatmap(
        "F1 per class" if multi_label else "Accuracy per class",
        caption,
        short_names,
        rows,
        ("class", "configuration"),
        numbers,
    )
    plot.traces[0] |= {
        "z": [[None if np.isnan(value) else round(100 * float(value), 2) for value in line] for line in accuracies],
        "text": texts,
    }
    return plot


def _hardest(accuracies: np.ndarray, names: list[str]) -> str:
    """Return which classes have the lowest mean of (rows, classes) accuracies; empty if all have, to 0.1 %."""
    means = np.ma.masked_invalid(accuracies).mean(axis=0).filled(np.inf)  # masked: a class without test images
    shown = np.round(1000 * means)
    hardest = np.flatnonzero(shown == shown.min())
    if len(hardest) == np.isfinite(means).sum():
        return ""
    classes = listed([isolated(names[index]) for index in hardest], 3)
    return f"{'is' if len(hardest) == 1 else 'are'} {classes}: {100 * means.min():.1f} % on average"


def confusion_matrix(row: ConfigurationRow, runs: Sequence[Predictions], names: list[str], styles: RowStyles) -> Plot:
    """Plot the confusion matrix over all runs of a row."""
    counts = confusion(runs, len(names))
    class_sizes = np.sum([np.bincount(run.labels, minlength=len(names))[: len(names)] for run in runs], axis=0)
    error_rates = counts / np.maximum(class_sizes, 1)[:, None]
    np.fill_diagonal(error_rates, np.nan)  # correct predictions would dominate the colour scale
    name = styles.name(row)
    parts = []
    if np.nansum(error_rates) > 0:
        true, predicted = np.unravel_index(int(np.nanargmax(error_rates)), error_rates.shape)
        others = int((error_rates == error_rates[true, predicted]).sum()) - 1
        if counts[true, predicted] > 1:
            tied = f", and {plural(others, 'other pair')} of classes as often" if others else ""
            share = f"{counts[true, predicted]} of {class_sizes[true]}"
            mistake = f"{isolated(names[true])} for {isolated(names[predicted])}"
            parts.append(f"Most often, {name} mistakes {mistake}, {share}{tied}.")
        parts.append(f"Counts are sums over {plural(len(runs), 'run')}." if len(runs) > 1 else "")
        parts.append("Mistakes are coloured by their share of the true class.")
    if outside := sum(int((run.predicted >= len(names)).sum()) for run in runs):
        parts.append(f"{plural(outside, 'image was', 'images were')} taken for an output without a class.")
    caption = " ".join(filter(None, parts)) or f"{name} classifies every test image correctly."
    numbers = [["true \\ predicted", *names]] if len(names) <= MAX_TABLE_CLASSES else []
    numbers += [[label, *map(str, line)] for label, line in zip(names, counts.tolist(), strict=True)] if numbers else []
    axes, short_names = ("predicted class", "true class"), list(map(escape, shorten(names, 14)))
    plot = heatmap("Confusion matrix", caption, short_names, short_names, axes, numbers, name)
    # The page computes shares and texts, which keeps it small.
    plot.traces[0]["meta"] |= {"counts": counts.tolist(), "sizes": class_sizes.tolist()}
    return plot


def heatmap(
    title: str,
    caption: str,
    columns: list[str],
    rows: list[str],
    axes: tuple[str, str],
    numbers: list[list[str]],
    choice: str = "",
) -> Plot:
    """Return a heatmap without values, of ``rows`` by ``columns``; few columns leave room for a text in each cell."""
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": columns,
        "y": rows,
        "texttemplate": "%{text}" if len(columns) <= MAX_TEXT_COLUMNS else "",
        "hovertemplate": f"{axes[1]} %{{y}}, {axes[0]} %{{x}}: %{{text}}<extra></extra>",
        "colorscale": "Blues",
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
        "meta": {},
    }
    layout = {
        "height": 140 + max(180, min(620, 34 * len(rows))),
        "xaxis": {"title": {"text": axes[0]}, "type": "category", "showgrid": False, "ticks": "", "automargin": True},
        "yaxis": {
            "title": {"text": axes[1]},
            "type": "category",
            "autorange": "reversed",
            "showgrid": False,
            "ticks": "",
            "automargin": True,
        },
    }
    return Plot(title, caption, [trace], layout, numbers, choice)
