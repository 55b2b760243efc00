"""Findings: each configuration against a baseline, tested over seeds and over test images, in sentences."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vitrine.compare.best_row import best_sentences, may_be_best
from vitrine.compare.decided import DecidedRow, SweepDecision
from vitrine.compare.failures import FailureRate, failure_rates
from vitrine.compare.folds import overlap_of
from vitrine.compare.image_comparison import ImageComparison, Side, compare_images, image_sentence
from vitrine.compare.left_out import LeftOut
from vitrine.compare.load import RunResult
from vitrine.compare.looks import Growth
from vitrine.compare.method import method_of, sequential_method
from vitrine.compare.metric import Metric
from vitrine.compare.predictions import Predictions
from vitrine.compare.seed_sentence import are_equal, seed_sentence, withheld_sentence
from vitrine.compare.sequential_rule import MIN_SEEDS
from vitrine.compare.simultaneous import Family, PooledVariance, levene_p, residuals
from vitrine.compare.statistics import ALONE, Difference, difference
from vitrine.compare.table import ConfigurationRow, Table, mean_by_seed, other_values_of, seed_of
from vitrine.config.metrics import bias_of
from vitrine.text import listed


@dataclass(frozen=True)
class BaselineComparison:
    """A row against the baseline.

    Attributes:
        row: the row.
        difference: the row's mean minus the baseline's, over seeds. It has no interval and no p-value with fewer than 3
            seeds on a side, where no fixed number of seeds was set, or only survivors were averaged.
        on_images: the comparison on the test images, if predictions are stored.
        verdict: ``better`` or ``worse`` if the interval of the difference excludes zero, with at least 3 seeds on
            either side; else ``inconclusive``.
        equal: whether the interval lies within a size that matters, so that an inconclusive row counts as equal.
        sentences: the finding over seeds, and, with predictions, the finding over images.
    """

    row: ConfigurationRow
    difference: Difference
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
        return "without a verdict" if math.isnan(self.difference.corrected) else "not significantly different"


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
    known = predictions if not fixed_images and all(found.is_sample for found in predictions.values()) else {}
    complete = all(row.runs.keys() == baseline.runs.keys() for row in table.rows)
    values = [row.values_by_seed(metric.name) for row in table.rows]
    more = left_out.configurations  # their variances are not known, so each pair has its own
    pooled = PooledVariance.of(values) if complete and not more else None
    tests = max(1, sum(not math.isnan(_difference(pair, metric, {}, pooled=pooled).p) for pair in sides))
    family = _family(math.comb(len(table.rows) + more, 2) if all_pairs else tests + more, pooled, all_pairs=all_pairs)
    differences = [_difference(pair, metric, known, family, pooled) for pair in sides]
    on_images = compare_images(list(zip(sides, differences, strict=True)), metric, predictions)
    failed = failure_rates(table, unfinished)
    biased = bool(bias_of(metric.name))

    def judged(row: ConfigurationRow, tested: Difference) -> BaselineComparison:
        """The row's comparison over seeds: as the sweep decided it, by a test, or without a verdict."""
        decided = None if decision is None else decision.about(row, baseline, metric.name)
        if decided is not None:
            return _decided(row, tested, decided)
        found = _tested(row, baseline, tested, metric, family, difference_of_interest)
        rates = failed[row.label], failed[baseline.label]
        added = _why_seeds_were_added(row, baseline, decision, growth)
        reason = f"seeds were added {added}" if added else left_out.withheld(row, baseline)
        if biased:
            reason = f"{metric.title} depends on accuracy, too"
        if not reason and _rests_on_survivors(found.verdict, rates, equal=found.equal):
            reason = "means are over survivors"
        if reason and not math.isnan(tested.p):
            found = _withheld(found, baseline, reason, metric)
        return replace(found, sentences=[found.sentences[0] + _failures(row, baseline, rates)])

    comparisons = []
    for row, tested, images in zip(others, differences, on_images, strict=True):
        found = judged(row, tested)
        said = [] if images is None else [image_sentence(row, baseline, images, metric)]
        comparisons.append(replace(found, on_images=images, sentences=[*found.sentences, *said]))
    comparisons.sort(key=lambda comparison: _sort_key(comparison.difference.mean, metric))

    def against(row: ConfigurationRow, other: ConfigurationRow, family: Family) -> Difference:
        return _difference(_comparable_runs(row, other), metric, known, family, pooled)

    survivors = {rate.share for rate in failed.values()}
    fixed = decision is None and growth is None and not left_out.rows and len(survivors) == 1 and not biased
    candidates: list[ConfigurationRow] = []
    sentences: list[str] = []
    if table.is_balanced:  # otherwise means also differ in which combinations are missing
        candidates, where = may_be_best(table, metric, baseline, pooled, against, more) if fixed else ([], "")
        sentences = best_sentences(table, metric, candidates, where, unfinished, fixed=fixed)
    sentences += _verdict_counts(comparisons, baseline)
    rest = residuals(values) if complete else None
    levene = math.nan if rest is None else levene_p(rest)
    tested_alone = [comparison.difference for comparison in comparisons if not math.isnan(comparison.difference.p)]
    shown = [baseline, *(comparison.row for comparison in comparisons if not math.isnan(comparison.difference.low))]
    method = method_of(tested_alone, family, levene, shown, all_pairs=all_pairs)
    if decision is not None and any(math.isfinite(comparison.difference.low) for comparison in comparisons):
        method = sequential_method(1 - decision.alpha)
    return Findings(baseline, comparisons, sentences, candidates, failed, method)


