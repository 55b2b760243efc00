"""What sweeps have come to, from their trials' folders, while they run or after."""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean

from vitrine.errors import RunError
from vitrine.runs import RunRecord
from vitrine.sweeps.sweep import METRIC, Best, best_of, read
from vitrine.sweeps.trial import Outcome, outcome
from vitrine.text import did_you_mean, nearest


@dataclass(frozen=True)
class Overview:
    """One sweep.

    Attributes:
        folder: of the sweep.
        keys: that vary.
        common: overrides that all its trials share.
        varies: what distinguishes each trial that was ever asked for.
        outcomes: what each has come to.
        metric: that chooses among them.
        left: how long the rest takes, if as many trials run at a time as do now; ``None`` where that is not known.
        problem: why the sweep cannot be read, all else being empty then.
    """

    folder: Path
    keys: list[str]
    common: list[str]
    varies: list[dict[str, str]]
    outcomes: list[Outcome]
    metric: str = METRIC
    left: timedelta | None = None
    problem: str = ""

    @classmethod
    def of(cls, folder: Path) -> "Overview":
        """The sweep in ``folder``."""
        try:
            known = read(folder)
            folders = [folder / one["folder"] for one in known["trials"]]
            varies = [dict(one["varies"]) for one in known["trials"]]
            keys, common = list(known["keys"]), list(known["common"])
        except (RunError, KeyError, TypeError) as error:
            return cls(folder, [], [], [], [], problem=str(error))
        outcomes = [outcome(one) for one in folders]
        return cls(folder, keys, common, varies, outcomes, known["metric"], _left(folders, outcomes))

    @property
    def counts(self) -> Counter[str]:
        """Trials by status."""
        return Counter(one.status for one in self.outcomes)

    @property
    def best(self) -> Best | None:
        """The best configuration so far."""
        return best_of(self.varies, self.outcomes, self.metric)


def find(root: Path, name: str | None = None) -> list[Overview]:
    """The sweeps under ``root``, the newest last; or the one that is called ``name``, or lies there.

    Raises:
        RunError: there is none.
    """
    folders = sorted((path.parent for path in root.glob("*/sweep.json")), key=lambda one: one.stat().st_mtime)
    if name is not None:
        chosen = Path(name) if (Path(name) / "sweep.json").exists() else root / name
        if not (chosen / "sweep.json").exists():
            hint = did_you_mean(nearest(name, [one.name for one in folders]))
            raise RunError(f"there is no sweep called {name} in {root}{hint}")
        folders = [chosen]
    if not folders:
        raise RunError(f"there are no sweeps in {root}; python train.py -m patch=2,4 seed=0,1,2 makes one")
    return [Overview.of(folder) for folder in folders]


def _left(folders: list[Path], outcomes: list[Outcome]) -> timedelta | None:
    """Trials take as long as those that are finished, and go on as many at a time as now."""
    took = [one.seconds for one in outcomes if one.status == "finished" and one.seconds]
    running = [folder for folder, one in zip(folders, outcomes, strict=True) if one.status == "running"]
    if not took or not running:
        return None
    each = fmean(took)
    waiting = sum(one.status in ("new", "interrupted", "damaged") for one in outcomes)
    rest = sum(max(0.0, each - _age(folder)) for folder in running)
    return timedelta(seconds=round((waiting * each + rest) / len(running)))


def _age(folder: Path) -> float:
    facts = RunRecord(folder).facts
    began = facts["resumed"][-1]["at"] if facts.get("resumed") else facts.get("started")
    if began is None:
        return 0.0
    return (datetime.now(UTC) - datetime.fromisoformat(began)).total_seconds()
