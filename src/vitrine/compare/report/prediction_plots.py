"""The report's plots of stored predictions: calibration, classes, what is taken for what."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vitrine.compare.predictions import Calibration, Judged, confusion, per_class
from vitrine.compare.report.style import OTHER, Looks, Plot, distinct, escaped, five_digits
from vitrine.compare.table import Row
from vitrine.text import plural

READABLE = 12  # columns of a grid whose cells have room for a number


def reliability(calibrations: Sequence[tuple[Row, Calibration]], looks: Looks) -> Plot:
    """Share of images that are right against confidence."""
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
    for row, one in calibrations[::-1]:
        colour, symbol, word = looks.of(row)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": five_digits(100 * one.confidence),
                "y": five_digits(100 * one.accuracy),
                "text": [plural(count, "image") for count in one.count.tolist()],
                "line": {"color": colour, "width": 2},
                "marker": {"color": colour, "symbol": symbol, "size": 7},
                "hovertemplate": f"{looks.label(row)}: %{{x:.1f}} % sure, %{{y:.1f}} % right, %{{text}}<extra></extra>",
                "meta": {"row": word},
            }
        )
    best = min(calibrations, key=lambda pair: pair[1].error)
    words = (
        f"{looks.name(best[0])} has the lowest expected calibration error, {100 * best[1].error:.1f} points: the mean "
        "over its runs of how far confidence is from accuracy, over 15 bins. Below the dotted line a model is too sure."
    )
    layout = {
        "height": 420,
        "xaxis": {"title": {"text": "confidence (%)"}, "range": [0, 103]},
        "yaxis": {"title": {"text": "images that are right (%)"}, "range": [0, 103]},
        "hovermode": "closest",
    }
    numbers = [["configuration", "ECE (points)"]]
    numbers += [[row.label, f"{100 * one.error:.2f}"] for row, one in calibrations]
    return Plot("Is confidence earned?", words, traces, layout, numbers)


def classes(by_row: Sequence[tuple[Row, list[Judged]]], names: list[str], looks: Looks) -> Plot:
    """Share of each class's images that are right: rows by classes."""
    shares = np.array([per_class(some, len(names)).mean(axis=0) for _, some in by_row])
    rows, short_names = [looks.label(row) for row, _ in by_row], list(map(escaped, distinct(names, 14)))
    texts = [["" if np.isnan(value) else f"{100 * value:.1f}" for value in line] for line in shares]
    over_rows = np.nanmean(shares, axis=0) if not np.isnan(shares).all() else np.zeros(len(names))
    worst = int(np.nanargmin(over_rows))
    words = f"Share of each class's test images that are right, in %. Hardest is {names[worst]}: "
    words += f"{100 * over_rows[worst]:.1f} % on average."
    numbers = [["configuration", *names]]
    numbers += [[row.label, *line] for (row, _), line in zip(by_row, texts, strict=True)]
    axes = ("class", "configuration")
    plot = heatmap("Class by class", words, short_names, rows, axes, numbers)
    plot.traces[0] |= {
        "z": [[None if np.isnan(value) else round(100 * float(value), 2) for value in line] for line in shares]
    }
    plot.traces[0]["text"] = texts
    return plot


def confusions(row: Row, some: Sequence[Judged], names: list[str], looks: Looks) -> Plot:
    """True class by predicted class, of all runs of a row."""
    counts = confusion(some, len(names))
    of_class = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(of_class, 1)
    wrong = shares.copy()
    np.fill_diagonal(wrong, np.nan)  # what is right would outshine every mistake
    label = looks.name(row)
    words = f"{label} has every test image right."
    if np.nansum(wrong) > 0:
        true, taken = np.unravel_index(int(np.nanargmax(wrong)), wrong.shape)
        share = f"{counts[true, taken]} of {int(of_class[true, 0])}"
        words = f"Most often {label} takes {names[true]} for {names[taken]}: {share}. "
        words += f"Counts are over {plural(len(some), 'run')}; only mistakes are coloured, by their share of the class."
    numbers = [["true \\ predicted", *names]] if len(names) <= 25 else []
    numbers += [[name, *map(str, line)] for name, line in zip(names, counts.tolist(), strict=True)] if numbers else []
    axes, short_names = ("predicted class", "true class"), list(map(escaped, distinct(names, 14)))
    title = "What is taken for what"
    plot = heatmap(title, words, short_names, short_names, axes, numbers, label)
    plot.traces[0]["meta"]["counts"] = counts.tolist()  # the page makes shares and texts of it: a third of the size
    if len(names) <= READABLE:
        plot.layout["annotations"] = [
            {"x": name, "y": name, "text": str(counts[place, place] or ""), "showarrow": False}
            for place, name in enumerate(short_names)
        ]
    return plot


def heatmap(
    title: str, words: str, across: list[str], down: list[str], axes: tuple[str, str], numbers: list[list[str]],
    choice: str = "",
) -> Plot:  # fmt: skip
    """An empty grid, ``down`` by ``across``, that shows a text in each cell where there is room."""
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": across,
        "y": down,
        "texttemplate": "%{text}" if len(across) <= READABLE else "",
        "hovertemplate": f"{axes[1]} %{{y}}, {axes[0]} %{{x}}: %{{text}}<extra></extra>",
        "colorscale": "Blues",
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
        "meta": {},
    }
    layout = {
        "height": 140 + max(180, min(620, 34 * len(down))),
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
    return Plot(title, words, [trace], layout, numbers, choice)
