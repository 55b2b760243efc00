"""The report's plots, as plotly takes them: traces and layout, plain values. Colours of text and grid are the page's.

Each trace says in ``meta`` which row it belongs to, so that the page can hide and show a row in all plots at once.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vitrine.compare.comparison import Compared, Summary, summarise
from vitrine.compare.costs import COSTS
from vitrine.compare.metric import Metric
from vitrine.compare.report.style import (
    COLOURS,
    OTHER,
    Looks,
    Plot,
    distinct,
    escaped,
    five_digits,
    unit_of,
    written,
)
from vitrine.compare.table import Row
from vitrine.text import listed

MOST_ROWS = 40  # drawn in a plot that grows with them
SAME = 1.02  # costs within 2 % are one cost
MOST_POINTS = 60  # of a curve


def means(compared: Compared, looks: Looks) -> Plot:
    """Each row's mean with its interval, and every run."""
    metric, traces = compared.metric, []
    drawn = _drawn(compared)
    labels = [looks.label(one.row) for one in drawn]
    for summary, label in zip(drawn, labels, strict=True):
        colour, symbol, row = looks.of(summary.row)
        half = summary.interval.half * metric.factor
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [metric.factor * value for value in summary.values],
                "y": [label] * len(summary.values),
                "marker": {"symbol": "line-ns", "size": 12, "line": {"color": colour, "width": 2}},
                "hovertemplate": f"{label}: %{{x:.4~f}}{metric.unit}<extra>one run</extra>",
                "meta": {"row": row},
            }
        )
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [metric.factor * summary.interval.mean],
                "y": [label],
                "error_x": {"type": "data", "array": [None if np.isnan(half) else half], "color": colour, "width": 5},
                "marker": {"color": colour, "size": 11, "symbol": symbol},
                "hovertemplate": f"{label}: %{{x:.4~f}}{metric.unit}<extra>mean</extra>",
                "meta": {"row": row},
            }
        )
    layout = {
        "height": 110 + 34 * len(labels),
        "xaxis": {"title": {"text": f"{metric.title}{unit_of(metric)}"}},
        "yaxis": {
            "categoryorder": "array",
            "categoryarray": labels[::-1],
            "showgrid": False,
            "ticks": "",
            "automargin": True,
        },
        "hovermode": "closest",
    }
    words = "Large marks are means with their 95 % intervals, strokes single runs; the best mean stands on top."
    words += _left_out(compared)
    return Plot("Every configuration", words, traces, layout)


CURVES = ("val/acc", "val/loss", "train/loss", "train/acc")


def curves(compared: Compared, looks: Looks) -> list[Plot]:
    """Metrics over epochs: a line for the mean over seeds, a band from the lowest to the highest."""
    plots = []
    drawn = [one.row for one in _drawn(compared)]
    for name in CURVES:
        metric, traces, last = Metric(name), [], {}
        for row in drawn[::-1]:  # the best on top
            epochs, mean, low, high = _curve(row, name)
            if not len(epochs):
                continue
            colour, _, word = looks.of(row)
            label, shared = looks.label(row), {"type": "scatter", "mode": "lines", "meta": {"row": word}}
            if np.isfinite(mean[-1]):
                last[looks.name(row)] = mean[-1]
            if len(row.runs) > 1:
                around = [*epochs, *epochs[::-1]], [*high, *low[::-1]]
                band = {"fill": "toself", "fillcolor": _see_through(colour), "line": {"width": 0}, "hoverinfo": "skip"}
                traces.append(shared | band | {"x": around[0], "y": five_digits(metric.factor * np.array(around[1]))})
            hover = f"{label}, epoch %{{x}}: %{{y:.4~f}}{metric.unit}<extra></extra>"
            line = {"color": colour, "width": 2}
            traces.append(
                shared
                | {
                    "x": epochs,
                    "y": five_digits(metric.factor * mean),
                    "name": label,
                    "line": line,
                    "hovertemplate": hover,
                }
            )
        if not traces:
            continue
        words = "Bands reach from the lowest seed to the highest." + _left_out(compared)
        if last:
            best = (min if metric.lower_is_better else max)(last, key=lambda label: last[label])
            reached = f"the {_extreme(metric)} {metric.title}, {metric.value(last[best])}"
            words = f"At its last epoch {best} has {reached}. {words}"
        layout = {
            "height": 420,
            "xaxis": {"title": {"text": "epoch"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": f"{metric.title}{unit_of(metric)}"}},
            "hovermode": "closest",
        }
        plots.append(Plot("Learning curves", words, traces, layout, choice=metric.title))
    return plots


def against_cost(compared: Compared, looks: Looks) -> list[Plot]:
    """The metric against what it costs, with the Pareto front: configurations that nothing cheaper equals."""
    metric, plots = compared.metric, []
    for kind in COSTS:
        points = [(one, float(cost)) for one in compared.summaries if (cost := kind.of(one)) is not None]
        dearest, cheapest = (edge((cost for _, cost in points), default=1.0) for edge in (max, min))
        if len(points) < 2 or dearest < SAME * cheapest:
            continue
        front = pareto([(cost if kind.more_is_cheaper else -cost, _worth(one, metric)) for one, cost in points])
        on_front = sorted(((points[index][1], points[index][0]) for index in front), key=lambda pair: pair[0])
        traces: list[dict[str, Any]] = [
            {
                "type": "scatter",
                "mode": "lines",
                "x": [cost for cost, _ in on_front],
                "y": [metric.factor * one.interval.mean for _, one in on_front],
                "line": {"color": OTHER, "width": 1.5, "dash": "dot", "shape": "vh" if kind.more_is_cheaper else "hv"},
                "hoverinfo": "skip",
                "meta": {},
            }
        ]
        for index, (one, cost) in enumerate(points):
            colour, symbol, row = looks.of(one.row)
            half, label = one.interval.half * metric.factor, looks.label(one.row)
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers+text" if index in front and len(front) <= 8 else "markers",
                    "x": [cost],
                    "y": [metric.factor * one.interval.mean],
                    "text": [label],
                    "textposition": "top left" if cost == max(other for _, other in points) else "top right",
                    "cliponaxis": False,
                    "error_y": {"type": "data", "array": [None if np.isnan(half) else half], "color": colour},
                    "marker": {"color": colour, "size": 11, "symbol": symbol},
                    "hovertemplate": f"{label}: %{{y:.4~f}}{metric.unit}, %{{x:.4s}}<extra></extra>",
                    "meta": {"row": row},
                }
            )
        names = listed([looks.name(points[index][0].row) for index in sorted(front, key=lambda i: points[i][1])])
        words = f"On the Pareto front, where nothing else is both cheaper and better: {names}."
        layout = {
            "height": 420,
            "xaxis": {
                "title": {"text": kind.title},
                "type": "log" if dearest > 8 * cheapest else "linear",
                "tickformat": "~s",
            },
            "yaxis": {"title": {"text": f"{metric.title}{unit_of(metric)}"}},
            "hovermode": "closest",
        }
        plots.append(Plot("What it costs", words, traces, layout, choice=kind.title))
    return plots


