"""Findings: each configuration against a baseline, tested over seeds and over test images, in sentences."""

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitrine.compare.decided import SweepDecision
from vitrine.compare.failures import failure_rate
from vitrine.compare.folds import overlap_of
from vitrine.compare.load import RunResult
from vitrine.compare.metric import MISSING, Metric
from vitrine.compare.predictions import Predictions
from vitrine.compare.sequential_rule import MIN_SEEDS
from vitrine.compare.statistics import (
    SIGNIFICANCE_LEVEL,
    ConfidenceInterval,
    Difference,
    bootstrap_interval,
    difference,
    holm,
    largest_spread,
    mcnemar,
    seeds_needed,
    smallest_difference,
)
from vitrine.compare.table import ConfigurationRow, Table, mean_by_seed, other_values_of, seed_of
from vitrine.text import listed, plural

VERDICTS = ("better", "worse", "inconclusive")


@dataclass(frozen=True)
class ImageComparison:
    """Models of two rows on the same test images.

    Attributes:
        images: number of test images.
        only: per pair of models (those with equal seeds, or the only two), the number of images that only the row's
            model classifies correctly, and only the baseline's.
        p: p-value of McNemar's exact test per pair, corrected for the number of pairs in all comparisons (Holm).
        low, high: 95 % bootstrap interval, over images, of the difference in accuracy.
    """

    images: int
    only: list[tuple[int, int]]
    p: list[float]
    low: float
    high: float


@dataclass(frozen=True)
class BaselineComparison:
    """A row against the baseline.

    Attributes:
        row: the row.
        difference: the row's mean minus the baseline's, over seeds.
        p: p-value of the difference, times the number of comparisons (Bonferroni): below 5 % if and only if its
            interval excludes zero.
        on_images: the comparison on the test images, if predictions are stored.
        verdict: ``better`` or ``worse`` if the interval of the difference excludes zero, with at least 3 seeds on
            either side; else ``inconclusive``.
        sentences: the finding over seeds, and, with predictions, the finding over images.
    """

    row: ConfigurationRow
    difference: Difference
    p: float
    on_images: ImageComparison | None
    verdict: str
    sentences: list[str]


@dataclass(frozen=True)
class Findings:
    """Findings of a table.

    Attributes:
        baseline: the row that others are compared with.
        comparisons: one per other row, the best mean first.
        sentences: the best row, and how many rows are better or worse than the baseline.
    """

    baseline: ConfigurationRow
    comparisons: list[BaselineComparison]
    sentences: list[str]


def findings(
    table: Table,
    metric: Metric,
    baseline: ConfigurationRow,
    predictions: Mapping[str, Predictions],
    difference_of_interest: float | None = None,
    *,
    all_pairs: bool = False,
    fixed_images: bool = False,
    decision: SweepDecision | None = None,
    unfinished: Sequence[RunResult] = (),
) -> Findings:
    """Compare every other row with the baseline.

    Args:
        table: the rows to compare.
        metric: what they are compared by.
        baseline: one of the table's rows.
        predictions: by the run's name, of runs that stored some.
        difference_of_interest: the difference to plan the number of seeds for, and to call rows equal within, in the
            metric's unit.
        all_pairs: intervals hold for all pairs of rows, since the baseline was chosen by its result.
        fixed_images: the test images are not a sample: findings are about these.
        decision: what the sweep decided while it trained; its intervals and verdicts replace those of a fixed number of
            seeds.
        unfinished: runs that did not finish: a row that fails more often than the other is not called better.
    """
    others = [row for row in table.rows if row is not baseline]
    sides = [_comparable_runs(row, baseline) for row in others]
    tests = max(1, sum(not math.isnan(_difference(pair, metric, {}).p) for pair in sides))
    if all_pairs:
        tests = math.comb(len(table.rows), 2)
    known = {} if fixed_images else predictions
    differences = [_difference(pair, metric, known, tests) for pair in sides]
    corrected = [min(1.0, tests * tested.p) if tested.p >= 0 else math.nan for tested in differences]
    on_images = _compare_images(list(zip(sides, differences, strict=True)), metric, predictions)
    comparisons = []
    for row, tested, p, images in zip(others, differences, corrected, on_images, strict=True):
        verdict = "inconclusive"
        if (tested.low > 0 or tested.high < 0) and min(tested.counts) >= MIN_SEEDS:  # false for NaN
            verdict = "better" if metric.is_better(tested.mean, 0.0) else "worse"
        sentences = [_seed_sentence(row, baseline, tested, p, verdict, metric, tests, difference_of_interest)]
        if decision is not None and (decided := decision.about(row, baseline, metric.name)) is not None:
            tested, p = replace(tested, low=decided.low, high=decided.high, p=math.nan), math.nan
            verdict = decided.verdict if decided.verdict in ("better", "worse") else "inconclusive"
            sentences = [decided.sentence]
        if survivors := _only_survivors(verdict, row, baseline, unfinished):
            verdict, sentences = "inconclusive", [survivors]
        if images is not None:
            sentences.append(_image_sentence(row, baseline, images, metric))
        comparisons.append(BaselineComparison(row, tested, p, images, verdict, sentences))
    comparisons.sort(key=lambda comparison: _sort_key(comparison.difference.mean, metric))
    return Findings(baseline, comparisons, [_best_sentence(table, metric), *_verdict_counts(comparisons, baseline)])


