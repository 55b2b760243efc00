"""The report's plots of metrics and costs, as Plotly traces and layouts. The page sets the colours of text and grid.

``meta`` of a trace names its row, so that the page can hide a row in all plots at once.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vitrine.compare.comparison import Comparison, RowSummary, summarise
from vitrine.compare.metric import MISSING, Metric
from vitrine.compare.report.plot_data import CURVES, cost_points, curve, drawn_rows, drawn_rows_note, error_lengths
from vitrine.compare.report.style import (
    LINE_LENGTH,
    OTHER,
    Plot,
    RowStyles,
    escape,
    five_digits,
    lines,
)
from vitrine.compare.table import ConfigurationRow
from vitrine.figure_style import COLOURS, evenly, shorten
from vitrine.text import listed

MAX_POINTS = 60  # of a curve
MAX_MARKERS = 6  # on a curve


def means(compared: Comparison, styles: RowStyles) -> Plot:
    """Plot each row's mean with its interval, and the value of each run."""
    metric, traces = compared.metric, []
    drawn = drawn_rows(compared)
    labels = [styles.label(summary.row) for summary in drawn]
    for summary, label in zip(drawn, labels, strict=True):
        colour, symbol, key = styles.style(summary.row)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [metric.factor * value for value in summary.values],
                "y": [label] * len(summary.values),
                "marker": {"symbol": "line-ns", "size": 12, "line": {"color": colour, "width": 2}},
                "hovertemplate": f"{label}: %{{x:.4~f}}{metric.unit}<extra>single run</extra>",
                "meta": {"row": key},
            }
        )
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [metric.factor * summary.interval.mean],
                "y": [label],
                "error_x": error_bars([summary], metric) | {"color": colour, "width": 5},
                "marker": {"color": colour, "size": 11, "symbol": symbol},
                "hovertemplate": f"{label}: %{{x:.4~f}}{metric.unit}<extra>mean</extra>",
                "meta": {"row": key},
            }
        )
    layout = {
        "height": 110 + 34 * len(labels),
        "xaxis": {"title": {"text": metric.heading}},
        "yaxis": {
            "categoryorder": "array",
            "categoryarray": labels[::-1],
            "showgrid": False,
            "ticks": "",
            "automargin": True,
            "range": [-0.7, len(labels) - 0.3],
        },
        "hovermode": "closest",
    }
    intervals = " with 95 % confidence intervals" if any(np.isfinite(row.interval.low) for row in drawn) else ""
    caption = f"Large marks: means{intervals}; strokes: single runs."
    caption += " The best mean is on top." if len(labels) > 1 else ""
    return Plot("Every configuration", f"{caption} {drawn_rows_note(compared)}".strip(), traces, layout)


def curves(compared: Comparison, styles: RowStyles) -> list[Plot]:
    """Plot metrics over epochs: a line for the mean over seeds, a band from the lowest to the highest seed."""
    plots = [_curves_of(Metric(name), compared, styles) for name in CURVES]
    return [plot for plot in plots if plot is not None]


def _curves_of(metric: Metric, compared: Comparison, styles: RowStyles) -> Plot | None:
    """The plot of one metric; ``None`` if no run has it by epoch."""
    traces: list[dict[str, Any]] = []
    last: dict[str, float] = {}  # the mean at the last epoch
    columns: dict[str, dict[int, float]] = {}  # of the table: of rows with a colour
    longest = 0
    for row in [summary.row for summary in drawn_rows(compared)][::-1]:  # the best on top
        epochs, mean, low, high = curve(row, metric.name, MAX_POINTS)
        if not len(epochs):
            continue
        longest = max(longest, epochs[-1])
        if row in styles.coloured:
            all_epochs, means, *_ = curve(row, metric.name)
            columns[styles.name(row)] = dict(zip(all_epochs, means.tolist(), strict=True))
        if np.isfinite(mean[-1]):
            last[styles.name(row)] = mean[-1]
        if len(row.runs) > 1 and len(epochs) > 1:
            traces.append(_band(row, epochs, metric.factor * low, metric.factor * high, styles))
        traces.append(_line(row, epochs, mean, metric, styles))
    if not traces:
        return None
    caption = "Bands span the lowest to the highest seed." if any("fill" in trace for trace in traces) else ""
    if last:
        best = (min if metric.lower_is_better else max)(last, key=lambda name: last[name])
        value = f"the {metric.best} {metric.title}," if len(last) > 1 else f"a {metric.title} of"
        caption = f"At its last epoch, {best} has {value} {metric.value(last[best])}. {caption}".strip()
    layout = {
        "height": 420,
        "xaxis": {"title": {"text": "epoch"}, "rangemode": "tozero", **whole_ticks(longest)},
        "yaxis": {"title": {"text": metric.heading}},
        "hovermode": "closest",
    }
    caption = f"{caption} {drawn_rows_note(compared)}".strip()
    return Plot("Learning curves", caption, traces, layout, _by_epoch(columns, metric), metric.title)


