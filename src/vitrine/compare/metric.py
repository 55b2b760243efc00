"""Metrics: their units, their direction, and how their values are formatted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.compare.load import RunResult
from vitrine.compare.simultaneous import SIGNIFICANCE_LEVEL
from vitrine.config.metrics import TITLES, is_share, kind_of, lower_is_better
from vitrine.errors import RunError
from vitrine.text import did_you_mean, listed, nearest, plural

MISSING = "—"  # in place of a missing number
PREFERRED = ("test/acc", "val/acc", "test/loss", "val/loss")
NOTHING = 1e-7  # of a shown value: floating-point error


@dataclass(frozen=True)
class Metric:
    """A metric, by its name in metrics.json, such as ``test/acc``."""

    name: str

    @property
    def kind(self) -> str:
        """Which metric it is, whatever it is of: ``acc`` for ``test/acc/NAME`` of a target."""
        return kind_of(self.name)

    @property
    def is_accuracy(self) -> bool:
        """Whether it is an accuracy: stored in [0, 1], shown in per cent."""
        return self.kind.endswith("acc") or self.kind.startswith("class_acc")

    @property
    def is_bounded(self) -> bool:
        """Whether it is in [0, 1]: an accuracy, AUROC, F1."""
        return is_share(self.name)

    @property
    def counts_images(self) -> bool:
        """Whether it is a share of all images, so that its values are whole numbers of images apart."""
        return self.kind in ("acc", "top5_acc")

    @property
    def lower_is_better(self) -> bool:
        """True for losses, times and calibration errors."""
        return lower_is_better(self.name)

    @property
    def title(self) -> str:
        """The name in prose, such as ``test accuracy``."""
        stage, _, what = self.name.partition("/") if "/" in self.name else ("", "", self.name)
        what, _, of = what.partition("/")
        stages = {"": "", "test": "test ", "val": "validation ", "train": "training "}
        return stages.get(stage, f"{stage} ") + TITLES.get(what, what.replace("_", " ")) + (of and f" of {of}")

    @property
    def unit(self) -> str:
        """The unit with its leading space; empty if it has none."""
        if self.is_accuracy:
            return " %"
        return " nats" if self.kind.endswith("loss") else " s" if self.kind.endswith("seconds") else ""

    @property
    def difference_unit(self) -> str:
        """The unit of a difference, with its leading space: ``points`` of an accuracy; empty if it has none."""
        return " points" if self.is_accuracy else self.unit

    @property
    def heading(self) -> str:
        """The title with the unit: ``test accuracy (%)``."""
        return self.title + _in_brackets(self.unit)

    @property
    def difference_heading(self) -> str:
        """The heading of differences: ``difference (points)``."""
        return "difference" + _in_brackets(self.difference_unit)

    @property
    def factor(self) -> float:
        """Factor from the stored to the shown value."""
        return 100.0 if self.is_accuracy else 1.0

    @property
    def best(self) -> str:
        """What the best value is: ``highest``, or ``lowest``."""
        return "lowest" if self.lower_is_better else "highest"

    def number(self, value: float) -> str:
        """Return a value without its unit; one that is not zero is not shown as zero."""
        if math.isnan(value):
            return MISSING
        shown = self.factor * value
        if abs(shown) < NOTHING:
            shown = 0.0
        digits = 2 if self.is_accuracy else 1 if self.kind.endswith("seconds") else 4
        if shown and float(f"{shown:.{digits}f}") == 0:
            digits = math.ceil(-math.log10(abs(shown)))
        return f"{shown:.{digits}f}"

    def signed(self, value: float) -> str:
        """Return a difference without its unit: ``+0.42``."""
        text = self.number(value)
        return text if value <= 0 or not text.strip("0.") or text == MISSING else f"+{text}"

    def value(self, value: float) -> str:
        """Return a value with its unit."""
        return self.number(value) + self.unit

    def magnitude(self, value: float) -> str:
        """Return the absolute value of a difference: ``0.42 points``."""
        return self.number(abs(value)) + self.difference_unit

    def size(self, value: float) -> str:
        """Return the size of a difference as a user gave it: ``0.25 points``."""
        return self._with_unit(f"{self.factor * value:.9g}")

    def short_magnitude(self, value: float) -> str:
        """Return the size of a difference to two significant digits: ``0.2 points``, ``1 point``."""
        return self._with_unit(f"{float(self.number(abs(float(f'{value:.1e}')))):g}")

    def _with_unit(self, number: str) -> str:
        return number + (f" point{'' if number == '1' else 's'}" if self.is_accuracy else self.unit)

    def interval(self, found: ConfidenceInterval) -> str:
        """Return a mean and its interval without unit: ``98.46 ± 0.07``, or ``99.80 [98.91, 99.97]`` if asymmetric."""
        mean = self.number(found.mean)
        if math.isnan(found.low):
            return mean
        if found.is_symmetric:
            return f"{mean} ± {self.number(found.high - found.mean)}"
        return f"{mean} [{self.number(found.low)}, {self.number(found.high)}]"

    def improves(self, difference: float) -> bool:
        """Whether a difference from another value is one for the better."""
        return difference < 0 if self.lower_is_better else difference > 0


def choose_metric(runs: Sequence[RunResult], name: str | None) -> Metric:
    """Return the metric called ``name``; without a name, the first of ``PREFERRED`` that all runs have.

    Raises:
        RunError: not all runs have the metric, or they have none in common.
    """
    common = set.intersection(*(set(run.metrics) for run in runs))
    every = sorted(set.union(*(set(run.metrics) for run in runs)))
    if name is None:
        found = [preferred for preferred in PREFERRED if preferred in common]
        if not found:
            names = [f"{run.name}: {', '.join(sorted(run.metrics))}" for run in runs]
            raise RunError(f"these runs have no metric in common ({listed(names, 4, '; ')})")
        return Metric(found[0])
    if name not in every:
        hint = did_you_mean(nearest(name, every))
        shown = [known for known in every if "/class_a" not in known]
        raise RunError(f"no run has the metric {name}; available: {', '.join(shown)}{hint}")
    if lacking := [run.name for run in runs if name not in run.metrics]:
        raise RunError(f"{len(lacking)} of {plural(len(runs), 'run')} have no {name}: {listed(lacking, 4)}")
    return Metric(name)


def format_p(p: float) -> str:
    """Return a p-value as text: ``< 0.001``, ``0.034``, ``0.21``."""
    if math.isnan(p) or p < 0.001:
        return MISSING if math.isnan(p) else "< 0.001"
    digits = 3 if p < 0.1 else 2
    while float(f"{p:.{digits}f}") >= SIGNIFICANCE_LEVEL > p:  # 0.0499 is not shown as 0.050
        digits += 1
    return f"{p:.{digits}f}"


def p_equals(p: float) -> str:
    """Return a p-value for a sentence: ``p < 0.001``, ``p = 0.034``."""
    text = format_p(p)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def _in_brackets(unit: str) -> str:
    return f" ({unit.strip()})" if unit else ""
