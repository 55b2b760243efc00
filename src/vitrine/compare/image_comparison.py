"""Models of two rows on the same test images: McNemar's tests, and a bootstrap over images."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vitrine.compare.image_tests import bootstrap_interval, holm, mcnemar, paired_interval
from vitrine.compare.load import RunResult
from vitrine.compare.metric import Metric, p_equals
from vitrine.compare.predictions import Predictions
from vitrine.compare.simultaneous import SIGNIFICANCE_LEVEL
from vitrine.compare.statistics import Difference
from vitrine.compare.table import ConfigurationRow, mean_by_seed
from vitrine.text import listed, plural

Side = Mapping[Hashable, RunResult]


@dataclass(frozen=True)
class ImageComparison:
    """Models of two rows on the same test images.

    Attributes:
        images: number of test images.
        only: per pair of models (those with equal seeds, or the only two), the number of images that only the row's
            model classifies correctly, and only the baseline's.
        p: p-value of McNemar's exact test per pair, corrected for the number of pairs in all comparisons (Holm).
        low, high: 95 % interval, over images, of the difference in accuracy.
        bootstrap: whether it is a bootstrap interval; that of two models is Tango's.
        tests: number of p-values that ``p`` is corrected for.
    """

    images: int
    only: list[tuple[int, int]]
    p: list[float]
    low: float
    high: float
    bootstrap: bool = True
    tests: int = 1


def compare_images(
    pairs_of_sides: Sequence[tuple[tuple[Side, Side], Difference]],
    metric: Metric,
    predictions: Mapping[str, Predictions],
) -> list[ImageComparison | None]:
    """McNemar's test of each pair of models with equal seeds, and a bootstrap over images; ``None`` if not possible."""
    tables: list[list[tuple[int, int, float]]] = []
    intervals: list[tuple[float, float, bool] | None] = []
    for (ours, theirs), tested in pairs_of_sides:
        runs = [*ours.values(), *theirs.values()]
        if metric.name != "test/acc" or not (ours and theirs) or not all(run.name in predictions for run in runs):
            tables.append([])
            intervals.append(None)
            continue
        pairs = [(run, theirs[key]) for key, run in ours.items() if key in theirs]
        if len(runs) == 2:
            pairs = [(runs[0], runs[1])]
        tables.append([mcnemar(predictions[run.name].correct, predictions[other.name].correct) for run, other in pairs])
        sides = [
            mean_by_seed({key: predictions[run.name].correct for key, run in side.items()}) for side in (ours, theirs)
        ]
        seeds = sides[0].keys() & sides[1].keys() if tested.paired else sides[0].keys() | sides[1].keys()
        means = [np.mean([value for seed, value in side.items() if seed in seeds], axis=0) for side in sides]
        if len(runs) == 2:
            ((ours_only, theirs_only, _),) = tables[-1]
            intervals.append((*paired_interval(ours_only, theirs_only, len(means[0])), False))
        else:
            intervals.append((*bootstrap_interval(means[0] - means[1]), True))
    every = [p for table in tables for *_, p in table]
    corrected = iter(holm(every))
    comparisons: list[ImageComparison | None] = []
    for table, interval in zip(tables, intervals, strict=True):
        only = [(ours_only, theirs_only) for ours_only, theirs_only, _ in table]
        p = [next(corrected) for _ in table]
        images = len(next(iter(predictions.values())).labels) if interval else 0
        comparisons.append(ImageComparison(images, only, p, *interval, len(every)) if interval else None)
    return comparisons


def image_sentence(row: ConfigurationRow, baseline: ConfigurationRow, images: ImageComparison, metric: Metric) -> str:
    """Return the finding over images in a sentence."""
    pairs = len(images.only)
    where = f"on the same {plural(images.images, 'test image')}"
    bounds = f"{metric.signed(images.low)} to {metric.signed(images.high)} points"
    kind = "95 % bootstrap interval" if images.bootstrap else "Tango's 95 % interval"
    alone = ", of these rows alone" if images.tests > 1 else ""
    means = " between means over all models" if images.bootstrap and pairs == 1 else ""
    interval = f"the difference{means} is {bounds} over images alone ({kind}{alone})"
    if not pairs:
        return f"{where}, {interval}"
    if pairs == 1:
        (ours, theirs), p = images.only[0], images.p[0]
        correction = f", corrected for {images.tests} pairs of models" if images.tests > 1 else ""
        models = "the only two models with equal seeds" if images.bootstrap else "the two models"
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
