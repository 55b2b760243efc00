"""Tests over seeds of the rows of a table against each other."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from vitrine.compare.difference import ALONE, Difference, difference
from vitrine.compare.folds import overlap_of
from vitrine.compare.image_comparison import Side
from vitrine.compare.metric import Metric
from vitrine.compare.predictions import Predictions
from vitrine.compare.sequential_rule import MIN_SEEDS
from vitrine.compare.simultaneous import Family, PooledVariance
from vitrine.compare.table import ConfigurationRow, Table, mean_by_seed, other_values_of, seed_of


@dataclass(frozen=True)
class RowTests:
    """How rows are tested.

    Attributes:
        metric: what they are compared by.
        predictions: stored predictions by the run's name, where the test images are a sample; else none.
        pooled: the variance of all rows, if they share one.
        family: the comparisons of each other row with the baseline.
    """

    metric: Metric
    predictions: Mapping[str, Predictions]
    pooled: PooledVariance | None
    family: Family = ALONE

    @classmethod
    def of(
        cls,
        table: Table,
        baseline: ConfigurationRow,
        metric: Metric,
        predictions: Mapping[str, Predictions],
        *,
        left_out: int,
        all_pairs: bool,
    ) -> "RowTests":
        """Choose the family and the variance for a table's comparisons.

        With the pooled variance of all rows, critical values are Dunnett's against the baseline and Tukey's for all
        pairs; with the own variances of each pair, Bonferroni's.

        Args:
            table: the rows.
            baseline: that the others are compared with.
            metric: what they are compared by.
            predictions: by the run's name; none where the test images are not a sample.
            left_out: number of configurations that could have been rows. Their variances are not known, so that each
                pair has its own.
            all_pairs: intervals hold for all pairs of rows, since the baseline was chosen by its result.
        """
        values = [row.values_by_seed(metric.name) for row in table.rows]
        pooled = PooledVariance.of(values) if table.is_complete and not left_out else None
        alone = cls(metric, {}, pooled)
        tested = sum(not math.isnan(alone.difference(row, baseline).p) for row in table.rows if row is not baseline)
        comparisons = math.comb(len(table.rows) + left_out, 2) if all_pairs else max(1, tested) + left_out
        method = "bonferroni" if pooled is None else "tukey" if all_pairs else "dunnett"
        return cls(metric, predictions, pooled, Family(comparisons, method, pooled=pooled is not None))

    def difference(self, row: ConfigurationRow, other: ConfigurationRow, family: Family | None = None) -> Difference:
        """Return the difference of two rows' means; without interval and p-value for fewer than 3 seeds on a side."""
        sides = comparable_runs(row, other)
        name = self.metric.name
        values, others = (mean_by_seed({key: float(run.metrics[name]) for key, run in side.items()}) for side in sides)
        runs = [run for side in sides for run in side.values()]
        correct, groups = None, None
        if name == "test/acc" and all(run.name in self.predictions for run in runs):
            ours, theirs = (
                mean_by_seed({key: self.predictions[run.name].observations for key, run in side.items()})
                for side in sides
            )
            correct, known = (ours, theirs), self.predictions[runs[0].name]
            groups = None if known.groups is None else (len(known.labels), known.freedom)
        overlap = max(map(overlap_of, sides))
        found = difference(values, others, family or self.family, correct, self.pooled, overlap, groups)
        if min(found.counts) < MIN_SEEDS:  # too few to judge by
            nan = math.nan
            return replace(found, low=nan, high=nan, p=nan, corrected=nan)
        if self.metric.is_bounded:
            return replace(found, low=max(found.low, -1.0), high=min(found.high, 1.0))  # NaN stays
        return found


def comparable_runs(row: ConfigurationRow, other: ConfigurationRow) -> tuple[Side, Side]:
    """Return the runs of both rows to compare; of a main effect, only those that differ in nothing else.

    With at least two seeds in common, these are the runs with equal seeds and equal values of the other columns.
    Otherwise they are the runs with such values of the other columns as ran with every seed of both rows. Any other run
    would confound the difference.
    """
    if not row.is_main_effect:
        return row.runs, other.runs
    kept = row.runs.keys() & other.runs.keys()
    if len({seed_of(key) for key in kept}) < 2:
        sides = (row, other)
        count = sum(side.seeds for side in sides)
        other_values = Counter(other_values_of(key) for side in sides for key in side.runs)
        kept = {key for side in sides for key in side.runs if other_values[other_values_of(key)] == count}
    ours, theirs = ({key: run for key, run in side.runs.items() if key in kept} for side in (row, other))
    return ours, theirs
