"""The report's parallel coordinates: a line per configuration through its choices, its costs and its metric."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitrine.compare.comparison import Comparison
from vitrine.compare.costs import PARAMETERS, THROUGHPUT
from vitrine.compare.report.plots import is_number, sort_key
from vitrine.compare.report.style import Plot, RowStyles, escape, five_digits
from vitrine.compare.speeds import EQUAL_COST
from vitrine.figure_style import shorten
from vitrine.text import short_number

MAX_TICKS = 12  # of an axis with one tick per value


@dataclass(frozen=True)
class ParallelAxis:
    """An axis of parallel coordinates, from 0 to 1.

    Attributes:
        title: what it shows, escaped for Plotly.
        places: of each line.
        texts: value of each line, escaped.
        ticks: place and text of each tick.
    """

    title: str
    places: list[float]
    texts: list[str]
    ticks: list[tuple[float, str]]


def parallel_coordinates(compared: Comparison, styles: RowStyles) -> Plot | None:
    """Plot a line per configuration through its choices, its costs and its metric; ``None`` for less than two lines."""
    metric, summaries = compared.metric, compared.summaries
    if len(summaries) < 2 or not compared.table.columns:
        return None
    axes = [
        _choice_axis(styles.value(name), [styles.value(summary.row.values[name]) for summary in summaries])
        for name in compared.table.columns
    ]
    for kind in (PARAMETERS, THROUGHPUT):
        costs = [cost for summary in summaries if (cost := kind.value_of(summary)) is not None]
        if len(costs) == len(summaries) and max(costs) > EQUAL_COST * min(costs):
            axes.append(_numeric_axis(kind.title, costs))
    means = [metric.factor * summary.interval.mean for summary in summaries]
    axes.append(_numeric_axis(metric.heading, means))
    traces = []
    for index, summary in list(enumerate(summaries))[::-1]:  # the best on top
        colour, symbol, key = styles.style(summary.row)
        trace = {
            "type": "scatter",
            "mode": "lines+markers",
            "x": list(range(len(axes))),
            "y": five_digits(np.array([axis.places[index] for axis in axes])),
            "line": {"color": colour, "width": 1 if key == "others" else 2},
            "marker": {"color": colour, "symbol": symbol, "size": 4 if key == "others" else 7},
            "text": [f"{axis.title}: {axis.texts[index]}" for axis in axes],
            "hovertemplate": f"{styles.label(summary.row)}<br>%{{text}}<extra></extra>",
            "meta": {"row": key},
        }
        traces.append(trace)
    ticks = [
        {
            "x": place,
            "y": height,
            "text": text,
            "xanchor": "right",
            "xshift": -8,
            "showarrow": False,
            "font": {"size": 11},
        }
        for place, axis in enumerate(axes)
        for height, text in axis.ticks
    ]
    layout = {
        "height": 440,
        "xaxis": {
            "tickvals": list(range(len(axes))),
            "ticktext": [axis.title for axis in axes],
            "range": [-0.05, len(axes) - 0.95],
            "side": "top",
            "ticks": "",
            "showline": False,
        },
        "yaxis": {"visible": False, "range": [-0.05, 1.05]},
        "annotations": ticks,
        "margin": {"l": 100, "r": 60, "t": 60, "b": 10},
    }
    caption = "Each line is a configuration: its choices, what it costs, and its mean."
    return Plot("Choices and results", caption, traces, layout)


def _choice_axis(name: str, values: Sequence[str]) -> ParallelAxis:
    """An axis with one evenly spaced tick per value; numeric if there are too many values for that."""
    levels = sorted(dict.fromkeys(values), key=sort_key)
    if len(levels) > MAX_TICKS and all(map(is_number, levels)):
        return _numeric_axis(name, list(map(float, values)))
    place = {level: index / max(1, len(levels) - 1) if len(levels) > 1 else 0.5 for index, level in enumerate(levels)}
    short = dict(zip(levels, map(escape, shorten(levels, 14)), strict=True))
    ticks = [(place[level], short[level]) for level in levels]
    return ParallelAxis(escape(name), [place[value] for value in values], [short[value] for value in values], ticks)


def _numeric_axis(title: str, values: Sequence[float]) -> ParallelAxis:
    """A numeric axis with five ticks, logarithmic if the values span more than a factor of 20."""
    low, high = min(values), max(values)
    logarithmic = low > 0 and high > 20 * low
    scaled = np.log10(values) if logarithmic else np.array(values, dtype=float)
    span = float(np.ptp(scaled)) or 1.0
    places = (scaled - scaled.min()) / span
    texts = [_four_digits(value) for value in values]
    heights = np.linspace(0, 1, 5) if high > low else np.zeros(1)
    at = scaled.min() + span * heights
    ticks = [_four_digits(10**value if logarithmic else value) for value in at.tolist()]
    return ParallelAxis(escape(title), places.tolist(), texts, list(zip(heights.tolist(), ticks, strict=True)))


def _four_digits(value: float) -> str:
    """``98.46``, ``1.23 M``."""
    return short_number(value) if abs(value) >= 1000 else f"{value:.4g}"
