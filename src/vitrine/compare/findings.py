"""Findings: each configuration against a baseline, tested over seeds and over test images, in sentences."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vitrine.compare.best_row import best_sentences, may_be_best
from vitrine.compare.decided import DecidedRow, SweepDecision
from vitrine.compare.difference import Difference
from vitrine.compare.failures import FailureRate
from vitrine.compare.history import History
from vitrine.compare.image_comparison import ImageComparison, compare_images, image_sentence
from vitrine.compare.method import method_of, sequential_method
from vitrine.compare.metric import Metric
from vitrine.compare.predictions import Predictions
from vitrine.compare.row_tests import RowTests, comparable_runs
from vitrine.compare.seed_sentence import are_equal, seed_sentence, withheld_sentence
from vitrine.compare.simultaneous import levene_p, residuals
from vitrine.compare.table import ConfigurationRow, Table
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
    baseline: ConfigurationRow,
    metric: Metric,
    predictions: Mapping[str, Predictions],
    history: History,
    *,
    difference_of_interest: float | None,
    all_pairs: bool,
    fixed_images: bool,
) -> Findings:
    """Compare every other row with the baseline.

    Args:
        table: the rows to compare.
        baseline: one of the table's rows.
        metric: what they are compared by.
        predictions: by the run's name, of runs that stored some.
        history: how the runs came about.
        difference_of_interest: the difference to plan the number of seeds for, and to call rows equal within, in the
            metric's unit.
        all_pairs: intervals hold for all pairs of rows, since the baseline was chosen by its result.
        fixed_images: the test images are not a sample: findings are about these.
    """
    others = [row for row in table.rows if row is not baseline]
    sampled = predictions if not fixed_images and all(found.is_sample for found in predictions.values()) else {}
    left_out = history.left_out.configurations
    tests = RowTests.of(table, baseline, metric, sampled, left_out=left_out, all_pairs=all_pairs)
    differences = [tests.difference(row, baseline) for row in others]
    sides = [comparable_runs(row, baseline) for row in others]
    on_images = compare_images(list(zip(sides, differences, strict=True)), metric, predictions)
    comparisons = []
    for row, tested, images in zip(others, differences, on_images, strict=True):
        found = _judged(row, baseline, tested, tests, history, difference_of_interest)
        said = [] if images is None else [image_sentence(row, baseline, images, metric)]
        comparisons.append(replace(found, on_images=images, sentences=[*found.sentences, *said]))
    comparisons.sort(key=lambda comparison: _sort_key(comparison.difference.mean, metric))
    candidates: list[ConfigurationRow] = []
    sentences: list[str] = []
    if table.is_balanced:  # otherwise means also differ in which combinations are missing
        fixed = history.is_fixed and not bias_of(metric.name)
        candidates, where = may_be_best(table, baseline, tests, left_out) if fixed else ([], "")
        sentences = best_sentences(table, metric, candidates, where, history.unfinished, fixed=fixed)
    sentences += _verdict_counts(comparisons, baseline)
    method = _method(table, baseline, comparisons, tests, history.decision, all_pairs=all_pairs)
    return Findings(baseline, comparisons, sentences, candidates, history.failed, method)


def _judged(
    row: ConfigurationRow,
    baseline: ConfigurationRow,
    tested: Difference,
    tests: RowTests,
    history: History,
    size: float | None,
) -> BaselineComparison:
    """The row's comparison over seeds: as the sweep decided it, by a test, or without a verdict."""
    metric = tests.metric
    decided = None if history.decision is None else history.decision.about(row, baseline, metric.name)
    if decided is not None:
        return _decided(row, tested, decided)
    verdict = "inconclusive"
    if tested.low > 0 or tested.high < 0:  # false for NaN
        verdict = "better" if metric.improves(tested.mean) else "worse"
    equal = are_equal(tested, size)
    reason = history.why_no_verdict(row, baseline, "equal" if equal and verdict == "inconclusive" else verdict)
    if bias_of(metric.name):
        reason = f"{metric.title} depends on accuracy, too"
    if reason and not math.isnan(tested.p):
        nan = math.nan
        tested = replace(tested, low=nan, high=nan, p=nan, corrected=nan)
        verdict, equal = "inconclusive", False
        sentence = withheld_sentence(row, baseline, tested, reason, metric)
    else:
        sentence = seed_sentence(row, baseline, tested, verdict, metric, tests.family, size)
    return BaselineComparison(row, tested, None, verdict, equal, [sentence + history.failures(row, baseline)])


def _decided(row: ConfigurationRow, tested: Difference, decided: DecidedRow) -> BaselineComparison:
    """The comparison as the sweep decided it."""
    mean = tested.mean if math.isnan(decided.mean) else decided.mean  # the interval is of the pairs of a look
    tested = replace(tested, mean=mean, low=decided.low, high=decided.high, p=math.nan, corrected=math.nan)
    verdict = decided.verdict if decided.verdict in ("better", "worse") else "inconclusive"
    return BaselineComparison(row, tested, None, verdict, decided.verdict == "equal", [decided.sentence])


def _sort_key(mean: float, metric: Metric) -> float:
    """Best first, unknown last."""
    return math.inf if math.isnan(mean) else mean if metric.lower_is_better else -mean


def _verdict_counts(comparisons: Sequence[BaselineComparison], baseline: ConfigurationRow) -> list[str]:
    """How many rows are better or worse than the baseline; nothing for one or two, whose sentences say so."""
    if len(comparisons) < 3:
        return []
    kinds = ("better", "worse", "equal", "not significantly different", "without a verdict")
    counts = Counter(comparison.kind for comparison in comparisons)
    texts = [f"{counts[kind]} {kind}" for kind in kinds if counts[kind]]
    return [f"of {len(comparisons)} configurations compared with {baseline.label}: {listed(texts)}"]


def _method(
    table: Table,
    baseline: ConfigurationRow,
    comparisons: Sequence[BaselineComparison],
    tests: RowTests,
    decision: SweepDecision | None,
    *,
    all_pairs: bool,
) -> str:
    """The test behind the intervals and p-values of ``comparisons``, in a sentence."""
    if decision is not None and any(math.isfinite(comparison.difference.low) for comparison in comparisons):
        return sequential_method(1 - decision.alpha)
    rest = residuals([row.values_by_seed(tests.metric.name) for row in table.rows]) if table.is_complete else None
    levene = math.nan if rest is None else levene_p(rest)
    tested = [comparison.difference for comparison in comparisons if not math.isnan(comparison.difference.p)]
    shown = [baseline, *(comparison.row for comparison in comparisons if not math.isnan(comparison.difference.low))]
    return method_of(tested, tests.family, levene, shown, all_pairs=all_pairs)