def _band(
    row: ConfigurationRow, epochs: Sequence[int], low: np.ndarray, high: np.ndarray, styles: RowStyles
) -> dict[str, Any]:
    """From the lowest to the highest seed of a row."""
    colour, _, key = styles.style(row)
    return {
        "type": "scatter",
        "mode": "lines",
        "meta": {"row": key},
        "fill": "toself",
        "fillcolor": _translucent(colour),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "x": [*epochs, *epochs[::-1]],
        "y": five_digits(np.array([*high, *low[::-1]])),
    }


def _line(
    row: ConfigurationRow, epochs: Sequence[int], mean: np.ndarray, metric: Metric, styles: RowStyles
) -> dict[str, Any]:
    """A row's mean over seeds; with markers where it has a colour, or only one epoch, as which a line is invisible."""
    colour, symbol, key = styles.style(row)
    label = styles.label(row)
    mode = "lines" if len(epochs) > 1 else "markers"
    return {
        "type": "scatter",
        "mode": "lines+markers" if row in styles.coloured else mode,
        "meta": {"row": key},
        "x": epochs,
        "y": five_digits(metric.factor * mean),
        "name": label,
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "symbol": symbol, "size": 8, "maxdisplayed": MAX_MARKERS},
        "hovertemplate": f"{label}, epoch %{{x}}: %{{y:.4~f}}{metric.unit}<extra></extra>",
    }


def _by_epoch(columns: dict[str, dict[int, float]], metric: Metric) -> list[list[str]]:
    """Return a table of each column's values by epoch, of up to ``MAX_POINTS`` epochs; the last column first."""
    every = sorted(set[int]().union(*columns.values()))
    rows = [
        [str(epoch), *(metric.number(one[epoch]) if epoch in one else MISSING for one in reversed(columns.values()))]
        for epoch in (every[index] for index in evenly(len(every), MAX_POINTS))
    ]
    return [["epoch", *reversed(columns)], *rows] if columns else []


def whole_ticks(longest: int) -> dict[str, int]:
    """Return the ticks of an axis of epochs: whole numbers, at most eight steps of 1, 2 or 5 times a power of ten."""
    sizes = (factor * 10**power for power in range(9) for factor in (1, 2, 5))
    return {"tick0": 0, "dtick": next(size for size in sizes if 8 * size >= longest)}


