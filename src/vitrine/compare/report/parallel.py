"""Parallel coordinates: a sweep's choices, costs and outcome, a line for each configuration."""

from typing import Any

import numpy as np

from vitrine.compare.comparison import Compared
from vitrine.compare.costs import PARAMETERS, SPEED, counted
from vitrine.compare.report.plots import SAME, by_number
from vitrine.compare.report.style import OTHER, Looks, Plot, distinct, escaped, unit_of


def parallel(compared: Compared, looks: Looks) -> Plot | None:
    """A line for each configuration through its choices, what it costs, and what it reaches."""
    metric = compared.metric
    axes: list[tuple[str, list[float], list[float], list[str]]] = []  # title, places, ticks, their texts
    for column in compared.table.columns:
        values = [one.row.values[column] for one in compared.summaries]
        levels = list(dict.fromkeys(row.values[column] for row in compared.table.rows))
        levels.sort(key=by_number)
        places = np.linspace(0, 1, len(levels)).tolist() if len(levels) > 1 else [0.5]
        axes.append(
            (column, [places[levels.index(value)] for value in values], places, list(map(escaped, distinct(levels))))
        )
    for kind in (PARAMETERS, SPEED):
        costs = [cost for one in compared.summaries if (cost := kind.of(one)) is not None]
        if len(costs) == len(compared.summaries) and max(costs) > SAME * min(costs):
            axes.append(_numeric(kind.title.replace(" in training", ""), costs, "{:.3g}"))
    scaled = [metric.factor * one.interval.mean for one in compared.summaries]
    axes.append(_numeric(f"{metric.title}{unit_of(metric)}", scaled, "{:.2f}" if metric.is_accuracy else "{:.4g}"))
    if len(axes) < 2 or len(compared.summaries) < 2:
        return None
    traces: list[dict[str, Any]] = []
    for index, one in reversed(list(enumerate(compared.summaries))):
        colour, symbol, row = looks.of(one.row)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": list(range(len(axes))),
                "y": [places[index] for _, places, _, _ in axes],
                "line": {"color": colour, "width": 2, "shape": "spline", "smoothing": 0.6},
                "marker": {"color": colour, "symbol": symbol, "size": 8},
                "opacity": 0.35 if row == "others" else 0.95,
                "hovertemplate": f"{looks.label(one.row)}: {metric.value(one.interval.mean)}<extra></extra>",
                "meta": {"row": row},
            }
        )
    notes = [
        {"x": x, "y": tick, "text": text, "showarrow": False, "xanchor": "left", "xshift": 7, "font": {"size": 11}}
        for x, (_, _, ticks, texts) in enumerate(axes)
        for tick, text in list(zip(ticks, texts, strict=True))[:12]
    ]
    lines = [
        {"type": "line", "x0": x, "x1": x, "y0": -0.02, "y1": 1.02, "line": {"color": OTHER, "width": 1}}
        for x in range(len(axes))
    ]
    layout = {
        "height": 420,
        "xaxis": {
            "tickvals": list(range(len(axes))),
            "ticktext": [title.replace(" ", "<br>") for title, *_ in axes],
            "range": [-0.3, len(axes) - 0.5],
            "tickangle": 0,
            "showgrid": False,
            "zeroline": False,
            "ticks": "",
        },
        "yaxis": {"visible": False, "range": [-0.08, 1.08]},
        "annotations": notes,
        "shapes": lines,
        "hovermode": "closest",
    }
    words = "Each line is a configuration: its choices from left to right, what it costs, and what it reaches."
    return Plot("Choices and outcome", words, traces, layout)


def _numeric(title: str, values: list[float], form: str) -> tuple[str, list[float], list[float], list[str]]:
    low, high = min(values), max(values)
    ticks = np.linspace(low, high, 3) if high > low else np.array([low])
    places = [(value - low) / (high - low) if high > low else 0.5 for value in values]
    texts = [counted(tick) if form == "{:.3g}" else form.format(tick) for tick in ticks]
    return title, places, np.linspace(0, 1, 3).tolist() if high > low else [0.5], texts
