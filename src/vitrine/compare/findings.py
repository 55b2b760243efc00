"""Findings: each configuration against a baseline, tested over seeds and over test images, in sentences."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vitrine.compare.best import best_sentences, may_be_best
from vitrine.compare.decided import SweepDecision
from vitrine.compare.failures import FailureRate, failure_rates
from vitrine.compare.folds import overlap_of
from vitrine.compare.image_comparison import ImageComparison, Side, compare_images, image_sentence
from vitrine.compare.left_out import LeftOut
from vitrine.compare.load import RunResult
from vitrine.compare.looks import Growth
from vitrine.compare.method import method_of, sequential_method
from vitrine.compare.metric import Metric, format_p, p_equals
from vitrine.compare.predictions import Predictions
from vitrine.compare.row_mean import mean_of, on_these_images
from vitrine.compare.sequential_rule import MIN_SEEDS
from vitrine.compare.simultaneous import SIGNIFICANCE_LEVEL, Family, PooledVariance, levene_p, residuals
from vitrine.compare.statistics import (
    ALONE,
    Difference,
    difference,
    hidden_by_images,
    largest_spread,
    seeds_needed,
    smallest_difference,
)
from vitrine.compare.table import ConfigurationRow, Table, mean_by_seed, other_values_of, repetitions_of, seed_of
from vitrine.text import listed, plural


@dataclass(frozen=True)
class BaselineComparison:
    """A row against the baseline.

    Attributes:
        row: the row.
        difference: the row's mean minus the baseline's, over seeds.
        p: p-value of the difference, corrected for all comparisons: below 5 % if and only if its interval excludes
            zero. NaN, as the interval is, with fewer than 3 seeds on a side, where no fixed number of seeds was set
            or only survivors were averaged.
        on_images: the comparison on the test images, if predictions are stored.
        verdict: ``better`` or ``worse`` if the interval of the difference excludes zero, with at least 3 seeds on
            either side; else ``inconclusive``.
        equal: whether the interval lies within a size that matters, so that an inconclusive row counts as equal.
        sentences: the finding over seeds, and, with predictions, the finding over images.
    """

    row: ConfigurationRow
    difference: Difference
    p: float
    on_images: ImageComparison | None
    verdict: str
    equal: bool
    sentences: list[str]

    @property
    def kind(self) -> str:
        """What the row counts as: its verdict, or ``equal``, ``not significantly different``, ``without a verdict``."""
        if self.verdict != "inconclusive":
            return self.verdict
        if self.equal:
            return "equal"
        return "without a verdict" if math.isnan(self.p) else "not significantly different"


@dataclass(frozen=True)
class Findings:
    """Findings of a table.

    Attributes:
        baseline: the row that others are compared with.
        comparisons: one per other row, the best mean first.
        sentences: the best row, and how many rows are better or worse than the baseline.
        candidates: rows that may be the best, with 95 % confidence; empty where that cannot be determined.
        failed: how many runs of each row failed or diverged, by the row's label.
        method: the test behind intervals and p-values, in a sentence; empty if nothing was tested.
    """

    baseline: ConfigurationRow
    comparisons: list[BaselineComparison]
    sentences: list[str]
    candidates: list[ConfigurationRow]
    failed: Mapping[str, FailureRate]
    method: str = ""

    def comparison_of(self, row: ConfigurationRow) -> BaselineComparison | None:
        """Return the comparison of a row with the baseline; ``None`` of the baseline itself."""
        return next((tested for tested in self.comparisons if tested.row is row), None)


def findings(
    table: Table,
    metric: Metric,
    baseline: ConfigurationRow,
    predictions: Mapping[str, Predictions],
    difference_of_interest: float | None,
    *,
    all_pairs: bool,
    fixed_images: bool,
    decision: SweepDecision | None,
    unfinished: Sequence[RunResult],
    growth: Growth | None,
    left_out: LeftOut,
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
        growth: rows to which seeds were added because of results: no interval of a fixed number of seeds holds for
            them.
        left_out: configurations that a filter left out count as rows; rows without all seeds have no verdict.
    """
    others = [row for row in table.rows if row is not baseline]
    sides = [_comparable_runs(row, baseline) for row in others]
    one_image = any(len(found.labels) < 2 for found in predictions.values())  # does not tell how others vary
    known = {} if fixed_images or one_image else predictions
    complete = all(row.runs.keys() == baseline.runs.keys() for row in table.rows)
    values = [row.values_by_seed(metric.name) for row in table.rows]
    more = left_out.configurations  # their variances are not known, so each pair has its own
    pooled = PooledVariance.of(values) if complete and not more else None
    tests = max(1, sum(not math.isnan(_difference(pair, metric, {}, pooled=pooled).p) for pair in sides))
    family = _family(math.comb(len(table.rows) + more, 2) if all_pairs else tests + more, pooled, all_pairs=all_pairs)
    differences = [_difference(pair, metric, known, family, pooled) for pair in sides]
    on_images = compare_images(list(zip(sides, differences, strict=True)), metric, predictions)
    failed = failure_rates(table, unfinished)
    comparisons = []
    for row, tested, images in zip(others, differences, on_images, strict=True):
        p = tested.corrected
        verdict = "inconclusive"
        if tested.low > 0 or tested.high < 0:  # false for NaN
            verdict = "better" if metric.improves(tested.mean) else "worse"
        sentences = [_seed_sentence(row, baseline, tested, verdict, metric, family, difference_of_interest)]
        decided = None if decision is None else decision.about(row, baseline, metric.name)
        rates = failed[row.label], failed[baseline.label]
        added = _why_seeds_were_added(row, baseline, decision, growth)
        withheld = f"seeds were added {added}" if added else left_out.withheld(row, baseline)
        equal = _are_equal(tested, difference_of_interest)
        if decided is not None:
            mean = tested.mean if math.isnan(decided.mean) else decided.mean  # the interval is of the pairs of a look
            tested = replace(tested, mean=mean, low=decided.low, high=decided.high, p=math.nan)
            p = math.nan
            verdict = decided.verdict if decided.verdict in ("better", "worse") else "inconclusive"
            equal = decided.verdict == "equal"
            sentences = [decided.sentence]
        elif not math.isnan(tested.p) and (withheld or _rests_on_survivors(verdict, rates, equal=equal)):
            reason = withheld or "means are over survivors"
            tested, p, verdict = replace(tested, low=math.nan, high=math.nan, p=math.nan), math.nan, "inconclusive"
            equal = False
            sentences = [_withheld_sentence(row, baseline, tested, reason, metric)]
        if decided is None:
            sentences[0] += _failures(row, baseline, rates)
        if images is not None:
            sentences.append(image_sentence(row, baseline, images, metric))
        comparisons.append(BaselineComparison(row, tested, p, images, verdict, equal, sentences))
    comparisons.sort(key=lambda comparison: _sort_key(comparison.difference.mean, metric))

    def against(row: ConfigurationRow, other: ConfigurationRow, family: Family) -> Difference:
        return _difference(_comparable_runs(row, other), metric, known, family, pooled)

    survivors = {rate.share for rate in failed.values()}
    fixed = decision is None and growth is None and not left_out.rows and len(survivors) == 1
    candidates, where = may_be_best(table, metric, baseline, pooled, against, more) if fixed else ([], "")
    best = best_sentences(table, metric, candidates, where, unfinished, fixed=fixed)
    sentences = [*best, *_verdict_counts(comparisons, baseline)]
    rest = residuals(values) if complete else None
    levene = math.nan if rest is None else levene_p(rest)
    tested_alone = [comparison.difference for comparison in comparisons if not math.isnan(comparison.p)]
    shown = [baseline, *(comparison.row for comparison in comparisons if not math.isnan(comparison.difference.low))]
    method = method_of(tested_alone, family, levene, shown, all_pairs=all_pairs)
    if decision is not None and any(math.isfinite(comparison.difference.low) for comparison in comparisons):
        method = sequential_method(1 - decision.alpha)
    return Findings(baseline, comparisons, sentences, candidates, failed, method)


