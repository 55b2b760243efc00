"""Figures of a comparison for a paper (PDF, SVG, PNG): means, differences, curves and costs, in the page's colours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from vitrine.compare.comparison import Comparison
from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.compare.difference import Difference
from vitrine.compare.metric import Metric
from vitrine.compare.report.plot_data import (
    CURVES,
    CostPoints,
    cost_points,
    curve,
    drawn_rows,
    drawn_rows_note,
    error_lengths,
)
from vitrine.compare.report.style import LONGEST, SYMBOLS, RowStyles, lines
from vitrine.compare.table import ConfigurationRow
from vitrine.errors import RunError
from vitrine.figure_style import PRINT_DPI, QUIET, report_boxes, save, styled
from vitrine.text import report

MARKERS = dict(zip(SYMBOLS, "osD^P*vp", strict=True))
TITLE_POINTS, LABEL_POINTS = 8, 7  # of titles; of ticks and legends
LETTER_WIDTH = 0.6 * LABEL_POINTS / 72  # inches: the mean width of a small letter
TICK_WIDTH = 9 * LETTER_WIDTH  # inches: room for the label of a tick, such as -0.005, and a gap
LINE_HEIGHT = 1.25 * LABEL_POINTS / 72  # inches
# Of lines that guide the eye: above the grid, whose zorder is 1.5, and below marks, whose is 2.
DOTTED: dict[str, Any] = {"color": QUIET, "linestyle": ":", "linewidth": 1, "zorder": 1.9}


def write_figures(compared: Comparison, folder: Path, formats: Sequence[str], width: float) -> list[Path]:
    """Write the figures, each atomically, as ``folder/NAME.FORMAT``; return their paths.

    Args:
        compared: the comparison.
        folder: made if need be; the folder above it exists.
        formats: ``png``, ``pdf``, ``svg``.
        width: in inches.

    Raises:
        RunError: a file cannot be written.
    """
    styles = RowStyles(compared)
    files = []
    try:
        folder.mkdir(exist_ok=True)
        for name, figure in figures(compared, styles, width).items():
            files += [save(figure, folder / f"{name}.{kind}", dpi=PRINT_DPI) for kind in formats]
    except OSError as error:
        raise RunError(f"cannot write {error.filename or folder}: {error.strerror or error}") from None
    report_boxes([styles.name(summary.row) for summary in compared.summaries], folder, formats)
    if which := drawn_rows_note(compared):
        report(f"{which[0].lower()}{which[1:-1]} in {folder}, except in cost figures, which have all")
    return files


def figures(compared: Comparison, styles: RowStyles, width: float) -> dict[str, Figure]:
    """Return the figures by their names; one without content is left out."""
    found = {"means": draw_means(compared, styles, width)}
    if compared.findings.comparisons:
        found["differences"] = draw_differences(compared, styles, width)
    for name in CURVES:
        if figure := draw_curves(compared, styles, name, width):
            found[f"curves_{name.replace('/', '_')}"] = figure
    for shown in cost_points(compared):
        found[f"cost_{shown.cost.key}"] = draw_cost(compared, styles, shown, width)
    return found


@styled()
def draw_means(compared: Comparison, styles: RowStyles, width: float) -> Figure:
    """Draw the mean of each row with its 95 % interval, and its runs as strokes; dotted, the baseline's mean."""
    metric, rows = compared.metric, drawn_rows(compared)
    intervals = [summary.interval for summary in rows]
    title = (metric.heading,)
    figure, axes = _forest([summary.row for summary in rows], intervals, title, metric, styles, width)
    for place, summary in enumerate(rows):
        values = metric.factor * np.array(summary.values)
        colour = styles.style(summary.row)[0]
        axes.plot(values, np.full(len(values), place), "|", color=colour, markersize=7, markeredgewidth=0.8)
        if summary.row is styles.baseline:
            axes.axvline(metric.factor * summary.interval.mean, **DOTTED)
    return figure


@styled()
def draw_differences(compared: Comparison, styles: RowStyles, width: float) -> Figure:
    """Draw the difference of each row to the baseline, with the intervals that hold together."""
    metric, found = compared.metric, compared.findings
    tested = {each.row: each.difference for each in found.comparisons}
    rows = [summary.row for summary in drawn_rows(compared) if summary.row in tested]
    title = (f"{metric.title}, {metric.difference_heading}", f"to {styles.name(found.baseline)}")
    figure, axes = _forest(rows, [tested[row] for row in rows], title, metric, styles, width)
    axes.axvline(0, **DOTTED)
    return figure