def _tested(
    row: ConfigurationRow,
    baseline: ConfigurationRow,
    tested: Difference,
    metric: Metric,
    family: Family,
    size: float | None,
) -> BaselineComparison:
    """The comparison by a test of a fixed number of seeds; ``size`` is the difference of interest."""
    verdict = "inconclusive"
    if tested.low > 0 or tested.high < 0:  # false for NaN
        verdict = "better" if metric.improves(tested.mean) else "worse"
    sentence = seed_sentence(row, baseline, tested, verdict, metric, family, size)
    return BaselineComparison(row, tested, None, verdict, are_equal(tested, size), [sentence])


def _decided(row: ConfigurationRow, tested: Difference, decided: DecidedRow) -> BaselineComparison:
    """The comparison as the sweep decided it."""
    mean = tested.mean if math.isnan(decided.mean) else decided.mean  # the interval is of the pairs of a look
    tested = replace(tested, mean=mean, low=decided.low, high=decided.high, p=math.nan, corrected=math.nan)
    verdict = decided.verdict if decided.verdict in ("better", "worse") else "inconclusive"
    return BaselineComparison(row, tested, None, verdict, decided.verdict == "equal", [decided.sentence])


def _withheld(found: BaselineComparison, baseline: ConfigurationRow, reason: str, metric: Metric) -> BaselineComparison:
    """The comparison without verdict and interval, which do not hold for a ``reason``."""
    nan = math.nan
    tested = replace(found.difference, low=nan, high=nan, p=nan, corrected=nan)
    sentences = [withheld_sentence(found.row, baseline, tested, reason, metric)]
    return replace(found, difference=tested, verdict="inconclusive", equal=False, sentences=sentences)


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
    correct, groups = None, None
    if metric.name == "test/acc" and all(run.name in predictions for run in runs):
        ours, theirs = (
            mean_by_seed({key: predictions[run.name].observations for key, run in side.items()}) for side in sides
        )
        correct, known = (ours, theirs), predictions[runs[0].name]
        groups = None if known.groups is None else (len(known.labels), known.freedom)
    found = difference(values, others, family, correct, pooled, overlap, groups)
    if min(found.counts) < MIN_SEEDS:  # too few to judge by
        nan = math.nan
        return replace(found, low=nan, high=nan, p=nan, corrected=nan)
    if metric.is_bounded:
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


def _why_seeds_were_added(
    row: ConfigurationRow, baseline: ConfigurationRow, decision: SweepDecision | None, growth: Growth | None
) -> str:
    """Return which results decided on the number of seeds; empty if none did."""
    if decision is not None:
        return f"until {decision.metric} decided between configurations"
    found = {} if growth is None else growth.rows
    return found.get(row.label) or found.get(baseline.label, "")
