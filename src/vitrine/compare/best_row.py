"""The best row of a table: which rows it may be, and how good it is without what it owes to having been chosen."""

from collections.abc import Sequence

from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.compare.load import RunResult
from vitrine.compare.metric import Metric
from vitrine.compare.row_mean import mean_of, on_these_images
from vitrine.compare.row_tests import RowTests
from vitrine.compare.run_groups import MAX_LISTED
from vitrine.compare.selection import corrected_over_seeds, fresh_seeds_command
from vitrine.compare.sequential_rule import MIN_SEEDS
from vitrine.compare.simultaneous import Family
from vitrine.compare.table import ConfigurationRow, Table
from vitrine.text import listed, plural

SEVERAL = 3  # rows from which a mean is the best of many


def may_be_best(
    table: Table, baseline: ConfigurationRow, tests: RowTests, left_out: int
) -> tuple[list[ConfigurationRow], str]:
    """Return the rows that are not worse than any with a better mean, with 95 % confidence (Hsu, 1984); the best first.

    With variances of their own, the best mean may be the least certain. With one of all rows, only the part over images
    differs between pairs: rows are compared with the best mean, and with the baseline, as their verdicts are. Of two
    rows, both are returned unless the two-sided interval of their difference excludes zero, as their verdict has it.
    Where rows have too few seeds to tell, none is.

    Args:
        table: the rows.
        baseline: the row that the others' verdicts are about.
        tests: how rows are tested.
        left_out: number of configurations that could have been rows.

    Returns:
        The rows; and on which images that holds, if only on these: ``, on these 360 images``.
    """
    metric, pooled = tests.metric, tests.pooled
    means = {row: mean_of(row, metric) for row in table.rows}
    if len(means) < 2 or min(mean.count for mean in means.values()) < MIN_SEEDS:
        return [], ""
    ranked = sorted(table.rows, key=lambda row: means[row].mean, reverse=not metric.lower_is_better)
    method = "bonferroni" if pooled is None else "dunnett"
    family = Family(len(means) - 1 + left_out, method, one_sided=len(means) >= SEVERAL, pooled=pooled is not None)
    left, where = ranked[:1], ""
    for place, row in enumerate(ranked[1:], start=1):
        better_ones = ranked[:place]
        if pooled is not None:
            better_ones = [one for one in better_ones if one is ranked[0] or one is baseline]
        for better in better_ones:
            found = tests.difference(better, row, family)
            where = where or on_these_images(better, found, metric)
            if (-found.high if metric.lower_is_better else found.low) > 0:  # false for NaN, which leaves a row in
                break
        else:
            left.append(row)
    return left, where


def best_sentences(
    table: Table,
    metric: Metric,
    candidates: Sequence[ConfigurationRow],
    where: str,
    unfinished: Sequence[RunResult],
    *,
    fixed: bool,
) -> list[str]:
    """Return sentences about the best mean, and, of three or more rows, about what its selection means.

    Args:
        table: the rows.
        metric: what they are compared by.
        candidates: the rows that may be the best (:func:`may_be_best`).
        where: on which images that holds, if only on these.
        unfinished: runs whose seeds are not fresh, either.
        fixed: whether the number of seeds was set beforehand, and means are over all runs. Otherwise only the best mean
            is named.
    """
    values = [row.values_by_seed(metric.name) for row in table.rows]
    means = [mean_of(row, metric) for row in table.rows]
    best = _index_of_best(means, metric)
    row, mean = table.rows[best], means[best]
    runs = plural(mean.count, row.repetitions if row.is_main_effect or row.overlap else "run")
    value = f"{metric.interval(mean)}{metric.unit} over {runs}"
    if len(table.rows) == 1:
        return [f"{metric.title} of {row.label}: {value}"]
    sentences = [f"{metric.best} mean {metric.title} of {len(table.rows)} configurations: {row.label}, {value}"]
    if not fixed or len(table.rows) < SEVERAL or min(mean.count for mean in means) < 2:
        return sentences
    corrected = corrected_over_seeds(values, row.overlap, lower_is_better=metric.lower_is_better)
    if corrected is not None and metric.value(corrected) != metric.value(mean.mean):
        sentences[0] += f"; {metric.value(corrected)} corrected for choosing the best of {len(means)}"
    if candidates:
        sentences.append(_candidates_sentence(candidates, len(table.rows), where))
    used = [run.seed for run in (*(run for row in table.rows for run in row.runs.values()), *unfinished)]
    return [*sentences, *_on_fresh_seeds(row, used)]


def _index_of_best(means: Sequence[ConfidenceInterval], metric: Metric) -> int:
    first = min if metric.lower_is_better else max
    return first(range(len(means)), key=lambda index: means[index].mean)


def _candidates_sentence(candidates: Sequence[ConfigurationRow], rows: int, where: str) -> str:
    sure = f"with 95 % confidence{where},"
    if len(candidates) == 1:
        return f"{sure} {candidates[0].label} is the best of all {rows}"
    if len(candidates) == rows:
        return f"{sure} any of the {rows} may be the best"
    labels = listed([row.label for row in candidates], MAX_LISTED)
    return f"{sure} the best of all {rows} is among {len(candidates)} of them: {labels}"


def _on_fresh_seeds(row: ConfigurationRow, used: Sequence[object]) -> list[str]:
    """The command that measures a row on seeds it was not chosen by, if its configuration is on disk."""
    run = next(iter(row.runs.values()))
    seeds = [run.seed for run in row.runs.values()]
    if row.is_main_effect or row.overlap or run.folder is None or not all(isinstance(seed, int) for seed in seeds):
        return []
    return [f"to measure {row.label} on fresh seeds: {fresh_seeds_command(run.folder, run.facts, seeds, used)}"]