def _rests_on_survivors(verdict: str, rates: tuple[FailureRate, FailureRate], *, equal: bool) -> bool:
    """Whether a finding favours the side that failed more often, or calls sides equal that failed differently often.

    Means are over the runs that survived, and say nothing of the others.
    """
    more_failures = rates[0].share - rates[1].share
    return {"better": more_failures > 0, "worse": more_failures < 0}.get(verdict, equal and more_failures != 0)


def _failures(row: ConfigurationRow, baseline: ConfigurationRow, rates: tuple[FailureRate, FailureRate]) -> str:
    """``; of rope, 1 of 4 runs failed ...``: the sides that failed, if any."""
    failed = [f"of {side.label}, {rate}" for side, rate in zip((row, baseline), rates, strict=True) if rate.failed]
    return f"; {' and '.join(failed)}" if failed else ""


def _sort_key(mean: float, metric: Metric) -> float:
    """Best first, unknown last."""
    return math.inf if math.isnan(mean) else mean if metric.lower_is_better else -mean


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


def _family(comparisons: int, pooled: PooledVariance | None, *, all_pairs: bool) -> Family:
    """The critical values for the differences of a table.

    With the pooled variance of all rows, Dunnett's against the baseline and Tukey's for all pairs; with the own
    variances of each pair, Bonferroni's.
    """
    if pooled is None:
        return Family(comparisons)
    return Family(comparisons, "tukey" if all_pairs else "dunnett", pooled=True)


