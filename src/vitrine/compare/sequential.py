"""Decide, with as few seeds as it takes, which configurations are better or worse than a baseline."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from vitrine.compare.sequential_rule import MIN_SEEDS, SHARED_FROM, Rule, is_float_error, welch_freedom
from vitrine.compare.sequential_sample import Sample, SeedResult
from vitrine.config.sweep import DECISION_METHODS
from vitrine.runs.image_groups import group_numbers, group_values
from vitrine.text import did_you_mean, nearest


@dataclass(frozen=True)
class Look:
    """An arm against the baseline, after a number of seeds.

    Attributes:
        seeds: number of seeds of each side that have ended.
        count: number of pairs behind the numbers, or of finished seeds on the smaller side.
        mean: the arm's mean minus the baseline's.
        low, high: interval of the difference; infinite while there is none.
        failures: number of failed runs of the arm and of the baseline.
        correlation: of the two sides over seeds; NaN where it is unknown or seeds are not paired.
        new_images: the interval covers other test images of the same kind; otherwise, it is about these images.
        image_error: standard error that is due to the choice of test images; 0 if the interval is about these images.
        groups: number of groups of test images, if these are the sample in place of images; else 0.
        verdict: ``better``, ``worse``, ``equal``, ``undecided``, or ``None`` while more seeds are wanted.
    """

    seeds: int
    count: int
    mean: float
    low: float
    high: float
    failures: tuple[int, int]
    correlation: float = math.nan
    new_images: bool = False
    image_error: float = 0.0
    groups: int = 0
    verdict: str | None = None


class Decision:
    """Compares arms with a baseline, seed by seed, and drops an arm as soon as it is decided.

    With probability ``1 - alpha``, no verdict about any arm is false, however many looks were taken at it: the error is
    divided equally between the arms, and all intervals hold after every seed at once.

    Up to three arms, the baseline among them, are looked at one by one, as soon as a seed has ended in the arm and in
    the baseline, and so have all smaller ones. Four and more share what they say about the variance over seeds, and are
    looked at together. Either way, verdicts depend neither on the order in which results arrive nor on interruptions.
    The probability is exact for normal values and pairs in the first case, if verdicts are about these images, and a
    result of simulations otherwise (docs/decisions.md).

    ``better`` is the larger value, unless ``lower_is_better``. A failed run takes no part in means; an arm that has
    failed more often than the baseline so far is not called better or equal, nor is one called worse or equal that has
    failed less often. That is no test of failure rates: one that fails in every third run may be called better after
    four seeds without a failure.

    Args:
        arms: names, the baseline among them.
        baseline: what the others are compared with; chosen before any result.
        alpha: probability of any false verdict, in (0, 1).
        difference: differences up to this size do not matter: an arm whose interval lies within is ``equal``.
        min_seeds: number of seeds before the first look, at least 3.
        max_seeds: number of seeds after which an arm stays ``undecided``.
        method: ``group_sequential`` (Lan and DeMets, 1983; on the scale of t, and gives an arm up early when a verdict
            has become improbable) or ``anytime`` (confidence sequences; Wang and Ramdas, 2024).
        paired: runs with the same seed are paired.
        lower_is_better: whether the smaller value is the better one.
        resolution: smallest possible difference between two values, such as 1 / N for accuracy on N images. Values
            cannot vary less than by rounding to it. Taken from ``correct`` where that is known.

    Example:
        >>> decision = Decision(arms=["learned", "rope"], baseline="learned", max_seeds=10)
        >>> while wanted := decision.wanted():
        ...     for arm, seed in wanted:
        ...         decision.add(arm, seed, 0.9 + 0.05 * (arm == "rope") + 0.001 * (3 * seed % 7))
        >>> decision.verdicts
        {'rope': 'undecided'}

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        arms: Sequence[str],
        baseline: str,
        alpha: float = 0.05,
        difference: float | None = None,
        min_seeds: int = MIN_SEEDS,
        max_seeds: int = 20,
        method: str = "group_sequential",
        *,
        paired: bool = True,
        lower_is_better: bool = False,
        resolution: float = 0.0,
    ) -> None:
        _check(arms, baseline, alpha, difference, min_seeds, max_seeds, method, resolution)
        self.arms, self.baseline, self.alpha = list(arms), baseline, alpha
        self.lower_is_better, self.resolution = lower_is_better, resolution
        self.rule = Rule.of_arms(len(arms) - 1, alpha, difference, min_seeds, max_seeds, method, paired=paired)
        self._results: dict[tuple[str, int], SeedResult] = {}
        self._looks: dict[str, list[Look]] = {arm: [] for arm in arms if arm != baseline}

    def wanted(self) -> list[tuple[str, int]]:
        """Return the runs to do next, smallest seeds first; empty when every arm is decided."""
        upto = {arm: self._next_seeds(arm) for arm in self._looks if self.verdicts[arm] is None}
        if not upto:
            return []
        upto[self.baseline] = max(upto.values())
        return [
            (arm, seed)
            for seed in range(upto[self.baseline])
            for arm in self.arms
            if seed < upto.get(arm, 0) and (arm, seed) not in self._results
        ]

    def add(
        self,
        arm: str,
        seed: int,
        value: float | None,
        correct: np.ndarray | None = None,
        groups: np.ndarray | None = None,
    ) -> None:
        """Add a run's result; one that was added before is ignored if it is the same.

        Args:
            arm: one of the arms.
            seed: from 0.
            value: its metric; ``None``, NaN or infinite if the run failed or diverged.
            correct: (N,) bool, or 0 and 1: which test images it classified correctly, the same N in all runs. Where all
                runs have it, the verdict holds for other images of the same kind; otherwise only on these images.
            groups: (N,) the group of each of these images, such as a patient, as a number or name. Images of a group
                may be alike, so groups are then the sample in place of images. Verdicts are about these images where
                runs have different groups, and where one group has nearly all images.

        Raises:
            ValueError: there is no such arm or seed, another result was added for it, or ``correct`` or ``groups`` is
                not as above.
        """
        if arm not in self.arms:
            raise ValueError(f"there is no arm {arm!r}; {_choose_from(self.arms, arm)}")
        if not (_is_a(Integral, seed) and 0 <= seed < self.rule.max_seeds):
            raise ValueError(f"seed {seed!r} is not among the whole numbers 0 to {self.rule.max_seeds - 1}")
        if correct is None and groups is not None:
            raise ValueError("groups are those of the images of correct; give both")
        ended = None if value is None or not math.isfinite(value) else float(value)
        images = None if correct is None else self._checked_images(correct, groups)
        known = self._results.setdefault((arm, seed), SeedResult(ended, images))
        if known.value != ended:
            raise ValueError(f"{arm}, seed {seed} was {known.value} when it was added first, and is {ended} now")
        while ready := self._ready():
            samples = {other: self._sample(other, seeds) for other, seeds in ready.items()}
            variances = self._variances(samples)
            for other, sample in samples.items():
                self._looks[other].append(self._judge(sample, *variances[other]))

    @property
    def verdicts(self) -> dict[str, str | None]:
        """``better``, ``worse``, ``equal`` or ``undecided`` by arm; ``None`` while more seeds are wanted."""
        return {arm: looks[-1].verdict if looks else None for arm, looks in self._looks.items()}

    @property
    def done(self) -> bool:
        """Whether every arm is decided, or was given up."""
        return None not in self.verdicts.values()

    @property
    def runs(self) -> int:
        """Number of results."""
        return len(self._results)

    @property
    def max_runs(self) -> int:
        """Number of runs of all arms with all seeds."""
        return len(self.arms) * self.rule.max_seeds

    def looks(self, arm: str) -> list[Look]:
        """Return the looks at an arm so far.

        Raises:
            ValueError: no such arm is compared with the baseline.
        """
        if arm not in self._looks:
            raise ValueError(f"no arm {arm!r} is compared with {self.baseline}; {_choose_from(self._looks, arm)}")
        return list(self._looks[arm])

    def interval(self, arm: str) -> tuple[float, float]:
        """Return the interval of an arm's mean minus the baseline's, at the last look; infinite before the first.

        Raises as :meth:`looks`.
        """
        looks = self.looks(arm)
        return (looks[-1].low, looks[-1].high) if looks else (-math.inf, math.inf)

    def _checked_images(self, correct: np.ndarray, groups: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """One value for each group, (G,), of as many images as in other results, and each image's group, (N,)."""
        found = np.asarray(correct)
        if found.ndim != 1 or len(found) < 2:
            raise ValueError(f"correct has shape {found.shape}; give (N,), a value for each of at least 2 test images")
        if wrong := [value for value in found.tolist() if value not in (0, 1)]:
            raise ValueError(f"correct holds {wrong[0]!r}; give True or False for each test image, or 1 or 0")
        known = next((len(result.images[1]) for result in self._results.values() if result.images), len(found))
        if len(found) != known:
            raise ValueError(f"correct is of {len(found):,} test images; that of other results is of {known:,}")
        names = np.arange(len(found)) if groups is None else np.asarray(groups)
        if names.shape != found.shape:
            raise ValueError(f"groups has shape {names.shape}; give (N,), one for each of {len(found):,} test images")
        numbers = group_numbers(names.tolist())
        return group_values(found.astype(bool), numbers), numbers

    def _next_seeds(self, arm: str) -> int:
        """Number of seeds at the next look."""
        looks = self._looks[arm]
        return looks[-1].seeds + 1 if looks else self.rule.min_seeds

    def _ready(self) -> dict[str, int]:
        """The arms that the next look can be taken at, and its number of seeds."""
        wanting = {arm: self._next_seeds(arm) for arm, verdict in self.verdicts.items() if verdict is None}
        ready = {arm: seeds for arm, seeds in wanting.items() if self._ended(arm, seeds)}
        return ready if len(ready) == len(wanting) or not self.rule.shared_freedom else {}

    def _ended(self, arm: str, seeds: int) -> bool:
        return all((side, seed) in self._results for seed in range(seeds) for side in (arm, self.baseline))

    def _sample(self, arm: str, seeds: int) -> Sample:
        """The first results of an arm and of the baseline, those of failed runs and of their pairs left out."""
        ours, theirs = ([self._results[side, seed] for seed in range(seeds)] for side in (arm, self.baseline))
        failures = (sum(x.value is None for x in ours), sum(y.value is None for y in theirs))
        if self._paired:
            both = [(x, y) for x, y in zip(ours, theirs, strict=True) if not (x.value is None or y.value is None)]
            ours, theirs = [x for x, _ in both], [y for _, y in both]
        ours, theirs = ([result for result in side if result.value is not None] for side in (ours, theirs))
        return Sample(seeds, failures, (ours, theirs))

    def _variances(self, samples: Mapping[str, Sample]) -> dict[str, tuple[float, float]]:
        """Variance over seeds and its degrees of freedom of each arm, drawn towards those of all arms if they share.

        It is that of the differences of pairs, or of the arm's own values if seeds are not paired.
        """
        if self.rule.shared_freedom:  # also what is known of arms that were dropped
            before = {arm: self._sample(arm, looks[-1].seeds) for arm, looks in self._looks.items() if looks}
            samples = before | dict(samples)
        known = {}
        for arm, sample in samples.items():
            sides = sample.values if self._paired else sample.values[:1]
            known[arm] = _variance(sides, self._rounding(sample))
        shareable = {arm: found for arm, found in known.items() if found[0] > 0}
        if self.rule.shared_freedom and len(shareable) >= SHARED_FROM:
            shared = self.rule.share_variances(*np.transpose(list(shareable.values())))
            known |= {arm: (float(v), float(freedom)) for arm, v, freedom in zip(shareable, *shared, strict=True)}
        return known

    def _judge(self, sample: Sample, variance: float, freedom: float) -> Look:
        """Compare an arm with the baseline, and end it where more seeds cannot help."""
        look, rule = self._estimate(sample, variance, freedom), self.rule
        hopeless = look.count == 0 or look.count + rule.max_seeds - look.seeds < rule.min_seeds
        if look.verdict is None and (hopeless or look.seeds >= rule.max_seeds):
            return replace(look, verdict="undecided")
        return look

    def _estimate(self, sample: Sample, variance: float, freedom: float) -> Look:
        """Compare the finished runs of both sides."""
        rule, paired = self.rule, self._paired
        (x, y), failures = sample.values, sample.failures
        count = min(len(x), len(y))
        mean = float(x.mean() - y.mean()) if count else math.nan
        none = Look(sample.seeds, count, mean, -math.inf, math.inf, failures)
        if count < rule.min_seeds:
            return none
        squared = variance / len(x)
        if not paired:
            theirs, theirs_freedom = _variance([y], self._rounding(sample))
            freedom = float(welch_freedom((squared, theirs / len(y)), (freedom, theirs_freedom)))
            squared += theirs / len(y)
        error = math.sqrt(squared)
        if error == 0:
            return none  # without variance, nothing can be tested
        images = sample.image_error(rule.alpha, paired=paired)
        half = float(rule.half_width(error, count, freedom, images.error, images.freedom))
        sign = -1 if self.lower_is_better else 1
        verdict = _allowed(str(rule.verdict(sign * mean, half)), failures[0] - failures[1])
        if verdict is None and bool(rule.futile(mean, error, count, images.error, images.freedom)):
            verdict = "undecided"
        varies = paired and np.ptp(x) > 0 and np.ptp(y) > 0
        return replace(
            none,
            low=mean - half,
            high=mean + half,
            correlation=float(np.corrcoef(x, y)[0, 1]) if varies else math.nan,
            new_images=images.error > 0,
            image_error=images.error,
            groups=images.groups,
            verdict=verdict,
        )

    @property
    def _paired(self) -> bool:
        return self.rule.paired or self.rule.method == "anytime"

    def _rounding(self, sample: Sample) -> float:
        """Variance of a value that is rounded to the resolution (Sheppard, 1898)."""
        images = sample.results[0][0].images if sample.results[0] else None
        return (self.resolution or (0.0 if images is None else 1 / len(images[1]))) ** 2 / 12


def _variance(sides: Sequence[np.ndarray], rounding: float) -> tuple[float, float]:
    """Variance of one side, or of the differences of two, and its degrees of freedom; both 0 of fewer than two values.

    It is at least ``rounding``, that of a value's rounding, for each side. Floating-point error is no variance.
    """
    values = sides[0] if len(sides) == 1 else sides[0] - sides[1]
    if len(values) < 2:
        return 0.0, 0.0
    variance = float(np.var(values, ddof=1))
    found = 0.0 if is_float_error(math.sqrt(variance), np.concatenate(sides)) else variance
    return max(found, len(sides) * rounding), len(values) - 1.0


def _allowed(verdict: str, more_failures: int) -> str | None:
    """The verdict, unless only the runs that survived were averaged and the number of failures speaks against it."""
    if not verdict or (more_failures > 0 and verdict != "worse") or (more_failures < 0 and verdict != "better"):
        return None
    return verdict


def _check(
    arms: Sequence[str],
    baseline: str,
    alpha: float,
    difference: float | None,
    min_seeds: int,
    max_seeds: int,
    method: str,
    resolution: float,
) -> None:
    if isinstance(arms, str) or not all(isinstance(arm, str) for arm in arms):
        raise ValueError(f"arms are {arms!r}; give a list of names, such as ['learned', 'rope']")
    if len(arms) < 2 or len(set(arms)) < len(arms):
        raise ValueError(f"arms are {list(arms)}; give at least two, each once")
    if baseline not in arms:
        raise ValueError(f"the baseline {baseline!r} is not among the arms; {_choose_from(arms, baseline)}")
    if not (_is_a(Real, alpha) and 0 < alpha < 1):
        raise ValueError(f"alpha={alpha!r} is not between 0 and 1")
    if difference is not None and not (_is_a(Real, difference) and 0 < difference < math.inf):
        raise ValueError(f"difference={difference!r} is not a positive number")
    if not (_is_a(Real, resolution) and 0 <= resolution < math.inf):
        raise ValueError(f"resolution={resolution!r} is neither 0 nor a positive number")
    for name, seeds in (("min_seeds", min_seeds), ("max_seeds", max_seeds)):
        if not _is_a(Integral, seeds):
            raise ValueError(f"{name}={seeds!r} is not a whole number")
    if min_seeds < MIN_SEEDS:
        raise ValueError(f"min_seeds={min_seeds} is below {MIN_SEEDS}: fewer seeds support no conclusion")
    if max_seeds < min_seeds:
        raise ValueError(f"max_seeds={max_seeds} is below min_seeds={min_seeds}")
    if method not in DECISION_METHODS:
        raise ValueError(f"method={method!r} is unknown; {_choose_from(DECISION_METHODS, method)}")


def _is_a(kind: type, value: Any) -> bool:
    """Whether a value is a number of this kind; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _choose_from(names: Collection[str], given: Any) -> str:
    """``choose from a, b; did you mean a?``."""
    return f"choose from {', '.join(names)}{did_you_mean(nearest(str(given), names))}"
