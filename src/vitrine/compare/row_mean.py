"""The mean of a row over its seeds, with its 95 % interval, and the images that it is measured on."""

from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.compare.difference import Difference
from vitrine.compare.metric import Metric
from vitrine.compare.table import ConfigurationRow
from vitrine.runs.facts import images_of
from vitrine.text import plural


def mean_of(row: ConfigurationRow, metric: Metric) -> ConfidenceInterval:
    """Return the mean of a metric; in a main effect, each seed counts with its mean over the other columns."""
    values = list(row.values_by_seed(metric.name).values())
    averaged = len(row.runs) / len(values)  # runs behind a value
    images = _images(row, metric)
    rounding = 1 / (12 * images**2) / averaged if images else 0.0  # Sheppard (1898)
    return ConfidenceInterval.of(values, row.overlap, proportion=metric.is_bounded, rounding=rounding)


def on_these_images(row: ConfigurationRow, tested: Difference, metric: Metric) -> str:
    """On which images a finding holds, if only on these: ``, on these 360 images``; empty if none are measured on."""
    stage = metric.name.partition("/")[0]
    if tested.new_images or stage == metric.name or (stage == "val" and tested.overlap):
        return ""  # each fold validates on images of its own
    run = next(iter(row.runs.values()))
    count = images_of(run.facts, stage)
    return f", on {'this' if count == 1 else 'these'} {plural(count, 'image') if count else 'images'}"


def _images(row: ConfigurationRow, metric: Metric) -> int:
    """The number of images that the metric is a share of, the smallest of all runs; 0 if it is none, or unknown."""
    if not metric.counts_images:
        return 0
    stage = metric.name.partition("/")[0]
    return min(images_of(run.facts, stage) for run in row.runs.values())
