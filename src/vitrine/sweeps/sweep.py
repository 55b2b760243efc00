"""A sweep: a folder of trials that the same command finds again.

::

    outputs/sweeps/vit_nano_patch-seed_1f0c2b9a/
        sweep.json                       the command, and what became of each trial, rewritten as they end
        locks/                           who is at which trial; can be deleted when nothing runs
        patch-2_seed-0_8c6f2d1e/         a run folder (runs/record.py)
        patch-2_seed-1_...

The trials' folders are the truth: sweep.json is made from them.
"""

import json
import math
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from filelock import FileLock

from vitrine.command.compose import Point
from vitrine.config.sweep import OBJECTIVES, TrainCommand
from vitrine.errors import RunError
from vitrine.files import write_text
from vitrine.runs import provenance
from vitrine.sweeps.fingerprint import TrialFolders, sweep_name
from vitrine.sweeps.trial import Outcome, Trial, outcome

FORMAT = 1  # of sweep.json and of the folders' names
METRIC = "val/acc"  # chooses among trials, as it chooses epochs


@dataclass(frozen=True)
class Sweep:
    """Trials of one command.

    Attributes:
        folder: of all trials.
        trials: that the command asks for, in its order.
        common: the overrides that all of them share.
        keys: that vary.
        metric: that chooses among them.
        planned: trials that there will be, where more are made while it runs.
        more: what else is to stand in sweep.json.
        own_name: what its folder is called, or would be without sweep.name.
    """

    folder: Path
    trials: list[Trial]
    common: list[str]
    keys: list[str]
    metric: str = METRIC
    planned: int = 0
    more: Callable[[], dict[str, Any]] = dict
    own_name: str = ""

    @property
    def total(self) -> int:
        """Trials there are or will be."""
        return max(self.planned, len(self.trials))

    @classmethod
    def plan(cls, points: Sequence[Point]) -> "Sweep":
        """The sweep that ``points`` make, found again if there is one; nothing is written.

        Raises:
            RunError: its folder is of another version of vitrine.
        """
        command: TrainCommand = points[0].config
        keys = list(points[0].varies)
        common = [word for word in points[0].words if word.partition("=")[0] not in keys]
        own_name = sweep_name(common, keys, command.data.name)
        default = Path(command.paths.output_dir) / "sweeps" / (command.sweep.name or own_name)
        folder = newest(points[0].folder or default, command.rerun)
        check_format(folder)
        _check_owner(folder, own_name)
        folders, trials = TrialFolders(folder), dict[Path, Trial]()
        for point in points:
            config = point.config.run
            place = folders.find(config, point.varies, point.subfolder)
            trials.setdefault(place, Trial(len(trials), config, point.varies, place))
        return cls(folder, list(trials.values()), common, keys, own_name=own_name)

    def outcomes(self) -> list[Outcome]:
        """What each trial has come to so far."""
        return [outcome(trial.folder) for trial in self.trials]

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """Write sweep.json."""
        best = self.best(outcomes)
        described = {
            trial.folder.name: {"folder": trial.folder.name, "varies": trial.varies, **asdict(came)}
            for trial, came in zip(self.trials, outcomes, strict=True)
        }
        varies = [trial.varies for trial in self.trials]
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "locks").mkdir(exist_ok=True)
        with FileLock(self.folder / "locks" / "sweep.lock"):
            before = read(self.folder)["trials"] if (self.folder / "sweep.json").exists() else []
            for one in before:  # trials of values that were asked for earlier; not those of an older version's defaults
                place = self.folder / one["folder"]
                if place.exists() and one["varies"] not in varies:
                    described.setdefault(one["folder"], {**one, **asdict(outcome(place))})
            self._write(described, best)

    def _write(self, described: Mapping[str, Any], best: "Best | None") -> None:
        values = {
            "format": FORMAT,
            "name": self.folder.name,
            "own_name": self.own_name,
            "command": provenance.command(),
            "metric": self.metric,
            "common": self.common,
            "keys": self.keys,
            "written": time.time(),
            "best": None if best is None else {**asdict(best), "command": best.command(self.common)},
            **self.more(),
            "trials": list(described.values()),
        }
        write_text(self.folder / "sweep.json", json.dumps(values, indent=1) + "\n")

    def best(self, outcomes: Sequence[Outcome]) -> "Best | None":
        """The best configuration so far."""
        return best_of([trial.varies for trial in self.trials], outcomes, self.metric)