@styled()
def draw_curves(compared: Comparison, styles: RowStyles, name: str, width: float) -> Figure | None:
    """Draw a metric by epoch: the mean over the runs of a row, and a band from the lowest to the highest of them.

    Returns:
        The figure; ``None`` if no run has logged the metric.
    """
    metric, figure = Metric(name), Figure()
    axes, drawn = figure.subplots(), []
    for place, row in enumerate(summary.row for summary in drawn_rows(compared)):
        epochs, mean, low, high = curve(row, name)
        if not epochs:
            continue
        drawn.append(row)
        colour, symbol, _ = styles.style(row)
        order = 3 - place / 100  # the best on top
        if len(row.runs) > 1:
            band = (metric.factor * low, metric.factor * high)
            axes.fill_between(epochs, *band, color=colour, alpha=0.15, linewidth=0, zorder=order - 1)
        every = max(1, len(epochs) // 6)
        line: dict[str, Any] = {"color": colour, "linewidth": 1.2, "markersize": 3.5, "zorder": order}
        if row in styles.coloured:
            line |= {"marker": MARKERS[symbol], "markevery": (place % every, every)}
        axes.plot(epochs, metric.factor * mean, **line)
    if not drawn:
        return None
    axes.set(xlabel="epoch", ylabel=metric.heading, xlim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.grid()
    _finish(figure, axes, drawn, styles, width)
    return figure


@styled()
def draw_cost(compared: Comparison, styles: RowStyles, shown: CostPoints, width: float) -> Figure:
    """Draw the mean of each row with its 95 % interval by what it costs, and the Pareto front as a dotted line."""
    metric, figure = compared.metric, Figure()
    axes = figure.subplots()
    means = [metric.factor * row.interval.mean for row, _ in shown.points]
    steps = "steps-pre" if shown.cost.higher_is_cheaper else "steps-post"
    front = [[shown.points[index][1] for index in shown.front], [means[index] for index in shown.front]]
    axes.plot(*front, drawstyle=steps, **DOTTED)
    for place, ((summary, cost), mean) in enumerate(zip(shown.points, means, strict=True)):
        bars: dict[str, Any] = {"yerr": error_lengths([summary.interval], metric), "zorder": 3 - place / 100}
        axes.errorbar([cost], [mean], **bars, **_marks(styles, summary.row))
    axes.set(xlabel=shown.cost.title, ylabel=metric.heading)
    costs = [cost for _, cost in shown.points]
    if shown.logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(costs) < 100 * min(costs) else (1,)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    large = min(costs) >= 1 and max(costs) >= 1000
    axes.xaxis.set_major_formatter(EngFormatter(sep=" ") if large else StrMethodFormatter("{x:g}"))
    axes.grid()
    _finish(figure, axes, [summary.row for summary, _ in shown.points], styles, width)
    return figure


def _forest(
    rows: Sequence[ConfigurationRow],
    intervals: Sequence[ConfidenceInterval | Difference],
    title: Sequence[str],
    metric: Metric,
    styles: RowStyles,
    width: float,
) -> tuple[Figure, Axes]:
    """Draw an interval for each row, from top to bottom, with its name on the left; ``title`` has phrases, below."""
    labels = [lines(styles.title(row), round(min(LONGEST, 0.42 * width / LETTER_WIDTH))) for row in rows]
    room = width - 0.25 - LETTER_WIDTH * max(len(line) for label in labels for line in label)
    longest = int(room / LETTER_WIDTH * LABEL_POINTS / TITLE_POINTS)
    titles = [line for phrase in title for line in lines(phrase, longest)]
    height = 0.4 + LINE_HEIGHT * len(titles)
    height += sum(max(0.2, LINE_HEIGHT * (len(label) + 0.6)) for label in labels)
    figure = Figure(figsize=(width, height))
    axes = figure.subplots()
    for place, (row, interval) in enumerate(zip(rows, intervals, strict=True)):
        length, mean = error_lengths([interval], metric), metric.factor * interval.mean
        axes.errorbar([mean], [place], xerr=length, **_marks(styles, row))
    axes.set_yticks(range(len(rows)), ["\n".join(label) for label in labels])
    axes.set(xlabel="\n".join(titles), ylim=(len(rows) - 0.4, -0.6))
    axes.xaxis.set_major_locator(MaxNLocator(max(2, int(room / TICK_WIDTH))))
    axes.grid(axis="x")
    _set_font_sizes(axes)
    axes.tick_params(axis="y", length=0)
    return figure, axes


def _marks(styles: RowStyles, row: ConfigurationRow) -> dict[str, Any]:
    """How a mean and its interval look."""
    colour, symbol, _ = styles.style(row)
    return {"color": colour, "fmt": MARKERS[symbol], "markersize": 4.5, "elinewidth": 1.2, "capsize": 2}


def _finish(figure: Figure, axes: Axes, rows: Sequence[ConfigurationRow], styles: RowStyles, width: float) -> None:
    """Set the figure's size, and name the rows above it: those without a colour of their own together."""
    handles, names = [], []
    others = [row for row in rows if row in styles.others]
    named = [row for row in rows if row in styles.coloured] if len(rows) > 1 else []
    lengths = [len("(baseline)"), *(len(styles.name(row)) for row in named)]  # so "(baseline)" takes a line of its own
    longest = min(int((width - 0.5) / LETTER_WIDTH), max(lengths))
    for row in [*named, *others[:1]]:
        colour, symbol, _ = styles.style(row)
        marker = MARKERS[symbol] if row in named or axes.containers else ""  # lines of others have none
        name = styles.title(row) if row in named or len(others) == 1 else f"{len(others)} others"
        handles.append(Line2D([], [], color=colour, marker=marker, markersize=3.5, linewidth=1.2))
        names.append("\n".join(lines(name, longest)))
    widest = max((len(line) for name in names for line in name.split("\n")), default=0)
    columns = max(1, min(len(names), int(width / (0.45 + LETTER_WIDTH * widest))))
    if names:
        spaces: dict[str, Any] = {"handlelength": 1.8, "columnspacing": 1.2, "labelspacing": 0.3}
        figure.legend(handles, names, loc="outside upper center", ncols=columns, fontsize=LABEL_POINTS, **spaces)
    above = sum(name.count("\n") + 1 for name in names) / columns * LINE_HEIGHT * 1.1
    figure.set_size_inches(width, min(0.62 * width, 2.8) + above)
    _set_font_sizes(axes)


def _set_font_sizes(axes: Axes) -> None:
    axes.xaxis.label.set_fontsize(TITLE_POINTS)
    axes.yaxis.label.set_fontsize(TITLE_POINTS)
    axes.tick_params(labelsize=LABEL_POINTS)
