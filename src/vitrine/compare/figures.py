"""The report's plots, as plotly takes them: traces and layout, plain values. Colours of text and grid are the page's.

Each trace says in ``meta`` which row it belongs to, so that the page can hide and show a row in all plots at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitrine.compare.compared import Compared, Summary, summarise
from vitrine.compare.metric import Metric
from vitrine.compare.predictions import Calibration
from vitrine.compare.rows import Row
from vitrine.compare.statistics import Interval

# Told apart with any colour vision (by their symbols too), and at least 3:1 against the page in light and dark.
COLOURS = ("#2b7bba", "#d4651c", "#12937a", "#c2408f", "#8a7a12", "#8060c8", "#c93c3c", "#5f7f95")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "pentagon")
OTHER = "#8b9198"  # of rows beyond the colours
MOST_ROWS = 40  # drawn in a plot that grows with them
SAME = 1.02  # costs within 2 % are one cost
MOST_POINTS = 60  # of a curve


@dataclass(frozen=True)
class Plot:
    """A plot with what it says.

    Attributes:
        key: its name in the page.
        title: heading.
        words: what is to be seen in it, in a sentence.
        traces, layout: for plotly.
        numbers: the same as a table, headings first; empty where the page has it in its large table.
        choice: what the reader chooses by a menu, if this is one of several of the same heading.
    """

    key: str
    title: str
    words: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    numbers: list[list[str]] = field(default_factory=list)
    choice: str = ""


class Looks:
    """What each row is drawn with: best rows in colours, in the order of their means; the baseline always."""

    def __init__(self, compared: Compared) -> None:
        rows = [one.row for one in compared.summaries]
        baseline = compared.findings.baseline
        coloured = rows[: len(COLOURS)]
        if baseline not in coloured:
            coloured = [*coloured[:-1], baseline]
        self.coloured = coloured
        self.others = [row for row in rows if row not in coloured]

    def of(self, row: Row) -> tuple[str, str, str]:
        """Colour, symbol and the word that the page knows the row by."""
        if row in self.coloured:
            index = self.coloured.index(row)
            return COLOURS[index], SYMBOLS[index], str(index)
        return OTHER, "circle", "others"


def means(compared: Compared, looks: Looks) -> Plot:
    """Each row's mean with its interval, and every run."""
    metric, traces = compared.metric, []
    drawn = _drawn(compared)
    labels = [short(one.row.brief) for one in drawn]
    labels = [f"{label} ({place})" if labels.count(label) > 1 else label for place, label in enumerate(labels, 1)]
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
        "xaxis": {"title": {"text": f"{metric.title}{_in(metric)}"}},
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
    return Plot("means", "Every configuration", words, traces, layout)


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
            label, shared = short(row.brief), {"type": "scatter", "mode": "lines", "meta": {"row": word}}
            last[cut(row.brief)] = mean[-1]
            if len(row.runs) > 1:
                around = [*epochs, *epochs[::-1]], [*high, *low[::-1]]
                band = {"fill": "toself", "fillcolor": _see_through(colour), "line": {"width": 0}, "hoverinfo": "skip"}
                traces.append(shared | band | {"x": around[0], "y": _round(metric.factor * np.array(around[1]))})
            hover = f"{label}, epoch %{{x}}: %{{y:.4~f}}{metric.unit}<extra></extra>"
            line = {"color": colour, "width": 2}
            traces.append(
                shared
                | {"x": epochs, "y": _round(metric.factor * mean), "name": label, "line": line, "hovertemplate": hover}
            )
        if not last:
            continue
        best = (min if metric.lower_is_better else max)(last, key=lambda label: last[label])
        words = f"At its last epoch {best} has the {_extreme(metric)} {metric.title}, {metric.value(last[best])}. "
        words += "Bands reach from the lowest seed to the highest."
        words += _left_out(compared)
        layout = {
            "height": 420,
            "xaxis": {"title": {"text": "epoch"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": f"{metric.title}{_in(metric)}"}},
            "hovermode": "closest",
        }
        plots.append(Plot("curves", "Learning curves", words, traces, layout, choice=metric.title))
    return plots


COSTS: tuple[tuple[str, Callable[[Summary], float | None], bool], ...] = (
    ("FLOPs of a forward pass, per image", lambda one: one.flops, False),
    ("parameters", lambda one: one.parameters, False),
    ("images per second in training", lambda one: one.images_per_second, True),
    ("training time (s)", lambda one: one.train_seconds, False),
)


def against_cost(compared: Compared, looks: Looks) -> list[Plot]:
    """The metric against what it costs, with the Pareto front: configurations that nothing cheaper equals."""
    metric, plots = compared.metric, []
    for title, of, more_is_cheaper in COSTS:
        points = [(one, float(cost)) for one in compared.summaries if (cost := of(one)) is not None]
        dearest, cheapest = (edge((cost for _, cost in points), default=1.0) for edge in (max, min))
        if len(points) < 2 or dearest < SAME * cheapest:
            continue
        front = pareto([(cost if more_is_cheaper else -cost, _worth(one, metric)) for one, cost in points])
        on_front = sorted(((points[index][1], points[index][0]) for index in front), key=lambda pair: pair[0])
        traces: list[dict[str, Any]] = [
            {
                "type": "scatter",
                "mode": "lines",
                "x": [cost for cost, _ in on_front],
                "y": [metric.factor * one.interval.mean for _, one in on_front],
                "line": {"color": OTHER, "width": 1.5, "dash": "dot", "shape": "vh" if more_is_cheaper else "hv"},
                "hoverinfo": "skip",
                "meta": {},
            }
        ]
        for index, (one, cost) in enumerate(points):
            colour, symbol, row = looks.of(one.row)
            half, label = one.interval.half * metric.factor, short(one.row.brief)
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
        names = _and([cut(points[index][0].row.brief) for index in sorted(front, key=lambda i: points[i][1])])
        words = f"On the Pareto front, where nothing else is both cheaper and better: {names}."
        layout = {
            "height": 420,
            "xaxis": {
                "title": {"text": title},
                "type": "log" if dearest > 8 * cheapest else "linear",
                "tickformat": "~s",
            },
            "yaxis": {"title": {"text": f"{metric.title}{_in(metric)}"}},
            "hovermode": "closest",
        }
        plots.append(Plot("cost", "What it costs", words, traces, layout, choice=title))
    return plots


def effects(compared: Compared) -> list[Plot]:
    """For each choice, the mean of each of its values over all that the others chose."""
    metric, plots = compared.metric, []
    for column in compared.full.columns:
        levels = [(row.values[column], summarise(row, metric)) for row in compared.full.by(column).rows]
        levels.sort(key=lambda pair: _by_number(pair[0]))
        ordered = sorted(levels, key=lambda pair: pair[1].interval.mean)
        low, high = ordered[0], ordered[-1]
        size = metric.size(high[1].interval.mean - low[1].interval.mean)
        words = f"From {low[0]} to {high[0]}: {size}."
        names = [short(name) for name, _ in levels]
        halves = [metric.factor * one.interval.half for _, one in levels]
        trace = {
            "type": "scatter",
            "mode": "lines+markers" if all(map(_is_number, names)) else "markers",
            "x": names,
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
            "yaxis": {"title": {"text": f"{metric.title}{_in(metric)}"}},
        }
        numbers = [[column, "runs", metric.title]]
        numbers += [[name, str(one.interval.count), written(one.interval, metric)] for name, one in levels]
        plots.append(Plot("effects", column, words, [trace], layout, numbers))
    return plots


def parallel(compared: Compared, looks: Looks) -> Plot | None:
    """A line for each configuration through its choices, what it costs, and what it reaches."""
    metric = compared.metric
    axes: list[tuple[str, list[float], list[float], list[str]]] = []  # title, places, ticks, their texts
    for column in compared.table.columns:
        values = [one.row.values[column] for one in compared.summaries]
        levels = list(dict.fromkeys(row.values[column] for row in compared.table.rows))
        levels.sort(key=_by_number)
        places = np.linspace(0, 1, len(levels)).tolist() if len(levels) > 1 else [0.5]
        axes.append((column, [places[levels.index(value)] for value in values], places, [short(one) for one in levels]))
    for title, of, _ in COSTS[1:3]:
        costs = [of(one) for one in compared.summaries]
        if None not in costs and len(set(costs)) > 1:
            axes.append(_numeric(title.replace(" in training", ""), [float(cost or 0) for cost in costs], "{:.3g}"))
    scaled = [metric.factor * one.interval.mean for one in compared.summaries]
    axes.append(_numeric(f"{metric.title}{_in(metric)}", scaled, "{:.2f}" if metric.is_accuracy else "{:.4g}"))
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
                "hovertemplate": f"{short(one.row.brief)}: {metric.value(one.interval.mean)}<extra></extra>",
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
    return Plot("parallel", "Choices and outcome", words, traces, layout)


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
                "x": _round(100 * one.confidence),
                "y": _round(100 * one.accuracy),
                "text": [f"{count:,} images" for count in one.count.tolist()],
                "line": {"color": colour, "width": 2},
                "marker": {"color": colour, "symbol": symbol, "size": 7},
                "hovertemplate": f"{short(row.brief)}: %{{x:.1f}} % sure, %{{y:.1f}} % right, %{{text}}<extra></extra>",
                "meta": {"row": word},
            }
        )
    best = min(calibrations, key=lambda pair: pair[1].error)
    words = (
        f"{cut(best[0].brief)} is calibrated best: its confidence is {100 * best[1].error:.1f} points from its "
        "accuracy, on average (expected calibration error, 15 bins). Below the dotted line a model is too sure."
    )
    layout = {
        "height": 420,
        "xaxis": {"title": {"text": "confidence (%)"}, "range": [0, 103]},
        "yaxis": {"title": {"text": "images that are right (%)"}, "range": [0, 103]},
        "hovermode": "closest",
    }
    numbers = [["configuration", "ECE (points)"]]
    numbers += [[row.label, f"{100 * one.error:.2f}"] for row, one in calibrations]
    return Plot("reliability", "Is confidence earned?", words, traces, layout, numbers)