def against_cost(compared: Comparison, styles: RowStyles) -> list[Plot]:
    """Plot the metric against each cost, with the Pareto front."""
    metric, plots = compared.metric, []
    for shown in cost_points(compared):
        points, costs = shown.points, [cost for _, cost in shown.points]
        number_format = "~s" if min(costs) >= 1 else "~g"  # 200k, but not 300m for 0.3 s
        steps = "vh" if shown.cost.higher_is_cheaper else "hv"
        traces: list[dict[str, Any]] = [
            {
                "type": "scatter",
                "mode": "lines",
                "x": [costs[index] for index in shown.front],
                "y": [metric.factor * points[index][0].interval.mean for index in shown.front],
                "line": {"color": OTHER, "width": 1.5, "dash": "dot", "shape": steps},
                "hoverinfo": "skip",
                "meta": {},
            }
        ]
        for index, (summary, cost) in list(enumerate(points))[::-1]:  # the best on top
            colour, symbol, key = styles.style(summary.row)
            label = styles.label(summary.row)
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers+text" if index in shown.named else "markers",
                    "x": [cost],
                    "y": [metric.factor * summary.interval.mean],
                    "text": [label],
                    "textposition": "top left" if cost == max(costs) else "top right",
                    "cliponaxis": False,
                    "error_y": error_bars([summary], metric)
                    | {"color": _translucent(colour) if key == "others" else colour},
                    "marker": {"color": colour, "size": 11, "symbol": symbol},
                    "hovertemplate": f"{label}: %{{y:.4~f}}{metric.unit}, %{{x:.4{number_format}}}<extra></extra>",
                    "meta": {"row": key},
                }
            )
        names = listed([styles.name(points[index][0].row) for index in shown.front])
        caption = f"On the Pareto front, where no configuration is both cheaper and better: {names}."
        caption = "There is no Pareto front: see the caveats about images/s and times." if shown.doubted else caption
        layout = {
            "height": 420,
            "xaxis": {
                "title": {"text": shown.cost.title},
                "type": "log" if shown.logarithmic else "linear",
                "tickformat": number_format,
            },
            "yaxis": {"title": {"text": metric.heading}},
            "hovermode": "closest",
        }
        numbers = []
        if not shown.cost.heading:
            numbers = [["configuration", shown.cost.title, metric.heading]]
            numbers += [[row.row.label, shown.cost.text_of(row), metric.interval(row.interval)] for row, _ in points]
        plots.append(Plot("Cost", caption, traces, layout, numbers, choice=shown.cost.title))
    return plots


def main_effects(compared: Comparison, styles: RowStyles) -> list[Plot]:
    """Plot the main effect of each column: the mean of each of its values over all values of the other columns.

    There is none of a column whose values did not all run with the same others: these would be part of its effect.
    """
    metric, plots = compared.metric, []
    for column in compared.configurations.columns:
        effect = compared.configurations.main_effect(column)
        if not effect.is_balanced:
            continue
        levels = [(row.values[column], summarise(row, metric)) for row in effect.rows]
        levels.sort(key=lambda level: sort_key(level[0]))
        ordered = sorted(levels, key=lambda level: level[1].interval.mean)
        low, high = ordered[0], ordered[-1]
        size = metric.magnitude(high[1].interval.mean - low[1].interval.mean)
        names = shorten([styles.value(name) for name, _ in levels], LINE_LENGTH)
        trace = {
            "type": "scatter",
            "mode": "lines+markers" if all(map(is_number, names)) else "markers",
            "x": ["<br>".join(map(escape, lines(name, LINE_LENGTH // 2))) for name in names],
            "y": [metric.factor * summary.interval.mean for _, summary in levels],
            "error_y": error_bars([summary for _, summary in levels], metric),
            "line": {"color": COLOURS[0], "width": 1.5, "dash": "dot"},
            "marker": {"color": COLOURS[0], "size": 10},
            "hovertemplate": f"%{{x}}: %{{y:.4~f}}{metric.unit}<extra></extra>",
            "meta": {},
        }
        layout = {
            "height": 300,
            "xaxis": {
                "title": {"text": styles.value(column)},
                "type": "category",
                "automargin": True,
                "range": [-0.5, len(levels) - 0.5],  # names at the ends stay inside
            },
            "yaxis": {"title": {"text": metric.heading}},
        }
        numbers = [[column, "seeds", metric.title]]
        numbers += [
            [name, str(summary.interval.count), metric.interval(summary.interval) + metric.unit]
            for name, summary in levels
        ]
        caption = f"From {styles.value(low[0])} to {styles.value(high[0])}: {size}."
        plots.append(Plot(column, caption, [trace], layout, numbers))
    return plots


def error_bars(summaries: Sequence[RowSummary], metric: Metric) -> dict[str, Any]:
    """Return the intervals of means as plotly's error bars, which reach upwards and downwards from the mean."""
    below, above = error_lengths([summary.interval for summary in summaries], metric)
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below}


def sort_key(value: str) -> float:
    """Numbers by size; other values keep their order."""
    return float(value) if is_number(value) else 0.0


def is_number(value: str) -> bool:
    """Return whether a value reads as a number."""
    try:
        float(value)
    except ValueError:
        return False
    return True


def _translucent(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