def _only_survivors(
    verdict: str, row: ConfigurationRow, baseline: ConfigurationRow, unfinished: Sequence[RunResult]
) -> str:
    """Why a verdict does not count, if the side that it favours failed more often; else empty."""
    favoured, other = {"better": (row, baseline), "worse": (baseline, row)}.get(verdict, (row, row))
    rate = failure_rate(favoured, unfinished)
    if rate.failed <= failure_rate(other, unfinished).failed:
        return ""
    return f"{row.label} and {baseline.label}: no verdict, since means are over survivors; of {favoured.label}, {rate}"


def _sort_key(mean: float, metric: Metric) -> float:
    """Best first, unknown last."""
    return math.inf if math.isnan(mean) else mean if metric.lower_is_better else -mean


Side = Mapping[Hashable, RunResult]


def _comparable_runs(row: ConfigurationRow, baseline: ConfigurationRow) -> tuple[Side, Side]:
    """The runs of both rows to compare; of a main effect, only those that differ in nothing else.

    With at least two seeds in common, these are the runs with equal seeds and equal values of the other columns.
    Otherwise they are the runs with such values of the other columns as ran with every seed of both rows. Any other run
    would confound the difference.
    """
    if not row.is_main_effect:
        return row.runs, baseline.runs
    kept = row.runs.keys() & baseline.runs.keys()
    if len({seed_of(key) for key in kept}) < 2:
        sides = (row, baseline)
        count = sum(side.seeds for side in sides)
        other_values = Counter(other_values_of(key) for side in sides for key in side.runs)
        kept = {key for side in sides for key in side.runs if other_values[other_values_of(key)] == count}
    ours, theirs = ({key: run for key, run in side.runs.items() if key in kept} for side in (row, baseline))
    return ours, theirs


def _difference(
    sides: tuple[Side, Side], metric: Metric, predictions: Mapping[str, Predictions], comparisons: int = 1
) -> Difference:
    values, others = (
        mean_by_seed({key: float(run.metrics[metric.name]) for key, run in side.items()}) for side in sides
    )
    runs = [run for side in sides for run in side.values()]
    overlap = max(map(overlap_of, sides))
    if metric.name != "test/acc" or not all(run.name in predictions for run in runs):
        return difference(values, others, comparisons, overlap=overlap)
    ours, theirs = (mean_by_seed({key: predictions[run.name].correct for key, run in side.items()}) for side in sides)
    return difference(values, others, comparisons, (ours, theirs), overlap)


