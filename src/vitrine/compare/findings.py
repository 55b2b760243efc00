"""What can be said of a table of runs, in words: each row against a baseline, and how sure that is."""

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vitrine.compare.load import Run
from vitrine.compare.metric import NONE, Metric
from vitrine.compare.predictions import Judged
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
from vitrine.compare.table import Row, Table, by_seed, rest_of, seed_of
from vitrine.text import plural


@dataclass(frozen=True)
class OnImages:
    """Two rows' models on the same test images.

    Attributes:
        images: how many.
        only: for each pair of models with the same seed, or of the only two, the images that only the row's has right,
            and only the baseline's.
        p: McNemar's exact test of each pair, corrected for the number of pairs in all comparisons.
        low, high: bootstrap interval, over images, of the difference in accuracy of the runs compared.
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
    sides = [_sides(row, baseline) for row in others]
    differences = [_difference(pair, metric) for pair in sides]
    corrected = holm([one.p for one in differences])
    on_images = _on_images(list(zip(sides, differences, strict=True)), metric, judged)
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
    comparisons.sort(key=lambda one: _rank(one.difference.mean, metric))
    return Findings(baseline, comparisons, [_best(table, metric), *_count(comparisons, baseline)])


def _rank(mean: float, metric: Metric) -> float:
    """Best first; what is unknown last."""
    return math.inf if math.isnan(mean) else mean if metric.lower_is_better else -mean


Side = Mapping[Hashable, Run]


def _sides(row: Row, baseline: Row) -> tuple[Side, Side]:
    """The runs of either that a difference can be made of: of a main effect, only what ran on both sides.

    With two seeds in common, these are the runs of the same other choices and seed; else those of other choices that
    every seed of both sides ran with. Anything else would put a difference between other choices into it.
    """
    if not row.marginal:
        return row.runs, baseline.runs
    kept = row.runs.keys() & baseline.runs.keys()
    if len({seed_of(key) for key in kept}) < 2:
        sides = (row, baseline)
        count = sum(side.seeds for side in sides)
        rests = Counter(rest_of(key) for side in sides for key in side.runs)
        kept = {key for side in sides for key in side.runs if rests[rest_of(key)] == count}
    ours, theirs = ({key: run for key, run in side.runs.items() if key in kept} for side in (row, baseline))
    return ours, theirs


def _difference(sides: tuple[Side, Side], metric: Metric) -> Difference:
    values, others = (by_seed({key: float(run.metrics[metric.name]) for key, run in side.items()}) for side in sides)
    return difference(values, others)


def _on_images(
    each: Sequence[tuple[tuple[Side, Side], Difference]], metric: Metric, judged: Mapping[str, Judged]
) -> list[OnImages | None]:
    """McNemar's test of each pair of models that share a seed, and a bootstrap over images of the runs compared."""
    tables: list[list[tuple[int, int, float]]] = []
    bounds: list[tuple[float, float] | None] = []
    for (ours, theirs), one in each:
        runs = [*ours.values(), *theirs.values()]
        if metric.name != "test/acc" or not (ours and theirs) or not all(run.name in judged for run in runs):
            tables.append([])
            bounds.append(None)
            continue
        pairs = [(run, theirs[key]) for key, run in ours.items() if key in theirs]
        if len(runs) == 2:
            pairs = [(runs[0], runs[1])]
        tables.append([mcnemar(judged[run.name].right, judged[other.name].right) for run, other in pairs])
        right = [by_seed({key: judged[run.name].right for key, run in side.items()}) for side in (ours, theirs)]
        shared = right[0].keys() & right[1].keys() if one.paired else right[0].keys() | right[1].keys()
        means = [np.mean([value for seed, value in side.items() if seed in shared], axis=0) for side in right]
        bounds.append(over_images(means[0] - means[1]))
    corrected = iter(holm([p for table in tables for *_, p in table]))
    found: list[OnImages | None] = []
    for table, bound in zip(tables, bounds, strict=True):
        only = [(one, other) for one, other, _ in table]
        p = [next(corrected) for _ in table]
        found.append(OnImages(_images(judged), only, p, *bound) if bound else None)
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
    what = "seed" if row.marginal else "run"
    runs = plural(best.count, what)
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
    repeats = _repeats(one)
    if verdict != "open":
        by = f"{metric.size(one.mean)} ({_bounds(one, metric)})"
        return f"{row.label} is {verdict} than {baseline.label} by {by}, {repeats}"
    names = f"{row.label} and {baseline.label}"
    few = min(one.counts)
    if few == 0:
        return f"{names}: no other choice ran with every seed of both, so they cannot be compared"
    if few < 2:
        return f"{names}: no difference can be told from 1 seed; 3 at least are needed"
    if math.isnan(one.p):
        each = "all pairs differ" if one.paired else "both differ, without any spread,"
        return f"{names}: {each} by the same {metric.size(one.mean)}, which {repeats} cannot judge"
    size = smallest or _one_digit(one.mean, metric) or one.spread
    more = ""
    if one.spread > 0:
        needed = seeds_needed(size, one.spread, paired=one.paired, comparisons=tests)
        if needed is None:
            more = f"; {metric.size(size)} would take more than 1,000 seeds to show"
        elif needed > few:
            more = f"; about {needed} would show {_size(size, metric)}"
        elif smallest is not None:  # of the difference that was seen, and not told, this cannot be said
            more = f"; a difference of {_size(size, metric)} would probably have been seen"
    if one.p < LEVEL:
        return (
            f"{names}: no difference can be told from {repeats} once {tests} comparisons are corrected for "
            f"(p = {probability(one.p)} alone, {probability(p)} corrected){more}"
        )
    return f"{names}: no difference can be told from {repeats}{more}"


def _by_images(row: Row, baseline: Row, images: OnImages, metric: Metric) -> str:
    pairs = len(images.only)
    bounds = f"{metric.signed(images.low)} to {metric.signed(images.high)} points"
    same = f"on the same {plural(images.images, 'test image')}"
    if not pairs:
        return f"{same} the difference is {bounds} over images alone (bootstrap)"
    interval = f"over images alone the difference is {bounds} (bootstrap)"
    if pairs == 1:
        (ours, theirs), p = images.only[0], images.p[0]
        told = "these two models differ" if p < LEVEL else "these two models cannot be told apart"
        return (
            f"{same} {told}: {row.label} alone has {ours} right, {baseline.label} "
            f"alone {theirs} (McNemar's exact test, p = {probability(p)}); {interval}"
        )
    apart = [ours > theirs for (ours, theirs), p in zip(images.only, images.p, strict=True) if p < LEVEL]
    told = f"{row.label} has more right in {sum(apart)}, {baseline.label} in {len(apart) - sum(apart)}"
    return (
        f"{same} McNemar's exact test tells {len(apart)} of {pairs} pairs of models with the same seed apart"
        f"{f': {told}' if apart else ''}; {interval}"
    )


def _repeats(one: Difference) -> str:
    count, other = one.counts
    if one.paired or count == other:
        return f"{plural(count, 'seed')}{'' if one.paired else ' each, not paired'}"
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