@dataclass(frozen=True)
class Best:
    """The configuration that is best on validation, by its mean over seeds.

    Attributes:
        varies: what it is, seed left out where there are several.
        mean: of the metric.
        metrics: means of all metrics, those of the test images among them.
        count: seeds.
    """

    varies: dict[str, str]
    mean: float
    metrics: dict[str, float]
    count: int

    def command(self, common: Sequence[str]) -> str:
        """What trains it again, to be pasted, where ``common`` are the sweep's fixed overrides."""
        kept = [word for word in common if not word.startswith(("hydra", "launcher.", "sweep", "rerun"))]
        varied = [f"{key}={value}" for key, value in self.varies.items()]
        return shlex.join(["python", "train.py", *(_as_typed(word) for word in kept), *varied])


def best_of(varies: Sequence[Mapping[str, str]], outcomes: Sequence[Outcome], metric: str = METRIC) -> Best | None:
    """The best of the configurations with the most finished seeds; ``None`` while there is none.

    Args:
        varies: what distinguishes each trial.
        outcomes: what each has come to.
        metric: that chooses.
    """
    seeds = {one.get("seed") for one in varies}
    groups: dict[tuple[tuple[str, str], ...], list[dict[str, float]]] = {}
    for one, came in zip(varies, outcomes, strict=True):
        kept = tuple((key, value) for key, value in one.items() if key != "seed" or len(seeds) == 1)
        if came.status == "finished" and math.isfinite(came.metrics.get(metric, math.nan)):
            groups.setdefault(kept, []).append(came.metrics)
    if not groups:
        return None
    most = max(map(len, groups.values()))
    full = {kept: means(metrics) for kept, metrics in groups.items() if len(metrics) == most}
    sign = 1 if OBJECTIVES[metric] else -1
    kept = max(full, key=lambda one: sign * full[one][metric])
    return Best(dict(kept), full[kept][metric], full[kept], most)


def means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each metric that all have."""
    return {name: fmean(one[name] for one in metrics) for name in metrics[0] if all(name in one for one in metrics)}


def read(folder: Path) -> dict[str, Any]:
    """sweep.json of the sweep in ``folder``.

    Raises:
        RunError: there is none, or it is damaged or of another version.
    """
    check_format(folder)
    try:
        return dict(json.loads((folder / "sweep.json").read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise RunError(f"{folder} is no sweep: cannot read its sweep.json: {error}") from None


def _as_typed(word: str) -> str:
    """Without the quotes that Hydra's grammar needs around a number that chooses from a group: ``depth='3'``."""
    return re.sub(r"^([\w/]+)='(\d+)'$", r"\1=\2", word)


def newest(first: Path, rerun: bool) -> Path:
    """The newest folder of a sweep: ``NAME``, or ``NAME@2`` once it was carried out anew; or the one after that."""
    others = [
        path.name.rpartition("@")[2] for path in first.parent.glob("*@*") if path.name.startswith(f"{first.name}@")
    ]
    numbers = [int(one) for one in others if one.isdigit()] + ([1] if first.exists() else [])
    number = max(numbers, default=1) + (1 if rerun and numbers else 0)
    return first if number == 1 else first.with_name(f"{first.name}@{number}")


def _check_owner(folder: Path, own_name: str) -> None:
    """Raise RunError where another sweep lies, which had been given the same name."""
    theirs = read(folder).get("own_name", own_name) if (folder / "sweep.json").exists() else own_name
    if theirs != own_name or (folder / "study.journal").exists():
        raise RunError(
            f"{folder} is of another sweep, {theirs or 'a search'}; this one, {own_name}, needs another name"
        )


def check_format(folder: Path) -> None:
    """Raise RunError where the sweep in ``folder`` was written by another version."""
    path = folder / "sweep.json"
    if not path.exists():
        return
    try:
        written = json.loads(path.read_text(encoding="utf-8")).get("format")
    except (OSError, ValueError, AttributeError) as error:
        raise RunError(f"cannot read {path}: {error}; remove it, and it is made again from the trials") from None
    if written != FORMAT:
        raise RunError(
            f"{folder} was written by another version of vitrine (its format is {written}, this one's {FORMAT}); "
            "rerun=true starts over beside it, sweep.name=NAME elsewhere"
        )
