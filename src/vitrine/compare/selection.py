"""How good a configuration is that was chosen for its result, without its luck, and the command that measures it."""

import math
import shlex
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from vitrine.config.schema import MAX_SEED
from vitrine.runs.provenance import program
from vitrine.runs.user_code import trust_overrides

DRAWS = 1000  # of a bootstrap
MAX_LISTED = 10  # fresh seeds in a command; more are a range


def corrected_for_selection(means: Sequence[float], errors: Sequence[float], *, lower_is_better: bool) -> float:
    """Return the best of several means without what it owes to lucky trainings on average.

    Means scatter more than the configurations differ, and the best one is likely to be a lucky one. How lucky is
    simulated (parametric bootstrap): with the means as the truth, each varies by its error, and what the best one then
    owes to that is taken off. In simulations of 4 and of 12, a third of the luck is left if all are equal, next to
    nothing if they scatter, and one ahead of equal others loses up to 0.3 of its standard error too much. Luck with
    the images that all are measured on is left in.

    Args:
        means: (K,) of configurations, in any unit.
        errors: (K,) standard errors of these means, without what moves all of them alike (:func:`own_variance`).
        lower_is_better: whether the lowest is the best.
    """
    if lower_is_better:
        return -corrected_for_selection([-mean for mean in means], errors, lower_is_better=False)
    return max(means) - _luck_of_highest(means, errors)


def _luck_of_highest(truths: Sequence[float], errors: Sequence[float]) -> float:
    """What the highest of several values owes to its error on average, where they are normal around ``truths``."""
    import numpy as np

    ranked = sorted(zip(truths, errors, strict=True))  # one result, whatever their order
    truth, error = np.array(ranked).T
    half = np.random.default_rng(0).normal(size=(DRAWS // 2, len(truth)))
    drawn = error * np.concatenate([half, -half])  # so that one far ahead of the others loses nothing, and none gains
    winners = (truth + drawn).argmax(axis=1)
    return float(drawn[range(DRAWS), winners].mean())


def corrected_over_seeds(
    groups: Sequence[Mapping[Hashable, float]], overlap: float = 0.0, *, lower_is_better: bool
) -> float | None:
    """Return :func:`corrected_for_selection` of the best mean; ``None`` if chance can't be estimated.

    Args:
        groups: values by seed of each of K configurations; all are taken to vary alike.
        overlap: of training images, where values are of folds: that of :func:`vitrine.compare.statistics.difference`.
        lower_is_better: whether the lowest mean is the best.
    """
    own = own_variance(groups) if len(groups) > 2 else None
    if own is None:
        return None
    means = [fmean(values.values()) for values in groups]
    errors = [math.sqrt(own * (1 / len(values) + overlap)) for values in groups]
    return corrected_for_selection(means, errors, lower_is_better=lower_is_better)


def own_variance(groups: Sequence[Mapping[Hashable, float]]) -> float | None:
    """Return a run's variance apart from configuration and seed; ``None`` with less than two degrees of freedom.

    A lucky seed that all configurations share lifts all of their means, and so selects none of them. What is left by an
    additive model of configurations and of seeds in several of them does: with equal seeds, the residual variance of a
    two-way layout; with none in common, the variance within configurations.

    Args:
        groups: values by seed of each configuration.
    """
    import numpy as np

    times = Counter(seed for values in groups for seed in values)
    columns = {seed: len(groups) + index for index, seed in enumerate(seed for seed in times if times[seed] > 1)}
    cells = [(index, seed, value) for index, values in enumerate(groups) for seed, value in values.items()]
    model = np.zeros((len(cells), len(groups) + len(columns)))
    for cell, (index, seed, _) in enumerate(cells):
        model[cell, index] = 1
        if seed in columns:
            model[cell, columns[seed]] = 1
    observed = np.array([value for _, _, value in cells])
    found, _, rank, _ = np.linalg.lstsq(model, observed)
    freedom = len(cells) - int(rank)
    return None if freedom < 2 else float(((observed - model @ found) ** 2).sum()) / freedom


def corrected_single_run(groups: Sequence[Sequence[float]], *, lower_is_better: bool) -> float | None:
    """Return the best of all runs without what it owes to luck on average; ``None`` if chance can't be estimated.

    As :func:`corrected_for_selection`, where the truth about each run is the mean of its configuration.

    Args:
        groups: values of the runs of each configuration, over seeds.
        lower_is_better: whether the lowest value is the best.
    """
    if lower_is_better:
        highest = corrected_single_run([[-value for value in values] for values in groups], lower_is_better=False)
        return None if highest is None else -highest
    freedom = sum(len(values) - 1 for values in groups)
    if freedom < 2:
        return None
    squares = sum((len(values) - 1) * variance(values) for values in groups if len(values) > 1)
    truths = [fmean(values) for values in groups for _ in values]
    luck = _luck_of_highest(truths, [math.sqrt(squares / freedom)] * len(truths))
    return max(max(values) for values in groups) - luck


def luck_of(value: str, corrected: str) -> str:
    """Return what the value of the best of several is, corrected for having been chosen.

    Args:
        value: its value, as text.
        corrected: its corrected value, likewise; empty if that is unknown.
    """
    if not corrected:
        return "may be too good by chance"
    if corrected == value:
        return "hardly changes when corrected for that choice"
    return f"is {corrected} corrected for that choice"


def fresh_seeds(seeds: Sequence[int], used: Iterable[object] = ()) -> str:
    """Return the override for as many seeds as ``seeds``, at least three, in a row; many are a range.

    They are above ``seeds`` and ``used``, or the lowest apart from them if there is no room above.
    """
    taken = {*seeds, *(seed for seed in used if isinstance(seed, int))}
    count, first = max(3, len(seeds)), max(taken, default=-1) + 1
    if first + count - 1 > MAX_SEED:
        starts = sorted({0, *(seed + 1 for seed in taken)})
        first = next(start for start in starts if taken.isdisjoint(range(start, start + count)))
    fresh = range(first, first + count)
    many = f"range({fresh.start},{fresh.stop})"
    return f"seed={many if len(fresh) > MAX_LISTED else ','.join(map(str, fresh))}"


def fresh_seeds_command(run: Path, facts: Mapping[str, Any], seeds: Sequence[int], used: Iterable[object] = ()) -> str:
    """Return the command that trains a run's configuration on fresh seeds.

    Args:
        run: the run folder.
        facts: of run.json.
        seeds: that its configuration finished with.
        used: seeds of all runs, failed and diverged ones included; values that are not integers are ignored.
    """
    overrides = [f"like={run}", *trust_overrides(facts), fresh_seeds(seeds, used)]
    return f"{program('train')} -m {shlex.join(overrides)}"
