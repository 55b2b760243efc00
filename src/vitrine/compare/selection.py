"""How good a configuration is that was chosen for its result, without its luck, and the command that measures it."""

import math
import shlex
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from vitrine.config.schema import MAX_SEED
from vitrine.runs.provenance import program
from vitrine.runs.user_code import trust_overrides

if TYPE_CHECKING:
    import numpy as np

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
    import numpy as np

    if lower_is_better:
        return -corrected_for_selection([-mean for mean in means], errors, lower_is_better=False)
    ranked = sorted(zip(means, errors, strict=True))  # one result, whatever their order
    values, error = np.array(ranked).T
    drawn = error * _normal_draws(len(values))
    winners = (values + drawn).argmax(axis=1)
    return float(values[-1] - drawn[range(DRAWS), winners].mean())


def _normal_draws(count: int) -> "np.ndarray":
    """Standard normal draws (DRAWS, count) in pairs of opposite sign: what is far ahead of others loses nothing."""
    import numpy as np

    half = np.random.default_rng(0).normal(size=(DRAWS // 2, count))
    return np.concatenate([half, -half])


def corrected_over_seeds(
    groups: Sequence[Mapping[Hashable, float]], overlap: float = 0.0, *, lower_is_better: bool
) -> float | None:
    """Return :func:`corrected_for_selection` of the best mean; ``None`` if chance can't be estimated.

    Args:
        groups: values by seed of each of K configurations; all are taken to vary alike.
        overlap: of training images, where values are of folds: that of :func:`vitrine.compare.difference.difference`.
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


def corrected_single_run(groups: Sequence[Mapping[Hashable, float]], *, lower_is_better: bool) -> float | None:
    """Return what the configuration of the best of all runs is worth; ``None`` if chance can't be estimated.

    That is its mean, without what the mean of a configuration with the best run owes to lucky trainings on average, by
    the bootstrap of :func:`corrected_for_selection` in which runs vary by :func:`own_variance` around the mean of their
    configuration.

    Args:
        groups: values by seed of each configuration.
        lower_is_better: whether the lowest value is the best.
    """
    import numpy as np

    if lower_is_better:
        negative = [{seed: -value for seed, value in values.items()} for values in groups]
        highest = corrected_single_run(negative, lower_is_better=False)
        return None if highest is None else -highest
    if (own := own_variance(groups)) is None:
        return None
    ranked = [[*values.values()] for values in groups]
    ranked.sort(key=lambda values: (max(values), fmean(values)))  # one result, whatever their order
    truths = np.repeat([fmean(values) for values in ranked], [len(values) for values in ranked])
    owners = np.repeat(range(len(ranked)), [len(values) for values in ranked])
    drawn = math.sqrt(own) * _normal_draws(len(truths))
    winners = owners[(truths + drawn).argmax(axis=1)]
    lucks = np.stack([drawn[:, owners == one].mean(axis=1) for one in range(len(ranked))], axis=1)
    return float(fmean(ranked[-1]) - lucks[range(DRAWS), winners].mean())


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
    count = max(3, len(seeds))
    first = first_fresh_seed([*seeds, *used], count)
    fresh = range(first, first + count)
    many = f"range({fresh.start},{fresh.stop})"
    return f"seed={many if len(fresh) > MAX_LISTED else ','.join(map(str, fresh))}"


def first_fresh_seed(used: Iterable[object], count: int) -> int:
    """Return the first of ``count`` seeds in a row that are above ``used``, or apart from them if there is no room."""
    taken = {seed for seed in used if isinstance(seed, int)}
    first = max(taken, default=-1) + 1
    if first + count - 1 <= MAX_SEED:
        return first
    starts = sorted({0, *(seed + 1 for seed in taken)})
    return next(start for start in starts if taken.isdisjoint(range(start, start + count)))


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
