"""What the best configuration of a sweep is worth beyond having been selected, and how to measure it."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from vitrine.compare.folds import Fold
from vitrine.compare.selection import corrected_over_seeds, luck_of
from vitrine.config.metrics import lower_is_better
from vitrine.runs import RunRecord
from vitrine.runs.flatten import flatten
from vitrine.sweeps.progress import format_metric
from vitrine.sweeps.sweep import BestConfiguration, Group, by_configuration
from vitrine.sweeps.trial import TrialResult
from vitrine.text import printable


def print_selection(
    best: BestConfiguration,
    common: Sequence[str],
    varies: Sequence[Mapping[str, str]],
    results: Sequence[TrialResult],
    metric: str,
    overlap: float = 0.0,
) -> None:
    """Print what a grid's best configuration is worth beyond having been selected; ``overlap`` is of its folds."""
    groups: dict[Group, dict[Group, float]] = {
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
    if best.over_folds:
        repeated = list(map(_by_fold, known.values()))
    else:
        repeated = [dict[Hashable, float](values.items()) for values in known.values()]
    print_selected(best, common, repeated, chosen, sorted(seeds), metric, overlap)


def print_selected(
    best: BestConfiguration,
    common: Sequence[str],
    groups: Sequence[Mapping[Hashable, float]],
    chosen: int,
    seeds: Sequence[int],
    metric: str,
    overlap: float = 0.0,
) -> None:
    """Print it for configurations with the values ``groups``, of which ``chosen`` is the index of the best.

    Args:
        best: the best configuration.
        common: flags and overrides that the commands of all configurations share.
        groups: values of the metric of each configuration, by seed or by fold.
        chosen: index of the best.
        seeds: that were used.
        metric: what it was selected by.
        overlap: of the training images of folds; 0 for seeds.
    """
    if len(groups) < 2:
        return
    corrected = corrected_over_seeds(groups, overlap, lower_is_better=lower_is_better(metric))
    mean = format_metric(fmean(groups[chosen].values()))
    part = luck_of(mean, "" if corrected is None else format_metric(corrected))
    print(f"its {metric}, the best of {len(groups)}, {part}; on fresh seeds:")
    print(f"  {printable(best.on_fresh_seeds(common, seeds))}")


def overlap_of_folds(best: BestConfiguration, trials: Iterable[tuple[Mapping[str, str], TrialResult, Path]]) -> float:
    """Return the overlap of the training images of the best configuration's folds; 0 if it has seeds.

    Args:
        best: the best configuration.
        trials: varying overrides, result and folder of each trial.

    Raises:
        RunError: the configuration of a run of it cannot be read.
    """
    if not best.over_folds:
        return 0.0
    runs = (
        folder
        for varies, result, folder in trials
        if result.status == "finished" and best.varies.items() <= varies.items()
    )
    fold = Fold.of(flatten(RunRecord(next(runs)).config))
    return 0.0 if fold is None else fold.overlap


def _by_fold(values: Mapping[Group, float]) -> dict[Hashable, float]:
    """Return the mean over the seeds of each fold, which share their images and so are no repetitions."""
    folds: dict[Group, list[float]] = {}
    for repetition, value in values.items():
        folds.setdefault(tuple(pair for pair in repetition if pair[0] != "seed"), []).append(value)
    return {fold: fmean(some) for fold, some in folds.items()}


def _seed_of(varies: Mapping[str, str], common: Sequence[str]) -> int | None:
    """The seed of a trial, if it is a plain number."""
    seed = _typed(varies, common).get("seed", "0")
    return int(seed) if seed.isdecimal() else None


def _typed(varies: Mapping[str, str], common: Sequence[str]) -> dict[str, str]:
    """The overrides of a trial by key."""
    return {key: value for key, _, value in (override.partition("=") for override in common)} | dict(varies)