def _compare_images(
    pairs_of_sides: Sequence[tuple[tuple[Side, Side], Difference]],
    metric: Metric,
    predictions: Mapping[str, Predictions],
) -> list[ImageComparison | None]:
    """McNemar's test of each pair of models with equal seeds, and a bootstrap over images; ``None`` if not possible."""
    tables: list[list[tuple[int, int, float]]] = []
    intervals: list[tuple[float, float] | None] = []
    for (ours, theirs), tested in pairs_of_sides:
        runs = [*ours.values(), *theirs.values()]
        if metric.name != "test/acc" or not (ours and theirs) or not all(run.name in predictions for run in runs):
            tables.append([])
            intervals.append(None)
            continue
        pairs = [(run, theirs[key]) for key, run in ours.items() if key in theirs]
        if len(runs) == 2:
            pairs = [(runs[0], runs[1])]
        tables.append([mcnemar(predictions[run.name].correct, predictions[other.name].correct) for run, other in pairs])
        sides = [
            mean_by_seed({key: predictions[run.name].correct for key, run in side.items()}) for side in (ours, theirs)
        ]
        seeds = sides[0].keys() & sides[1].keys() if tested.paired else sides[0].keys() | sides[1].keys()
        means = [np.mean([value for seed, value in side.items() if seed in seeds], axis=0) for side in sides]
        intervals.append(bootstrap_interval(means[0] - means[1]))
    corrected = iter(holm([p for table in tables for *_, p in table]))
    comparisons: list[ImageComparison | None] = []
    for table, interval in zip(tables, intervals, strict=True):
        only = [(ours_only, theirs_only) for ours_only, theirs_only, _ in table]
        p = [next(corrected) for _ in table]
        images = len(next(iter(predictions.values())).labels) if interval else 0
        comparisons.append(ImageComparison(images, only, p, *interval) if interval else None)
    return comparisons


def _best_sentence(table: Table, metric: Metric) -> str:
    means = [ConfidenceInterval.of(list(row.values_by_seed(metric.name).values()), row.overlap) for row in table.rows]
    row, best = table.rows[0], means[0]
    for other, mean in zip(table.rows, means, strict=True):
        if metric.is_better(mean.mean, best.mean):
            row, best = other, mean
    interval = f" ± {metric.number(best.half_width)}" if best.count > 1 else ""
    runs = plural(best.count, row.repetitions if row.is_main_effect or row.overlap else "run")
    value = f"{metric.number(best.mean)}{interval}{metric.unit} over {runs}"
    if len(table.rows) == 1:
        return f"{metric.title} of {row.label}: {value}"
    kind = "lowest" if metric.lower_is_better else "highest"
    return f"{kind} mean {metric.title} of {len(table.rows)} configurations: {row.label}, {value}"


def _verdict_counts(comparisons: Sequence[BaselineComparison], baseline: ConfigurationRow) -> list[str]:
    """How many rows are better or worse than the baseline; nothing for one or two, whose sentences say so."""
    if len(comparisons) < 3:
        return []
    counts = Counter(comparison.verdict for comparison in comparisons)
    names = dict(zip(VERDICTS, ("better", "worse", "not significantly different"), strict=True))
    texts = [f"{counts[verdict]} {names[verdict]}" for verdict in VERDICTS if counts[verdict]]
    return [f"of {len(comparisons)} configurations compared with {baseline.label}: {listed(texts)}"]


