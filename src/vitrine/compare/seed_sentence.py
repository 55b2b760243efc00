"""The finding over seeds of a row against the baseline, in a sentence."""

import math
from collections.abc import Sequence
from dataclasses import replace

from vitrine.compare.difference import Difference
from vitrine.compare.metric import Metric, format_p, p_equals
from vitrine.compare.row_mean import mean_of, on_these_images
from vitrine.compare.seed_plan import Plan, largest_spread
from vitrine.compare.selection import first_fresh_seed
from vitrine.compare.sequential_rule import MIN_SEEDS
from vitrine.compare.simultaneous import SIGNIFICANCE_LEVEL, Family
from vitrine.compare.table import ConfigurationRow, repetitions_of
from vitrine.text import plural


def seed_sentence(
    row: ConfigurationRow,
    baseline: ConfigurationRow,
    tested: Difference,
    verdict: str,
    metric: Metric,
    family: Family,
    size: float | None,
) -> str:
    """Return the finding over seeds in a sentence; ``size`` is the difference of interest."""
    names = f"{row.label} and {baseline.label}"
    over = f"{_seeds(tested, row, baseline)}{on_these_images(row, tested, metric)}"
    kind = "95 % interval" if family.comparisons == 1 else "simultaneous 95 % interval"
    if verdict != "inconclusive":
        low, high = (tested.low, tested.high) if tested.mean >= 0 else (-tested.high, -tested.low)
        by = metric.magnitude(tested.mean)
        if size is not None and are_equal(tested, size):
            by += f", but by no more than {metric.size(size)}"
        interval = f"{kind} {metric.number(low)} to {metric.number(high)}; {over}"
        return f"{row.label} is {verdict} than {baseline.label} by {by} ({interval})"
    if untested := _why_untested(row, baseline, tested, metric):
        return f"{names}{untested}"
    text = f"{names}: no significant difference over {over}"
    if tested.p < SIGNIFICANCE_LEVEL:
        text += (
            f", after correction for {family.comparisons} comparisons ({p_equals(tested.p)} uncorrected, "
            f"{format_p(tested.corrected)} corrected)"
        )
    if tested.sd == 0 or tested.overlap:  # the number of folds is no choice
        return text
    if size is not None and are_equal(tested, size):
        interval = f"{kind} {metric.signed(tested.low)} to {metric.signed(tested.high)}; {over}"
        return f"{names} are equal within {metric.size(size)} ({interval})"
    return text + _power([row, baseline], tested, metric, family, size)


def _why_untested(row: ConfigurationRow, baseline: ConfigurationRow, tested: Difference, metric: Metric) -> str:
    """Return why there is no test, as it follows the names of the rows; empty if there is one."""
    count = min(tested.counts)
    if count == 0:
        return " cannot be compared: no combination of the other choices ran with every seed of both"
    if count < MIN_SEEDS:
        fewer = row if count == tested.counts[0] else baseline
        return f" cannot be compared with {plural(count, fewer.repetitions)}: at least {MIN_SEEDS} are needed"
    if not math.isnan(tested.p):
        return ""
    what = f"neither varies over {repetitions_of([row, baseline])}; they differ by"
    differ = "all pairs differ by" if tested.paired else what
    seeds = _seeds(tested, row, baseline)
    return f": {differ} exactly {metric.magnitude(tested.mean)}, so no test is possible ({seeds})"


def _power(
    rows: Sequence[ConfigurationRow], tested: Difference, metric: Metric, family: Family, size: float | None
) -> str:
    """Return what these seeds can detect, or what it takes to detect ``size``, as it follows a finding.

    ``rows`` are the row and the baseline.
    """
    count, paired = min(tested.counts), tested.shared > 0
    freedom_per_seed = tested.freedom / (tested.shared - 1) if paired else 1.0
    plan = Plan(tested.sd, paired, family, freedom_per_seed, tested.image_variance, tested.image_freedom)
    if size is None:
        shown = plan.detects(count, tested.freedom)
        seeds_each = f"{plural(count, 'seed')}{'' if paired else ' each'}"
        mean = mean_of(rows[1], metric).mean if metric.is_bounded else math.nan
        if shown > max(mean, 1 - mean):
            return f"; {seeds_each} cannot detect any possible difference with 80 % power"
        return f"; smallest difference that {seeds_each} detect with 80 % power: {metric.short_magnitude(shown)}"
    takes = f"; detecting {metric.size(size)} with 80 % power takes"
    if plan.hides(size):
        return f"{takes} more {'groups of ' * tested.grouped}test images"
    needed = replace(plan, sd=largest_spread(tested.sd, tested.freedom)).seeds_for(size)
    if needed is None:
        return f"{takes} more than 1,000 seeds"
    if needed <= count:
        return ""
    fresh = first_fresh_seed((run.seed for row in rows for run in row.runs.values()), needed)
    # From seed 0 on, it would count the seeds of this comparison as new evidence.
    return f"{takes} up to {needed} fresh seeds, or sweep=decide seed={fresh}"


def withheld_sentence(
    row: ConfigurationRow, baseline: ConfigurationRow, tested: Difference, reason: str, metric: Metric
) -> str:
    """Return the difference in a sentence, and the reason why there is no verdict."""
    return (
        f"{row.label} and {baseline.label}: no verdict, since {reason}; "
        f"the difference is {metric.signed(tested.mean)}{metric.difference_unit} over {_seeds(tested, row, baseline)}"
    )


def are_equal(tested: Difference, size: float | None) -> bool:
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
