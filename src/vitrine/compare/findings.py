"""What can be said of a table of runs, in words: each row against a baseline, and how sure that is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vitrine.compare.metric import NONE, Metric
from vitrine.compare.predictions import Judged
from vitrine.compare.rows import Row, Table
from vitrine.compare.statistics import (
    LEVEL,
    Difference,
    Interval,
    difference,
    holm,
    mcnemar,
    over_images,
    seeds_needed,
)


@dataclass(frozen=True)
class OnImages:
    """Two rows' models on the same test images.

    Attributes:
        images: how many.
        only: for each pair of models, the images that only the row's has right, and only the baseline's.
        p: McNemar's exact test of each pair, corrected for the number of pairs in all comparisons.
        low, high: bootstrap interval, over images, of the difference in accuracy; the models stay these.
    """

    images: int
    only: list[tuple[int, int]]
    p: list[float]
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """A row against the baseline.

    Attributes:
        row: which.
        difference: the row's mean less the baseline's.
        p: corrected for the number of comparisons (Holm).
        on_images: from stored predictions, where there are some.
        verdict: ``better``, ``worse``, or ``open`` where no difference can be told.
        words: one sentence for the seeds, and one for the images where there are predictions.
    """

    row: Row
    difference: Difference
    p: float
    on_images: OnImages | None
    verdict: str
    words: list[str]


@dataclass(frozen=True)
class Findings:
    """All that is said of a table."""

    baseline: Row
    comparisons: list[Comparison]
    words: list[str]


def findings(
    table: Table, metric: Metric, baseline: Row, judged: Mapping[str, Judged], smallest: float | None = None
) -> Findings:
    """Compare every other row with the baseline.

    Args:
        table: what was measured.
        metric: by what.
        baseline: one of the table's rows.
        judged: predictions by the run's name, of runs that have some.
        smallest: the difference that one wants to be able to see, for the number of seeds; else the one that was seen.
    """
    others = [row for row in table.rows if row is not baseline]
    differences = [_difference(row, baseline, metric) for row in others]
    corrected = holm([one.p for one in differences])
    on_images = _on_images(others, baseline, metric, judged)
    tests = sum(not math.isnan(p) for p in corrected)
    comparisons = []
    for row, one, p, images in zip(others, differences, corrected, on_images, strict=True):
        verdict = "open"
        if p < LEVEL:  # not where it is NaN
            verdict = "better" if metric.better(one.mean, 0.0) else "worse"
        words = [_by_seeds(row, baseline, one, p, verdict, metric, max(1, tests), smallest)]
        if images is not None:
            words.append(_by_images(row, baseline, images, metric))
        comparisons.append(Comparison(row, one, p, images, verdict, words))
    comparisons.sort(key=lambda one: one.difference.mean, reverse=not metric.lower_is_better)
    return Findings(baseline, comparisons, [_best(table, metric), *_count(comparisons, baseline)])


def _difference(row: Row, baseline: Row, metric: Metric) -> Difference:
    """A row less the baseline; of a main effect only what ran on both sides, or other choices would be in it."""
    values, others = row.measured(metric.name), baseline.measured(metric.name)
    shared = values.keys() & others.keys()
    if row.marginal and len(shared) >= 2:
        values, others = ({key: side[key] for key in side if key in shared} for side in (values, others))
    return difference(values, others)


def _on_images(
    rows: Sequence[Row], baseline: Row, metric: Metric, judged: Mapping[str, Judged]
) -> list[OnImages | None]:
    """McNemar's test of each pair of models with the same seed, and a bootstrap over images."""
    tables: list[list[tuple[int, int, float]]] = []
    bounds: list[tuple[float, float]] = []
    for row in rows:
        sides = [list(side.runs.values()) for side in (row, baseline)]
        if metric.name != "test/acc" or not all(run.name in judged for side in sides for run in side):
            tables.append([])
            bounds.append((math.nan, math.nan))
            continue
        shared = [key for key in row.runs if key in baseline.runs]
        pairs = [(row.runs[key], baseline.runs[key]) for key in shared] or [(sides[0][0], sides[1][0])]
        tables.append([mcnemar(judged[one.name].right, judged[other.name].right) for one, other in pairs])
        means = [np.mean([judged[run.name].right for run in side], axis=0) for side in sides]
        bounds.append(over_images(means[0] - means[1]))
    corrected = iter(holm([p for table in tables for *_, p in table]))
    found: list[OnImages | None] = []
    for table, (low, high) in zip(tables, bounds, strict=True):
        only = [(one, other) for one, other, _ in table]
        p = [next(corrected) for _ in table]
        found.append(OnImages(_images(judged), only, p, low, high) if table else None)
    return found


def _images(judged: Mapping[str, Judged]) -> int:
    return len(next(iter(judged.values())).labels)