def effects(compared: Compared) -> list[Plot]:
    """For each choice, the mean of each of its values over all that the others chose."""
    metric, plots = compared.metric, []
    for column in compared.full.columns:
        levels = [(row.values[column], summarise(row, metric)) for row in compared.full.by(column).rows]
        levels.sort(key=lambda pair: by_number(pair[0]))
        ordered = sorted(levels, key=lambda pair: pair[1].interval.mean)
        low, high = ordered[0], ordered[-1]
        size = metric.size(high[1].interval.mean - low[1].interval.mean)
        words = f"From {low[0]} to {high[0]}: {size}."
        names = distinct([name for name, _ in levels])
        halves = [metric.factor * one.interval.half for _, one in levels]
        trace = {
            "type": "scatter",
            "mode": "lines+markers" if all(map(_is_number, names)) else "markers",
            "x": list(map(escaped, names)),
            "y": [metric.factor * one.interval.mean for _, one in levels],
            "error_y": {"type": "data", "array": [None if np.isnan(half) else half for half in halves]},
            "line": {"color": COLOURS[0], "width": 1.5, "dash": "dot"},
            "marker": {"color": COLOURS[0], "size": 10},
            "hovertemplate": f"%{{x}}: %{{y:.4~f}}{metric.unit}<extra></extra>",
            "meta": {},
        }
        layout = {
            "height": 300,
            "xaxis": {"title": {"text": column}, "type": "category", "automargin": True},
            "yaxis": {"title": {"text": f"{metric.title}{unit_of(metric)}"}},
        }
        numbers = [[column, "seeds", metric.title]]
        numbers += [[name, str(one.interval.count), written(one.interval, metric)] for name, one in levels]
        plots.append(Plot(column, words, [trace], layout, numbers))
    return plots


def pareto(points: Sequence[tuple[float, float]]) -> set[int]:
    """Numbers of the points that no other beats: at least as large in both, and larger in one."""
    return {
        index
        for index, (x, y) in enumerate(points)
        if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)
    }


def _curve(row: Row, name: str) -> tuple[list[int], np.ndarray, np.ndarray, np.ndarray]:
    """Epochs that all of a row's runs have, and over the runs mean, lowest and highest value at their ends."""
    each = []
    for run in row.runs.values():
        values: dict[int, list[float]] = {}
        for line in run.history:
            if name in line and "epoch" in line:
                values.setdefault(int(line["epoch"]), []).append(line[name])
        each.append({epoch: float(np.mean(some)) for epoch, some in values.items()})
    epochs = sorted(set.intersection(*(set(one) for one in each)))
    if len(epochs) > MOST_POINTS:
        kept = np.linspace(0, len(epochs) - 1, MOST_POINTS).round().astype(int)
        epochs = [epochs[index] for index in kept]
    stacked = np.array([[one[epoch] for epoch in epochs] for one in each])
    return epochs, stacked.mean(axis=0), stacked.min(axis=0), stacked.max(axis=0)


def _drawn(compared: Compared) -> list[Summary]:
    """The best rows, and the baseline."""
    baseline = compared.findings.baseline
    return [one for place, one in enumerate(compared.summaries) if place < MOST_ROWS or one.row is baseline]


def _left_out(compared: Compared) -> str:
    count = len(compared.summaries)
    return f" Of {count} configurations the best {MOST_ROWS} and the baseline are drawn." if count > MOST_ROWS else ""


def _worth(one: Summary, metric: Metric) -> float:
    return -one.interval.mean if metric.lower_is_better else one.interval.mean


def _extreme(metric: Metric) -> str:
    return "lowest" if metric.lower_is_better else "highest"


def by_number(value: str) -> float:
    """Numbers by size; words stay as they come."""
    return float(value) if _is_number(value) else 0.0


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _see_through(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
