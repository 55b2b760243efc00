"""A sweep: a folder of trials that the same command finds again.

::

    outputs/sweeps/vit_nano_patch-seed_1f0c2b9a/
        sweep.json                       the command, and what became of each trial, rewritten as they end
        locks/                           who is at which trial; can be deleted when nothing runs
        patch=2,seed=0_8c6f2d1e/         a run folder (runs/record.py)
        patch=2,seed=1_...

The trials' folders are the truth: sweep.json is made from them.
"""

import json
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from vitrine.atomic import write_text
from vitrine.composition import Point
from vitrine.config.multirun import OBJECTIVES, TrainCommand
from vitrine.errors import RunError
from vitrine.runs import provenance
from vitrine.sweeps.identity import sweep_name, trial_name
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
    """

    folder: Path
    trials: list[Trial]
    common: list[str]
    keys: list[str]
    metric: str = METRIC
    planned: int = 0
    more: Callable[[], dict[str, Any]] = dict

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
        name = command.sweep.name or sweep_name(common, keys, command.data.name)
        folder = newest(Path(command.paths.output_dir) / "sweeps" / name, command.rerun)
        check_format(folder)
        trials: dict[str, Trial] = {}
        for point in points:
            config = point.config.run
            place = folder / trial_name(config, point.varies)
            trials.setdefault(place.name, Trial(len(trials), config, point.varies, place))
        return cls(folder, list(trials.values()), common, keys)

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
        before = read(self.folder)["trials"] if (self.folder / "sweep.json").exists() else []
        for one in before:  # trials of values that were asked for earlier
            if (self.folder / one["folder"]).exists():
                described.setdefault(one["folder"], one)
        values = {
            "format": FORMAT,
            "name": self.folder.name,
            "command": provenance.command(),
            "metric": self.metric,
            "common": self.common,
            "keys": self.keys,
            "written": time.time(),
            "best": None if best is None else {**asdict(best), "command": best.command(self.common)},
            **self.more(),
            "trials": list(described.values()),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
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
        if came.status == "finished" and metric in came.metrics:
            groups.setdefault(kept, []).append(came.metrics)
    if not groups:
        return None
    most = max(map(len, groups.values()))
    means = {
        kept: {name: fmean(one[name] for one in metrics) for name in metrics[0] if all(name in one for one in metrics)}
        for kept, metrics in groups.items()
        if len(metrics) == most
    }
    sign = 1 if OBJECTIVES[metric] else -1
    kept = max(means, key=lambda one: sign * means[one][metric])
    return Best(dict(kept), means[kept][metric], means[kept], most)


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
    """The newest folder of a sweep: ``NAME``, or ``NAME_2`` once it was carried out anew; or the one after that."""
    number = 1
    while _numbered(first, number + 1).exists():
        number += 1
    return _numbered(first, number + 1) if rerun and first.exists() else _numbered(first, number)


def _numbered(first: Path, number: int) -> Path:
    return first if number == 1 else first.with_name(f"{first.name}_{number}")


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