def heatmap(
    key: str, title: str, words: str, shares: np.ndarray, texts: list[list[str]], across: list[str], down: list[str],
    axes: tuple[str, str], choice: str = "", numbers: list[list[str]] | None = None,
) -> Plot:  # fmt: skip
    """Shares in [0, 1] as a grid, ``down`` by ``across``, with a text in each cell."""
    readable = len(across) <= 12
    trace = {
        "type": "heatmap",
        "z": [[None if np.isnan(value) else round(100 * float(value), 2) for value in line] for line in shares],
        "x": across,
        "y": down,
        "text": texts,
        "texttemplate": "%{text}" if readable else "",
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
    return Plot(key, title, words, [trace], layout, numbers or [], choice)


def pareto(points: Sequence[tuple[float, float]]) -> set[int]:
    """Numbers of the points that no other beats: at least as large in both, and larger in one."""
    return {
        index
        for index, (x, y) in enumerate(points)
        if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)
    }


def written(interval: Interval, metric: Metric) -> str:
    """A mean with half its interval and unit."""
    half = "" if np.isnan(interval.half) else f" ± {metric.number(interval.half)}"
    return f"{metric.number(interval.mean)}{half}{metric.unit}"


def short(name: str, most: int = 28) -> str:
    """A name that fits beside a plot, safe in plotly's own markup."""
    return cut(name, most).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def cut(name: str, most: int = 28) -> str:
    """A name with at most so many letters."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


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


def _numeric(title: str, values: list[float], form: str) -> tuple[str, list[float], list[float], list[str]]:
    low, high = min(values), max(values)
    ticks = np.linspace(low, high, 3) if high > low else np.array([low])
    places = [(value - low) / (high - low) if high > low else 0.5 for value in values]
    texts = [_thousands(tick) if form == "{:.3g}" else form.format(tick) for tick in ticks]
    return title, places, np.linspace(0, 1, 3).tolist() if high > low else [0.5], texts


def _thousands(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def _worth(one: Summary, metric: Metric) -> float:
    return -one.interval.mean if metric.lower_is_better else one.interval.mean


def _extreme(metric: Metric) -> str:
    return "lowest" if metric.lower_is_better else "highest"


def _in(metric: Metric) -> str:
    return f" ({metric.unit.strip()})" if metric.unit else ""


def _by_number(value: str) -> float:
    """Numbers by size; words stay as they come."""
    return float(value) if _is_number(value) else 0.0


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _round(values: np.ndarray) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def _see_through(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