def _difference(
    sides: tuple[Side, Side],
    metric: Metric,
    predictions: Mapping[str, Predictions],
    family: Family = ALONE,
    pooled: PooledVariance | None = None,
) -> Difference:
    values, others = (
        mean_by_seed({key: float(run.metrics[metric.name]) for key, run in side.items()}) for side in sides
    )
    runs = [run for side in sides for run in side.values()]
    overlap = max(map(overlap_of, sides))
    correct = None
    if metric.name == "test/acc" and all(run.name in predictions for run in runs):
        ours, theirs = (
            mean_by_seed({key: predictions[run.name].correct for key, run in side.items()}) for side in sides
        )
        correct = ours, theirs
    found = difference(values, others, family, correct, pooled, overlap)
    if min(found.counts) < MIN_SEEDS:  # too few to judge by
        nan = math.nan
        return replace(found, low=nan, high=nan, p=nan, corrected=nan, effect_size=nan)
    if metric.is_accuracy:
        return replace(found, low=max(found.low, -1.0), high=min(found.high, 1.0))  # NaN stays
    return found


def _verdict_counts(comparisons: Sequence[BaselineComparison], baseline: ConfigurationRow) -> list[str]:
    """How many rows are better or worse than the baseline; nothing for one or two, whose sentences say so."""
    if len(comparisons) < 3:
        return []
    kinds = ("better", "worse", "equal", "not significantly different", "without a verdict")
    counts = Counter(comparison.kind for comparison in comparisons)
    texts = [f"{counts[kind]} {kind}" for kind in kinds if counts[kind]]
    return [f"of {len(comparisons)} configurations compared with {baseline.label}: {listed(texts)}"]


