"""What a sweep decided while it trained (``sweep=decide``): its own verdicts and intervals, from sweep.json.

Its seeds were added until the differences were clear, so a test that takes their number as given would find too many.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitrine.compare.load import RunResult, parse_overrides
from vitrine.compare.simultaneous import SIGNIFICANCE_LEVEL
from vitrine.compare.table import ConfigurationRow
from vitrine.errors import RunError
from vitrine.untrusted import read_json


@dataclass(frozen=True)
class DecidedRow:
    """A row's verdict against the sweep's baseline.

    Attributes:
        verdict: ``better``, ``worse``, ``equal``, ``undecided``, or ``None`` if the sweep is not done.
        mean: the difference at the last look; NaN if there was none.
        low, high: its interval; NaN where it has no bound.
        sentence: the finding, as the sweep printed it.
    """

    verdict: str | None
    mean: float
    low: float
    high: float
    sentence: str


@dataclass(frozen=True)
class SweepDecision:
    """Verdicts of a sweep.

    Attributes:
        metric: name of the metric that it was decided by.
        baseline: overrides of the configuration that others were compared with.
        rows: overrides of each other configuration, and its verdict.
        alpha: probability of any false verdict, in (0, 1).
    """

    metric: str
    baseline: dict[str, str]
    rows: list[tuple[dict[str, str], DecidedRow]]
    alpha: float

    @classmethod
    def of(cls, runs: Sequence[RunResult]) -> "SweepDecision | None":
        """Read the decision of the sweep that holds all ``runs``; ``None`` if there is no such sweep.

        Raises:
            RunError: its sweep.json is damaged.
        """
        parent, *others = {run.parent for run in runs}
        if parent is None or others or not (path := parent / "sweep.json").is_file():
            return None
        try:
            known = read_json(path).get("decision")
            return None if known is None else cls._from(known)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise RunError(f"cannot read the decision in {path}: {error}; rerun the sweep to write it again") from None

    @classmethod
    def _from(cls, known: dict[str, Any]) -> "SweepDecision":
        rows = []
        for arm, verdict in known["verdicts"].items():
            look: dict[str, Any] = known["looks"][arm][-1] if known["looks"][arm] else {}
            known_values = (look.get(name) for name in ("mean", "low", "high"))
            mean, low, high = (math.nan if value is None else float(value) for value in known_values)
            rows.append((parse_overrides("", arm), DecidedRow(verdict, mean, low, high, str(known["findings"][arm]))))
        alpha = float(known.get("alpha", SIGNIFICANCE_LEVEL))
        return cls(str(known["metric"]), parse_overrides("", known["baseline"]), rows, alpha)

    def is_baseline(self, row: ConfigurationRow) -> bool:
        """Whether other configurations were compared with this row."""
        return _is(row, self.baseline)

    def about(self, row: ConfigurationRow, baseline: ConfigurationRow, metric: str) -> DecidedRow | None:
        """Return the verdict about ``row``; ``None`` if another comparison was decided."""
        if metric != self.metric or row.is_main_effect or not self.is_baseline(baseline):
            return None
        return next((decided for overrides, decided in self.rows if _is(row, overrides)), None)


def _is(row: ConfigurationRow, overrides: dict[str, str]) -> bool:
    """Whether all runs of a row were asked for by these overrides."""
    return all(run.overrides.get(key) == value for run in row.runs.values() for key, value in overrides.items())
