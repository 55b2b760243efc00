"""Models of two rows on the same test images: McNemar's tests, and an interval over images or their groups."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitrine.compare.difference import Difference
from vitrine.compare.image_tests import bootstrap_interval, group_interval, holm, mcnemar, paired_interval
from vitrine.compare.load import RunResult
from vitrine.compare.metric import Metric, p_equals
from vitrine.compare.predictions import Predictions
from vitrine.compare.simultaneous import SIGNIFICANCE_LEVEL
from vitrine.compare.table import ConfigurationRow, mean_by_seed
from vitrine.text import listed, plural

Side = Mapping[Hashable, RunResult]
BOOTSTRAP, TANGO, GROUPS = "95 % bootstrap interval", "Tango's 95 % interval", "95 % interval, Student's t"


@dataclass(frozen=True)
class ImageComparison:
    """Models of two rows on the same test images.

    Attributes:
        images: number of test images.
        only: per pair of models (those with equal seeds, or the only two), the number of images that only the row's
            model classifies correctly, and only the baseline's; none where images come in groups, of which the test
            knows nothing.
        p: p-value of McNemar's exact test per pair, corrected for the number of pairs in all comparisons (Holm).
        low, high: 95 % interval, over images or groups, of the difference in accuracy.
        interval: which one it is.
        groups: number of groups of the images; 0 if they have none.
        tests: number of p-values that ``p`` is corrected for.
        rows: number of rows that are compared with the baseline.
    """

    images: int
    only: list[tuple[int, int]]
    p: list[float]
    low: float
    high: float
    interval: str
    groups: int = 0
    tests: int = 0
    rows: int = 0


def compare_images(
    pairs_of_sides: Sequence[tuple[tuple[Side, Side], Difference]],
    metric: Metric,
    predictions: Mapping[str, Predictions],
) -> list[ImageComparison | None]:
    """McNemar's test of each pair of models with equal seeds, and an interval; ``None`` if not possible.

    It is of the mean difference over groups, if images have any, Tango's of two models, and else a bootstrap.
    """
    found = [
        _compared(*sides, tested, predictions) if metric.name == "test/acc" and _are_known(sides, predictions) else None
        for sides, tested in pairs_of_sides
    ]
    every = [p for one in found if one is not None for p in one.p]
    corrected = iter(holm(every))
    rows = len(found)
    return [one and replace(one, p=[next(corrected) for _ in one.p], tests=len(every), rows=rows) for one in found]


def _are_known(sides: tuple[Side, Side], predictions: Mapping[str, Predictions]) -> bool:
    """Whether both sides have runs, all with stored predictions."""
    return all(side and all(run.name in predictions for run in side.values()) for side in sides)


def _compared(
    ours: Side, theirs: Side, tested: Difference, predictions: Mapping[str, Predictions]
) -> ImageComparison | None:
    """The comparison of two rows, its p-values not yet corrected; ``None`` where one group has nearly all images."""
    first = predictions[next(iter(ours.values())).name]
    images = len(first.labels)
    sides = [
        mean_by_seed({key: predictions[run.name].observations for key, run in side.items()}) for side in (ours, theirs)
    ]
    seeds = sides[0].keys() & sides[1].keys() if tested.paired else sides[0].keys() | sides[1].keys()
    mean, other_mean = (np.mean([value for seed, value in side.items() if seed in seeds], axis=0) for side in sides)
    difference = mean - other_mean
    if first.groups is not None:
        if not first.is_sample:
            return None
        bounds = group_interval(difference, images, first.freedom)
        return ImageComparison(images, [], [], *bounds, GROUPS, groups=len(difference))
    two_models = len(ours) == len(theirs) == 1
    pairs = [(run, theirs[key]) for key, run in ours.items() if key in theirs]
    if two_models:
        pairs = [*zip(ours.values(), theirs.values(), strict=True)]
    tables = [mcnemar(predictions[run.name].correct, predictions[other.name].correct) for run, other in pairs]
    only = [(ours_only, theirs_only) for ours_only, theirs_only, _ in tables]
    low, high = paired_interval(*only[0], images) if two_models else bootstrap_interval(difference)
    interval = TANGO if two_models else BOOTSTRAP
    return ImageComparison(images, only, [p for *_, p in tables], low, high, interval)


def image_sentence(row: ConfigurationRow, baseline: ConfigurationRow, images: ImageComparison, metric: Metric) -> str:
    """Return the finding over images in a sentence."""
    pairs, bootstrap = len(images.only), images.interval == BOOTSTRAP
    of_groups = f" in {plural(images.groups, 'group')}" if images.groups else ""
    where = f"on the same {plural(images.images, 'test image')}{of_groups}"
    bounds = f"{metric.signed(images.low)} to {metric.signed(images.high)} points"
    alone = ", of these rows alone" if images.rows > 1 else ""
    means = " between means over all models" if bootstrap and pairs == 1 else ""
    over = f"over {'groups' if images.groups else 'images'} alone ({images.interval}{alone})"
    interval = f"the difference{means} is {bounds} {over}"
    if not pairs:
        return f"{where}, {interval}"
    if pairs == 1:
        (ours, theirs), p = images.only[0], images.p[0]
        correction = f", corrected for {images.tests} pairs of models" if images.tests > 1 else ""
        models = "the only two models with equal seeds" if bootstrap else "the two models"
        differ = "differ" if p < SIGNIFICANCE_LEVEL else "do not differ significantly"
        return (
            f"{where}, {models} {differ}: {ours} are correct only with {row.label}, {theirs} only with "
            f"{baseline.label} (McNemar's exact test, {p_equals(p)}{correction}); {interval}"
        )
    significant = [only for only, p in zip(images.only, images.p, strict=True) if p < SIGNIFICANCE_LEVEL]
    wins = sum(ours > theirs for ours, theirs in significant)
    losses = len(significant) - wins
    sides = [f"{wins} in favour of {row.label}"] * (wins > 0) + [f"{losses} in favour of {baseline.label}"] * (
        losses > 0
    )
    favour = f", {listed(sides)}" if sides else ""
    return (
        f"{where}, McNemar's exact test finds a difference in {len(significant)} of {pairs} pairs of models with equal "
        f"seeds{favour}; {interval}"
    )
