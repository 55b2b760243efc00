"""What the plots of metrics and costs show, in the report and in figures for a paper."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitrine.compare.comparison import Comparison, RowSummary
from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.compare.costs import COSTS, Cost
from vitrine.compare.difference import Difference
from vitrine.compare.metric import Metric
from vitrine.compare.speeds import EQUAL_COST, speed_caveats
from vitrine.compare.table import ConfigurationRow
from vitrine.figure_style import evenly

MAX_ROWS = 40  # in plots that grow with the number of rows
MAX_NAMED = 8  # points whose names stand beside them
CURVES = ("val/acc", "val/loss", "train/loss", "train/acc")


@dataclass(frozen=True)
class CostPoints:
    """The rows by one of their costs.

    Attributes:
        cost: which one.
        points: rows that have it, in the table's order, with what it is.
        doubted: whether the cost was measured, and a caveat says that it tells little about configurations.
        front: indices of the Pareto front, the lowest cost first; empty if the cost is doubted.
        named: indices of points with room for their names, which the page alone shows.
        logarithmic: whether the axis of the cost is.
    """

    cost: Cost
    points: list[tuple[RowSummary, float]]
    doubted: bool
    front: list[int]
    named: list[int]
    logarithmic: bool


def drawn_rows(compared: Comparison) -> list[RowSummary]:
    """Return the best rows and the baseline, in the table's order."""
    baseline = compared.findings.baseline
    return [row for index, row in enumerate(compared.summaries) if index < MAX_ROWS or row.row is baseline]


def drawn_rows_note(compared: Comparison) -> str:
    """Return a sentence on which rows :func:`drawn_rows` has; empty if it has all."""
    count = len(compared.summaries)
    if len(drawn_rows(compared)) == count:
        return ""
    return f"Of {count} configurations, the best {MAX_ROWS} and the baseline are shown."


def error_lengths(intervals: Sequence[ConfidenceInterval | Difference], metric: Metric) -> np.ndarray:
    """Return how far intervals reach below and above their means, as shown: (2, N), NaN without an interval."""
    ends = [(interval.mean - interval.low, interval.high - interval.mean) for interval in intervals]
    return metric.factor * np.array(ends).reshape(-1, 2).T


def curve(
    row: ConfigurationRow, name: str, most: int | None = None
) -> tuple[list[int], np.ndarray, np.ndarray, np.ndarray]:
    """Return epochs that all runs of a row have, and the mean, lowest and highest value over the runs at each.

    Args:
        row: the row.
        name: of a metric in metrics.csv.
        most: epochs to return, evenly spaced; by default, all.
    """
    per_run = []
    for run in row.runs.values():
        values: dict[int, list[float]] = {}
        for line in run.history:
            if name in line and "epoch" in line:
                values.setdefault(int(line["epoch"]), []).append(line[name])
        per_run.append({epoch: float(np.mean(some)) for epoch, some in values.items()})
    epochs = sorted(set.intersection(*(set(values) for values in per_run)))
    if most is not None and len(epochs) > most:
        epochs = [epochs[index] for index in evenly(len(epochs), most)]
    stacked = np.array([[values[epoch] for epoch in epochs] for values in per_run])
    return epochs, stacked.mean(axis=0), stacked.min(axis=0), stacked.max(axis=0)


def cost_points(compared: Comparison) -> list[CostPoints]:
    """Return the rows by each cost in which they differ."""
    metric, found = compared.metric, []
    are_doubted = bool(speed_caveats(compared.table))
    for cost in COSTS:
        points = [(row, float(value)) for row in compared.summaries if (value := cost.value_of(row)) is not None]
        values = [value for _, value in points]
        if len(points) < 2 or max(values) < EQUAL_COST * min(values):
            continue
        doubted = cost.is_measured and are_doubted
        scores = [(value if cost.higher_is_cheaper else -value, _score(row, metric)) for row, value in points]
        front = set() if doubted else pareto_front(scores)
        shown = sorted(front) if len(front) <= MAX_NAMED else []
        named = _apart([(value, row.interval.mean) for row, value in points], shown)
        by_cost = sorted(front, key=lambda index: points[index][1])
        found.append(CostPoints(cost, points, doubted, by_cost, named, max(values) > 8 * min(values)))
    return found


def _apart(points: Sequence[tuple[float, float]], chosen: Sequence[int]) -> list[int]:
    """Return those of the ``chosen`` points whose names would not lie over that of an earlier one."""
    spans = [max(values) - min(values) or 1.0 for values in zip(*points, strict=True)]
    kept: list[int] = []
    for index in chosen:
        distances = (
            [abs(a - b) / span for a, b, span in zip(points[index], points[other], spans, strict=True)]
            for other in kept
        )
        if all(across > 0.35 or up > 0.07 for across, up in distances):
            kept.append(index)
    return kept


def pareto_front(points: Sequence[tuple[float, float]]) -> set[int]:
    """Return the indices of the Pareto front: points that no other point equals in both values and exceeds in one."""
    return {
        index
        for index, (x, y) in enumerate(points)
        if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)
    }


def _score(summary: RowSummary, metric: Metric) -> float:
    """The mean, negated if lower is better."""
    return -summary.interval.mean if metric.lower_is_better else summary.interval.mean
