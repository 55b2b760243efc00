"""Critical values for a t-test that is repeated after every seed: exact for normal values, from three seeds on.

Boundaries of group sequential trials are published for normal statistics. With three to twenty seeds the variance is
estimated as well, and these boundaries are too narrow. But the sequence of t-statistics of normal values with mean zero
is a Markov chain that does not depend on their variance, so the recursion of Armitage, McPherson and Rowe (1969) can be
carried out on the scale of t:

Let ``S = x_1 + ... + x_n`` and ``Q = x_1^2 + ... + x_n^2``. The cosine ``u = S / sqrt(n Q)`` lies in [-1, 1], and
``t = sqrt(n - 1) u / sqrt(1 - u^2)``. By symmetry, ``w = x_{n+1} / sqrt(Q + x_{n+1}^2)`` is a coordinate of a uniformly
distributed point on the unit sphere in n + 1 dimensions, independent of ``x_1, ..., x_n`` up to their scale, and

    u_{n+1} = (sqrt(n) sqrt(1 - w^2) u_n + w) / sqrt(n + 1).

With two groups and a pooled variance, differences ``(y - x) / sqrt(2)`` take the place of x. Q has in addition n - 1
squares of the pairs' sums, orthogonal to their mean, each of which only shrinks u, by ``sqrt(1 - w^2)``: 2n - 1
dimensions, and 2n - 2 degrees of freedom.

The chance of not having crossed a boundary is kept as masses in cells of |u|, and moved from seed to seed by the
distribution of w.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from scipy import special
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq, minimize_scalar

CELLS = 200
# Shares of the error that are left for the last look, chosen by simulation (benchmarks/studies/decisions.py): pairs
# have power to spare, and find large effects with fewer seeds where the first looks may spend more; two groups have
# not.
KEPT, KEPT_OF_PAIRS = 0.25, 0.1


def spending(alpha: float, time: np.ndarray, kept: float = KEPT) -> np.ndarray:
    """Return the error spent until ``time``, the share of all seeds in [0, 1].

    It grows with the square root of time (the power family of Kim and DeMets, 1987), which finds large effects with the
    first seeds; the share ``kept`` is left for the last look, which finds small ones.
    """
    time = np.minimum(time, 1.0)
    return np.asarray(alpha * ((1 - kept) * np.sqrt(time) + kept * (time == 1.0)))


@lru_cache(maxsize=64)
def group_sequential_t(alpha: float, min_seeds: int, max_seeds: int) -> np.ndarray:
    """Critical values of |t| for paired t-tests after each of ``min_seeds`` to ``max_seeds`` seeds.

    The probability that any of them is exceeded, if the true difference is zero, is ``alpha``.

    Returns:
        (max_seeds - min_seeds + 1,) float.
    """
    counts = np.arange(min_seeds, max_seeds + 1)
    return boundaries(counts, spending(alpha, counts / max_seeds, KEPT_OF_PAIRS))


@lru_cache(maxsize=64)
def planned_levels(alpha: float, min_seeds: int, max_seeds: int, kept: float = KEPT) -> np.ndarray:
    """Two-sided levels of t-tests after each of ``min_seeds`` to ``max_seeds`` seeds a side.

    They are exact for one group of values, and for two with a common variance, whichever is stricter; with variances in
    between, they are a good approximation. ``kept`` is that of :func:`spending`.

    Returns:
        (max_seeds - min_seeds + 1,) float.
    """
    counts = np.arange(min_seeds, max_seeds + 1)
    spent = spending(alpha, counts / max_seeds, kept)
    pooled = 2 * special.stdtr(2 * counts - 2, -boundaries(counts, spent, pooled=True))
    single = 2 * special.stdtr(counts - 1, -boundaries(counts, spent))
    return np.minimum(pooled, single)


@lru_cache(maxsize=64)
def group_sequential_levels(alpha: float, min_seeds: int, max_seeds: int) -> np.ndarray:
    """The planned levels, lowered to what Welch's test of two groups keeps at whatever ratio of their variances.

    Returns:
        (max_seeds - min_seeds + 1,) float.
    """
    planned = planned_levels(alpha, min_seeds, max_seeds)
    counts = range(min_seeds, max_seeds + 1)
    return np.array([welch_level(float(level), (n, n)) for level, n in zip(planned, counts, strict=True)])


@lru_cache(maxsize=256)
def welch_level(level: float, counts: tuple[int, int]) -> float:
    """The nominal level at which Welch's test of two groups rejects with probability ``level`` at most.

    It is below ``level`` for small groups, whatever the ratio of their variances.
    """

    def excess(log_level: float) -> float:
        return math.log(welch_size(math.exp(log_level), counts) / level)

    low = high = math.log(level)
    while excess(low) > 0:  # two and ten values take a level that is lower by orders of magnitude
        low, high = low - 4, low
    return level if low == high else math.exp(brentq(excess, low, high, xtol=1e-4))


@lru_cache(maxsize=1024)
def welch_size(level: float, counts: tuple[int, int]) -> float:
    """The largest probability, over all ratios of variances, that Welch's test at a nominal ``level`` rejects.

    Given the share b of the first group in the sum of both sums of squares, which has a beta distribution, Welch's
    statistic is a t-statistic with as many degrees of freedom as both groups have, divided by a function of b.

    Args:
        level: two-sided.
        counts: numbers of values.
    """
    freedom = [count - 1 for count in counts]
    share = special.betaincinv(freedom[0] / 2, freedom[1] / 2, (np.arange(400) + 0.5) / 400)
    # The share of the first group in the variance of the difference: the worst may lie very near to 0 or 1.
    first = special.expit(np.linspace(-12, 12, 121))[:, None]
    parts = first * share / freedom[0], (1 - first) * (1 - share) / freedom[1]
    total = parts[0] + parts[1]
    welch = total**2 / (parts[0] ** 2 / freedom[0] + parts[1] ** 2 / freedom[1])
    # The quantile is smooth in the inverse of the degrees of freedom: 64 are worked out instead of 48,400.
    inverse = np.linspace(1 / sum(freedom), 1 / min(freedom), 64)
    quantile = CubicSpline(inverse, np.arcsinh(-special.stdtrit(1 / inverse, level / 2)))
    critical = np.sinh(quantile(1 / welch)) * np.sqrt(sum(freedom) * total)
    return float(np.max(2 * special.stdtr(sum(freedom), -critical).mean(1)))


@lru_cache(maxsize=64)
def anytime_t(alpha: float, min_seeds: int, max_seeds: int) -> np.ndarray:
    """Critical values of |t| for paired t-tests at any time, with the prior of least product over the seeds.

    Returns:
        (max_seeds - min_seeds + 1,) float.
    """
    counts = np.arange(min_seeds, max_seeds + 1)
    most = math.log(min_seeds * alpha ** (2 / (min_seeds - 1)))  # above, min_seeds would never be enough
    chosen = minimize_scalar(
        lambda log_c: np.log(mixture_t(alpha, counts, math.exp(log_c))).sum(),
        bounds=(most - 12, most),
        method="bounded",
    )
    return mixture_t(alpha, counts, math.exp(chosen.x))


def mixture_t(alpha: float, counts: np.ndarray, c: float) -> np.ndarray:
    """Critical values of |t| at any time (Wang and Ramdas, 2024, section 4).

    The e-value is the ratio of the likelihoods of t, with standardised effects from a normal distribution of variance
    1 / c, and without an effect. It is a martingale in the number of values, so the probability that it ever reaches
    ``1 / alpha`` without an effect is at most ``alpha`` (Ville's inequality).

    Args:
        alpha: that probability.
        counts: (K,) numbers of values.
        c: inverse of the prior's variance.

    Returns:
        (K,) float; infinite where that many values can never be enough.
    """
    shrinkage = c / (counts + c)
    root = (alpha**2 * shrinkage) ** (-1 / counts)
    with np.errstate(divide="ignore", invalid="ignore"):
        squared = (counts - 1) * (root - 1) / (1 - shrinkage * root)
    return np.sqrt(np.where(shrinkage * root < 1, squared, np.inf))


def boundaries(
    counts: Sequence[int] | np.ndarray, spent: Sequence[float] | np.ndarray, *, pooled: bool = False
) -> np.ndarray:
    """Critical values of |t| that spend the significance level as planned.

    Args:
        counts: (K,) increasing numbers of seeds, at least 2, after which is tested.
        spent: (K,) probability that one of the tests until then rejects, if the true difference is zero.
        pooled: tests two groups of that many seeds each with a pooled variance; otherwise one group against zero.

    Returns:
        (K,) float; infinite where nothing is spent.
    """
    counts = [int(count) for count in counts]
    critical = np.empty(len(counts))
    mass, cells, bound = np.ones(1), np.ones(1), 1.0
    for look, count in enumerate(counts):
        dimensions = 2 * count - 1 if pooled else count
        if look == 0:
            inside = _initial(dimensions)
        else:
            for n in range(counts[look - 1], count):
                if n > counts[look - 1]:
                    bound = 1.0
                    mass, cells = _cell_masses(inside, bound)
                inside = _next(mass, cells, bound, n, pooled=pooled)
        bound = _quantile(inside, 1 - float(spent[look]))
        critical[look] = math.sqrt(dimensions - 1) * bound / math.sqrt(1 - bound**2) if bound < 1 else math.inf
        mass, cells = _cell_masses(inside, bound)
    return critical


# Probability of having crossed no boundary, and of |u| at most each of (M,) values.
Inside = Callable[[np.ndarray], np.ndarray]


def _initial(dimensions: int) -> Inside:
    """For the first look: the distribution of a coordinate on the unit sphere."""
    return lambda u: np.asarray(special.betainc(0.5, (dimensions - 1) / 2, u**2))


def _quantile(inside: Inside, probability: float) -> float:
    """The value of |u| that ``inside`` reaches ``probability`` at; 1 if it never does."""
    if inside(np.ones(1))[0] <= probability:
        return 1.0
    return float(brentq(lambda u: inside(np.array([u]))[0] - probability, 0, 1))


def _cell_masses(inside: Inside, bound: float) -> tuple[np.ndarray, np.ndarray]:
    """Masses of cells of |u| up to ``bound``, and their centres: each (CELLS,).

    Below a boundary, the cells are equal in artanh(u), which grows as the logarithm of t: critical values of a small
    significance level lie where u is nearly 1.
    """
    edges = np.tanh(np.linspace(0, math.atanh(bound), CELLS + 1)) if bound < 1 else np.linspace(0, 1, CELLS + 1)
    return np.diff(inside(edges)), (edges[1:] + edges[:-1]) / 2


def _next(mass: np.ndarray, cells: np.ndarray, bound: float, n: int, *, pooled: bool) -> Inside:
    """Add the next seed to ``n`` seeds whose |u| has ``mass`` at ``cells``, and is at most ``bound``."""
    if not pooled:
        return _add_value(mass, cells, n, n + 1)
    shrunk = _shrink(mass, cells, 2 * n)
    return _add_value(*_cell_masses(shrunk, bound), n, 2 * n + 1)


def _add_value(mass: np.ndarray, cells: np.ndarray, n: int, dimensions: int) -> Inside:
    """Add a value: with ``w = sin(psi)``, ``u_{n+1}`` is proportional to ``sin(psi + beta)``."""
    cumulative = _angle_distribution(dimensions)
    beta, length = np.arctan(math.sqrt(n) * cells)[:, None], np.sqrt(n * cells**2 + 1)[:, None]

    def inside(u: np.ndarray) -> np.ndarray:
        angle = np.arcsin(np.minimum(1, math.sqrt(n + 1) * u / length))
        share = cumulative(angle - beta) - cumulative(-angle - beta) + 1 - cumulative(math.pi - angle - beta)
        return np.asarray(mass @ share)

    return inside


def _shrink(mass: np.ndarray, cells: np.ndarray, dimensions: int) -> Inside:
    """Add a square to Q that is not in S: u is multiplied by ``cos(psi)``."""
    cumulative = _angle_distribution(dimensions)

    def inside(u: np.ndarray) -> np.ndarray:
        return np.asarray(mass @ (2 - 2 * cumulative(np.arccos(np.minimum(1, u / cells[:, None])))))

    return inside


def _angle_distribution(dimensions: int) -> Callable[[np.ndarray], np.ndarray]:
    """Distribution function of psi, where ``sin(psi)`` is a coordinate on the unit sphere."""
    angles = np.linspace(-math.pi / 2, math.pi / 2, 8001)
    known = 0.5 + 0.5 * np.sign(angles) * special.betainc(0.5, (dimensions - 1) / 2, np.sin(angles) ** 2)
    return lambda angle: np.interp(angle, angles, known)
