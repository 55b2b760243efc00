"""What the best configuration of a sweep is worth beyond having been selected, and how to measure it."""

import math
from collections.abc import Hashable, Mapping, Sequence

from vitrine.compare.selection import corrected_over_seeds, luck_of
from vitrine.sweeps.progress import format_value
from vitrine.sweeps.sweep import BestConfiguration, Group, by_configuration
from vitrine.sweeps.trial import TrialResult
from vitrine.text import printable


def print_selection(
    best: BestConfiguration,
    common: Sequence[str],
    varies: Sequence[Mapping[str, str]],
    results: Sequence[TrialResult],
    metric: str,
) -> None:
    """Print what a grid's best configuration is worth beyond having been selected."""
    groups: dict[Group, dict[Hashable, float]] = {
        group: {
            repetition: value
            for repetition, result in members.items()
            if math.isfinite(value := result.metrics.get(metric, math.nan))
        }
        for group, members in by_configuration(varies, results).items()
    }
    known = {group: values for group, values in groups.items() if len(values) == best.count}
    seeds = {number for overrides in varies if (number := _seed_of(overrides, common)) is not None}
    chosen = list(known).index(tuple(best.varies.items()))
    print_selected(best, common, list(known.values()), chosen, sorted(seeds), metric)


def print_selected(
    best: BestConfiguration,
    common: Sequence[str],
    groups: Sequence[Mapping[Hashable, float]],
    chosen: int,
    seeds: Sequence[int],
    metric: str,
) -> None:
    """Print it for configurations with the values ``groups``, of which ``chosen`` is the index of the best.

    Args:
        best: the best configuration.
        common: overrides that all configurations share.
        groups: values of the metric of each configuration, by seed.
        chosen: index of the best.
        seeds: that were used.
        metric: what it was selected by.
    """
    if len(groups) < 2:
        return
    corrected = corrected_over_seeds(groups, chosen)
    part = luck_of("" if corrected is None else format_value(corrected))
    print(f"its {metric}, the best of {len(groups)}, {part}; on fresh seeds:")
    print(f"  {printable(best.on_fresh_seeds(common, seeds))}")


def _seed_of(varies: Mapping[str, str], common: Sequence[str]) -> int | None:
    """The seed of a trial, if it is a plain number."""
    typed = {key: value for key, _, value in (override.partition("=") for override in common)} | dict(varies)
    seed = typed.get("seed", "0")
    return int(seed) if seed.isdecimal() else None
