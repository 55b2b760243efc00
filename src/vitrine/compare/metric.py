"""What is compared: a metric's unit, which way is better, and how it is written."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitrine.compare.load import Run
from vitrine.errors import RunError
from vitrine.text import did_you_mean, listed, nearest

NONE = "—"  # where there is no number
PREFERRED = ("test/acc", "val/acc", "test/loss", "val/loss")


@dataclass(frozen=True)
class Metric:
    """A metric by its name in metrics.json."""

    name: str

    @property
    def is_accuracy(self) -> bool:
        """Whether it is a share of images, shown in per cent."""
        return self.name.rpartition("/")[2] == "acc"

    @property
    def lower_is_better(self) -> bool:
        """Of losses and times; of all else more is better."""
        return self.name.endswith(("loss", "seconds"))

    @property
    def title(self) -> str:
        """In words."""
        stage, _, what = self.name.rpartition("/")
        stages = {"test": "test ", "val": "validation ", "train": "training "}
        return stages.get(stage, f"{stage} ") + {"acc": "accuracy"}.get(what, what.replace("_", " "))

    @property
    def unit(self) -> str:
        """Of a value, as it follows the number."""
        if self.is_accuracy:
            return " %"
        return " nats" if self.name.endswith("loss") else " s" if self.name.endswith("seconds") else ""

    @property
    def factor(self) -> float:
        """From a stored value to a shown one."""
        return 100.0 if self.is_accuracy else 1.0

    def number(self, value: float) -> str:
        """A value without its unit."""
        if math.isnan(value):
            return NONE
        digits = 2 if self.is_accuracy else 1 if self.name.endswith("seconds") else 4
        text = f"{self.factor * value:.{digits}f}"
        return text.removeprefix("-") if float(text) == 0 else text

    def signed(self, value: float) -> str:
        """A difference without its unit: ``+0.42``."""
        text = self.number(value)
        return text if value <= 0 or not text.strip("0.") or text == NONE else f"+{text}"

    def value(self, value: float) -> str:
        """A value with its unit."""
        return self.number(value) + self.unit

    def size(self, value: float) -> str:
        """How large a difference is, without its sign: ``0.42 points``."""
        return self.number(abs(value)) + (" points" if self.is_accuracy else self.unit)

    def better(self, value: float, other: float) -> bool:
        """Whether ``value`` is better than ``other``."""
        return value < other if self.lower_is_better else value > other


def choose(runs: Sequence[Run], asked: str | None) -> Metric:
    """The metric asked for, or test accuracy, or what all runs have.

    Raises:
        RunError: they have it not, or have none in common.
    """
    common = set.intersection(*(set(run.metrics) for run in runs))
    every = sorted(set.union(*(set(run.metrics) for run in runs)))
    if asked is None:
        found = [name for name in PREFERRED if name in common]
        if not found:
            names = [f"{run.name}: {', '.join(sorted(run.metrics))}" for run in runs]
            raise RunError(f"these runs have no common metric ({listed(names, 4, '; ')})")
        return Metric(found[0])
    if asked not in every:
        hint = did_you_mean(nearest(asked, every))
        raise RunError(f"no run has the metric {asked}; there are {listed(every)}{hint}")
    if lacking := [run.name for run in runs if asked not in run.metrics]:
        raise RunError(f"{len(lacking)} of {len(runs)} runs have no {asked}: {', '.join(lacking[:4])}")
    return Metric(asked)