def _seed_sentence(
    row: ConfigurationRow,
    baseline: ConfigurationRow,
    tested: Difference,
    verdict: str,
    metric: Metric,
    family: Family,
    size: float | None,
) -> str:
    """Return the finding over seeds in a sentence; ``size`` is the difference of interest."""
    seeds, what = _seeds(tested, row, baseline), repetitions_of([row, baseline])
    kind = "95 % interval" if family.comparisons == 1 else "simultaneous 95 % interval"
    if verdict != "inconclusive":
        low, high = (tested.low, tested.high) if tested.mean >= 0 else (-tested.high, -tested.low)
        interval = (
            f"{kind} {metric.number(low)} to {metric.number(high)}; {seeds}{on_these_images(row, tested, metric)}"
        )
        by = metric.magnitude(tested.mean)
        if size is not None and _are_equal(tested, size):
            by += f", but by no more than {metric.size(size)}"
        return f"{row.label} is {verdict} than {baseline.label} by {by} ({interval})"
    names = f"{row.label} and {baseline.label}"
    count = min(tested.counts)
    if count == 0:
        return f"{names} cannot be compared: no combination of the other choices ran with every seed of both"
    if count < MIN_SEEDS:
        fewer = row if count == tested.counts[0] else baseline
        return f"{names} cannot be compared with {plural(count, fewer.repetitions)}: at least {MIN_SEEDS} are needed"
    if math.isnan(tested.p):
        differ = "all pairs differ by" if tested.paired else f"neither varies over {what}; they differ by"
        return f"{names}: {differ} exactly {metric.magnitude(tested.mean)}, so no test is possible ({seeds})"
    text = f"{names}: no significant difference over {seeds}{on_these_images(row, tested, metric)}"
    if tested.p < SIGNIFICANCE_LEVEL:
        text += (
            f", after correction for {family.comparisons} comparisons ({p_equals(tested.p)} uncorrected, "
            f"{format_p(tested.corrected)} corrected)"
        )
    if tested.sd == 0 or tested.overlap:  # the number of folds is no choice
        return text
    paired = tested.shared > 0
    if size is None:
        shown = smallest_difference(
            count,
            tested.sd,
            paired=paired,
            family=family,
            freedom=tested.freedom,
            image_variance=tested.image_variance,
        )
        seeds_each = f"{plural(count, 'seed')}{'' if paired else ' each'}"
        accuracy = mean_of(baseline, metric).mean if metric.is_accuracy else math.nan
        if shown > max(accuracy, 1 - accuracy):
            return f"{text}; {seeds_each} cannot detect any possible difference with 80 % power"
        return f"{text}; smallest difference that {seeds_each} detect with 80 % power: {metric.short_magnitude(shown)}"
    if _are_equal(tested, size):
        interval = f"{kind} {metric.signed(tested.low)} to {metric.signed(tested.high)}; {seeds}"
        interval += on_these_images(row, tested, metric)
        return f"{names} are equal within {metric.size(size)} ({interval})"
    takes = f"{text}; detecting {metric.size(size)} with 80 % power takes"
    spread = largest_spread(tested.sd, tested.freedom)
    if hidden_by_images(size, tested.image_variance, family):
        return f"{takes} more test images"
    needed = seeds_needed(
        size,
        spread,
        paired=paired,
        family=family,
        freedom_per_seed=tested.freedom / (tested.shared - 1) if paired else 1.0,
        image_variance=tested.image_variance,
    )
    if needed is None:
        return f"{takes} more than 1,000 seeds"
    if needed > count:
        return f"{takes} up to {needed} fresh seeds, or sweep=decide"
    return text


def _why_seeds_were_added(
    row: ConfigurationRow, baseline: ConfigurationRow, decision: SweepDecision | None, growth: Growth | None
) -> str:
    """Return which results decided on the number of seeds; empty if none did."""
    if decision is not None:
        return f"until {decision.metric} decided between configurations"
    found = {} if growth is None else growth.rows
    return found.get(row.label) or found.get(baseline.label, "")


def _withheld_sentence(
    row: ConfigurationRow, baseline: ConfigurationRow, tested: Difference, reason: str, metric: Metric
) -> str:
    return (
        f"{row.label} and {baseline.label}: no verdict, since {reason}; "
        f"the difference is {metric.signed(tested.mean)}{metric.difference_unit} over {_seeds(tested, row, baseline)}"
    )


def _are_equal(tested: Difference, size: float | None) -> bool:
    """Whether the interval of a difference lies within a size that matters (two one-sided tests; Schuirmann, 1987)."""
    return size is not None and -size <= tested.low and tested.high <= size  # false for NaN


def _seeds(tested: Difference, row: ConfigurationRow, baseline: ConfigurationRow) -> str:
    """``5 seeds, r = 0.85``: r is the correlation over seeds that both sides have."""
    count, other = tested.counts
    correlation = "" if math.isnan(tested.correlation) else f", r = {tested.correlation:.2f}"
    ours, theirs = plural(count, row.repetitions), plural(other, baseline.repetitions)
    if tested.paired:
        return f"{ours}{correlation}"
    if row.repetitions == baseline.repetitions:
        counts = f"{ours} each" if count == other else f"{count} and {theirs}"
    else:
        counts = f"{ours} and {theirs}"
    return f"{counts}, {tested.shared} of them in common{correlation}" if tested.shared else f"{counts}, unpaired"