def _best(table: Table, metric: Metric) -> str:
    means = [Interval.of(list(row.measured(metric.name).values())) for row in table.rows]
    best = means[0]
    row = table.rows[0]
    for other, mean in zip(table.rows, means, strict=True):
        if metric.better(mean.mean, best.mean):
            row, best = other, mean
    spread = f" ± {metric.number(best.half)}" if best.count > 1 else ""
    runs = f"{best.count} run{'s' if best.count > 1 else ''}"
    what = f"{metric.number(best.mean)}{spread}{metric.unit} over {runs}"
    if len(table.rows) == 1:
        return f"{metric.title} of {row.label}: {what}"
    kind = "lowest" if metric.lower_is_better else "highest"
    return f"{kind} mean {metric.title} of {len(table.rows)} configurations: {row.label}, {what}"


def _count(comparisons: Sequence[Comparison], baseline: Row) -> list[str]:
    """How many rows are told apart from the baseline; nothing of one or two, whose sentences say it."""
    if len(comparisons) < 3:
        return []
    numbers = {verdict: sum(one.verdict == verdict for one in comparisons) for verdict in ("better", "worse", "open")}
    told = [f"{numbers[verdict]} {verdict}" for verdict in ("better", "worse") if numbers[verdict]]
    rest = f"{numbers['open']} cannot be told from it" if numbers["open"] else ""
    return [f"of {len(comparisons)} compared with {baseline.label}: {', '.join([*told, *([rest] if rest else [])])}"]


def _by_seeds(
    row: Row,
    baseline: Row,
    one: Difference,
    p: float,
    verdict: str,
    metric: Metric,
    tests: int,
    smallest: float | None,
) -> str:
    marginal = row.marginal
    repeats = _repeats(one, marginal)
    if verdict != "open":
        by = f"{metric.size(one.mean)} ({_bounds(one, metric)})"
        return f"{row.label} is {verdict} than {baseline.label} by {by}, {repeats}"
    names = f"{row.label} and {baseline.label}"
    few = min(one.counts)
    if few < 2:
        return f"{names}: no difference can be told from 1 {'run' if marginal else 'seed'}; 3 at least are needed"
    if math.isnan(one.p):
        each = "all pairs differ" if one.paired else "both differ, without any spread,"
        return f"{names}: {each} by the same {metric.size(one.mean)}, which {repeats} cannot judge"
    size = smallest or _one_digit(one.mean, metric) or one.spread
    more = ""
    if one.spread > 0:
        needed = seeds_needed(size, one.spread, paired=one.paired, comparisons=tests)
        kind = "pairs" if marginal and one.paired else "runs each" if marginal else "seeds"
        if needed is None:
            more = f"; {metric.size(size)} would take more than 1,000 {kind} to show"
        elif needed <= few:
            more = f"; a difference of {metric.size(size)} would probably have been seen"
        else:
            more = f"; about {needed} would show {_size(size, metric)}"
    if one.p < LEVEL:
        return (
            f"{names}: no difference can be told from {repeats} once {tests} comparisons are corrected for "
            f"(p = {probability(one.p)} alone, {probability(p)} corrected){more}"
        )
    return f"{names}: no difference can be told from {repeats}{more}"


def _by_images(row: Row, baseline: Row, images: OnImages, metric: Metric) -> str:
    pairs = len(images.only)
    bounds = f"{metric.signed(images.low)} to {metric.signed(images.high)} points"
    interval = f"over images alone the difference is {bounds} (bootstrap)"
    if pairs == 1:
        (ours, theirs), p = images.only[0], images.p[0]
        told = "these two models differ" if p < LEVEL else "these two models cannot be told apart"
        return (
            f"on the same {images.images:,} test images {told}: {row.label} alone has {ours} right, {baseline.label} "
            f"alone {theirs} (McNemar's exact test, p = {probability(p)}); {interval}"
        )
    apart = sum(p < LEVEL for p in images.p)
    return (
        f"on the same {images.images:,} test images McNemar's exact test tells {apart} of {pairs} pairs of models of "
        f"{row.label} and {baseline.label} apart; {interval}"
    )


def _repeats(one: Difference, marginal: bool) -> str:
    count, other = one.counts
    if marginal:
        return f"{count} pairs of runs" if one.paired else f"{count} and {other} runs, not paired"
    if one.paired or count == other:
        return f"{count} seed{'s' if count > 1 else ''}{'' if one.paired else ' each, not paired'}"
    return f"{count} and {other} seeds, not paired"


def _bounds(one: Difference, metric: Metric) -> str:
    """The interval of a difference, told as a size: both ends turn with the sign of the mean."""
    low, high = (one.low, one.high) if one.mean >= 0 else (-one.high, -one.low)
    return f"{metric.number(low)} to {metric.number(high)}"


def _one_digit(value: float, metric: Metric) -> float:
    """A size to one significant digit; 0 where it would be shown as nothing."""
    rounded = float(f"{abs(value):.0e}")
    return rounded if float(metric.number(rounded).replace(NONE, "0")) else 0.0


def _size(value: float, metric: Metric) -> str:
    """A size without digits that say nothing: ``0.2 points``."""
    number, _, unit = metric.size(value).partition(" ")
    return f"{float(number):g} {unit}".strip()


def probability(p: float) -> str:
    """A p-value as it is written."""
    return NONE if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