def _seed_sentence(
    row: ConfigurationRow,
    baseline: ConfigurationRow,
    tested: Difference,
    p: float,
    verdict: str,
    metric: Metric,
    tests: int,
    difference_of_interest: float | None,
) -> str:
    seeds = _seeds(tested, row.repetitions)
    if verdict != "inconclusive":
        low, high = (tested.low, tested.high) if tested.mean >= 0 else (-tested.high, -tested.low)
        kind = "95 % interval" if tests == 1 else "simultaneous 95 % interval"
        interval = f"{kind} {metric.number(low)} to {metric.number(high)}; {seeds}{_images(row, tested, metric)}"
        return f"{row.label} is {verdict} than {baseline.label} by {metric.magnitude(tested.mean)} ({interval})"
    names = f"{row.label} and {baseline.label}"
    count = min(tested.counts)
    if count == 0:
        return f"{names} cannot be compared: no combination of the other choices ran with every seed of both"
    if count < 2 or (count < MIN_SEEDS and tested.p < SIGNIFICANCE_LEVEL):
        return f"{names} cannot be compared with {plural(count, row.repetitions)}: at least {MIN_SEEDS} are needed"
    if math.isnan(tested.p):
        differ = "all pairs differ by" if tested.paired else f"neither varies over {row.repetitions}s; they differ by"
        return f"{names}: {differ} exactly {metric.magnitude(tested.mean)}, so no test is possible ({seeds})"
    text = f"{names}: no significant difference over {seeds}{_images(row, tested, metric)}"
    if tested.p < SIGNIFICANCE_LEVEL:
        text += (
            f" after correction for {tests} comparisons (p = {format_p(tested.p)} uncorrected, {format_p(p)} corrected)"
        )
    if tested.sd == 0 or count < MIN_SEEDS or row.overlap:  # the number of folds is no choice
        return text
    size = difference_of_interest
    if size is None:
        shown = smallest_difference(count, tested.sd, paired=tested.paired, comparisons=tests)
        return f"{text}, which show differences of {_short_magnitude(shown, metric)} with 80 % power"
    if -size <= tested.low and tested.high <= size:
        interval = f"95 % interval {metric.signed(tested.low)} to {metric.signed(tested.high)}; {seeds}"
        interval += _images(row, tested, metric)
        return f"{names} are equal within {_short_magnitude(size, metric)} ({interval})"
    spread = largest_spread(tested.sd, count - 1 if tested.paired else sum(tested.counts) - 2)
    needed = seeds_needed(size, spread, paired=tested.paired, comparisons=tests)
    if needed is None:
        return f"{text}; detecting {_short_magnitude(size, metric)} with 80 % power takes more than 1,000 seeds"
    if needed > count:
        return f"{text}; detecting {_short_magnitude(size, metric)} with 80 % power takes up to {needed} seeds"
    return text


def _image_sentence(row: ConfigurationRow, baseline: ConfigurationRow, images: ImageComparison, metric: Metric) -> str:
    pairs = len(images.only)
    where = f"on the same {plural(images.images, 'test image')}"
    bounds = f"{metric.signed(images.low)} to {metric.signed(images.high)} points"
    interval = f"the difference is {bounds} over images alone (95 % bootstrap interval)"
    if not pairs:
        return f"{where}, {interval}"
    if pairs == 1:
        (ours, theirs), p = images.only[0], images.p[0]
        differ = "the two models differ" if p < SIGNIFICANCE_LEVEL else "the two models do not differ significantly"
        return (
            f"{where}, {differ}: {ours} are correct only with {row.label}, {theirs} only with {baseline.label} "
            f"(McNemar's exact test, p = {format_p(p)}); {interval}"
        )
    significant = [only for only, p in zip(images.only, images.p, strict=True) if p < SIGNIFICANCE_LEVEL]
    wins = sum(ours > theirs for ours, theirs in significant)
    favour = f", {wins} in favour of {row.label}" if significant else ""
    return (
        f"{where}, McNemar's exact test finds a difference in {len(significant)} of {pairs} pairs of models with equal "
        f"seeds{favour}; {interval}"
    )


def _images(row: ConfigurationRow, tested: Difference, metric: Metric) -> str:
    """On which images a finding holds, if only on these: ``, on these 360 images``."""
    if tested.new_images or not metric.is_accuracy:
        return ""
    run = next(iter(row.runs.values()))
    count = (run.facts.get("images") or {}).get(metric.name.partition("/")[0])
    return f", on these {plural(count, 'image')}" if count else ""


def _seeds(tested: Difference, what: str) -> str:
    count, other = tested.counts
    if tested.paired or count == other:
        return f"{plural(count, what)}{'' if tested.paired else ' each, unpaired'}"
    return f"{count} and {plural(other, what)}, unpaired"


def _short_magnitude(value: float, metric: Metric) -> str:
    """A difference to two significant digits, without trailing zeros: ``0.2 points``, ``1 point``."""
    number, _, unit = metric.magnitude(float(f"{value:.1e}")).partition(" ")
    return f"{float(number):g} {'point' if (float(number), unit) == (1, 'points') else unit}".strip()


def format_p(p: float) -> str:
    """Return a p-value as text: ``< 0.001``, ``0.034``, ``0.21``."""
    return MISSING if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
