"""A sweep: a folder of trials, found again by the same command; its sweep.json and its best configuration.

::

    outputs/sweeps/vit_nano_patch-seed_1f0c2b9a/
        sweep.json                   the command and each trial's result, rewritten as trials are added and end
        locks/                       of sweep.json and a search's study; can be deleted when no process runs
        patch-2_seed-0_8c6f2d1e/     a run folder (runs/record.py)
        patch-2_seed-1_...

sweep.json is derived from the trials' folders and can be deleted, except that of ``sweep=decide``: it holds what was
announced before the first run.
"""

import json
import math
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from filelock import FileLock

from vitrine.command.compose import Point
from vitrine.command.multirun import is_of_multirun, name_of_sweep, varying_keys
from vitrine.command.overrides import PATH_KEYS
from vitrine.command.sources import sources
from vitrine.compare.selection import fresh_seeds
from vitrine.config.metrics import lower_is_better
from vitrine.config.sweep import TrainCommand
from vitrine.errors import RunError, first_line
from vitrine.files import naming_failed_write, refuse_link_out, remove_leftovers, write_text
from vitrine.runs import provenance
from vitrine.sweeps.fingerprint import TrialFolders, sweep_name
from vitrine.sweeps.locks import held
from vitrine.sweeps.trial import Trial, TrialResult, label_of, read_result
from vitrine.untrusted import ANY, NUMBER, misshapen, read_json

OF_FOLDS = ("data.folds", "data.fold")
FORMAT = 1  # of sweep.json
DECIDES = {"decides": True}  # is part of the name of a decision
REPETITIONS = ("seed", "data.fold")  # keys that repeat a configuration
METRIC = "val/acc"  # selects the best configuration of a grid, unless all its trials monitor another metric
WRITTEN = ("jobs", "locks", "logs", "study.journal")  # folders that are written into, and a file that is appended to
SHAPES: dict[str, Any] = {  # of the entries of sweep.json that are read again
    "own_name": str,
    "metric": str,
    "common": [str],
    "sources": [str],
    "keys": [str],
    "planned": range(10**8),
    "complete": bool,
    "trials": [{"folder": str, "varies": {ANY: str}}],
    "search": {
        "metrics": [str],
        "trials": [{"folders": [str]}],
        "pareto": [{"varies": {ANY: str}, "mean": NUMBER, "metrics": {ANY: NUMBER}, "count": range(10**8)}],
    },
}

Group = tuple[tuple[str, str], ...]  # varying overrides without the seed


@dataclass(frozen=True)
class Sweep:
    """The trials of one command.

    Attributes:
        folder: holds all trials.
        trials: those that the command asks for, in order; a search appends to them.
        common: overrides that all trials share.
        keys: keys or groups that vary.
        metric: selects the best configuration.
        planned: largest number of trials of a search or a decision.
        combinations: number of combinations of values that the command asks for; some may be one trial.
        own_name: name of the folder without ``sweep.name``.
        ranks_runs: whether its finished runs say which configuration is best; not in a decision, which has verdicts,
            nor in a search, which ranks its trials as wholes.
        sources: flags that choose the configuration files that it is composed from.
    """

    folder: Path
    trials: list[Trial]
    common: list[str]
    keys: list[str]
    metric: str = METRIC
    planned: int = 0
    combinations: int = 0
    own_name: str = ""
    ranks_runs: bool = True
    sources: list[str] = field(default_factory=lambda: sources().flags)

    @property
    def shared(self) -> list[str]:
        """Flags and overrides that the commands of all its trials share."""
        return [*self.sources, *self.common]

    @property
    def total(self) -> int:
        """Number of trials, those to come included."""
        return max(self.planned, len(self.trials))

    @classmethod
    def plan(cls, points: Sequence[Point]) -> "Sweep":
        """Plan the sweep over ``points``, in the folder where the same command left it. Nothing is written.

        Raises:
            RunError: the folder holds another sweep or was written by another version of vitrine, what is written in it
            is a link that leads out of it, or hydra.sweep.subdir names one folder for two trials, or one with files
            that are not of a run.
        """
        command: TrainCommand = points[0].config
        common, keys = points[0].shared, varying_keys(points)
        own_name = sweep_name(*name_of_sweep(points), command.data.name)
        folder, known = folder_of(points[0], own_name)
        if known.get("own_name", own_name) != own_name or (folder / "study.journal").exists():
            owner = known.get("own_name") or "a search"
            hint = f"set another sweep.name, or hydra.sweep.dir, for {own_name}"
            raise RunError(f"{folder} holds another sweep, {owner}; {hint}")
        folders, trials = TrialFolders(folder), dict[Path, Trial]()
        accept, trust = command.accept_changed_data, command.trust
        for point in points:
            config = point.config.run
            path = folders.find(config, point.varies, point.subfolder)
            trial = Trial(
                number=len(trials),
                config=config,
                varies=point.varies,
                folder=path,
                accept_changed_data=accept,
                trust=trust,
            )
            trials.setdefault(path, trial)
        metric = _monitored(points)
        return cls(folder, list(trials.values()), common, keys, metric, combinations=len(points), own_name=own_name)

    def results(self) -> list[TrialResult]:
        """Read the result of each trial from its folder."""
        return [read_result(trial.folder) for trial in self.trials]

    def best(self, results: Sequence[TrialResult]) -> "BestConfiguration | None":
        """The best configuration so far, if runs are ranked; ``results`` are of the first trials, in their order."""
        if not self.ranks_runs:
            return None
        return best_configuration([trial.varies for trial in self.trials[: len(results)]], results, self.metric)

    def write(self, results: Sequence[TrialResult], extra: Mapping[str, Any]) -> None:
        """Write sweep.json, with ``extra`` entries.

        Trials that earlier commands asked for keep their places: the first is the baseline of comparisons. One of this
        command's replaces one with the same varying overrides, which has another fingerprint if a default has changed.

        Raises:
            RunError: it cannot be written, or the one that is there cannot be read; ``DiskFull``: for lack of space.
        """
        described = {
            trial.folder.name: {"folder": trial.folder.name, "varies": trial.varies, **vars(result)}
            for trial, result in zip(self.trials, results, strict=True)
        }
        asked = {tuple(sorted(trial.varies.items())): trial.folder.name for trial in self.trials}
        best, path = self.best(results), self.folder / "sweep.json"
        with held(FileLock(self.folder / "locks" / "sweep.lock")), naming_failed_write(path):
            remove_leftovers(self.folder, "sweep.json")
            before = read_sweep(self.folder)["trials"] if path.exists() else []
            earlier = {}
            for trial in before:
                name = trial["folder"]
                if name not in described:
                    name = asked.get(tuple(sorted(trial["varies"].items())), name)
                if name in described:
                    earlier[name] = described[name]
                elif (folder := self.folder / name).exists():
                    earlier[name] = {**trial, **vars(read_result(folder))}
            values = {
                "format": FORMAT,
                "name": self.folder.name,
                "own_name": self.own_name,
                "command": provenance.command(),
                "metric": self.metric,
                "common": self.common,
                "sources": self.sources,
                "keys": self.keys,
                "planned": self.planned,
                "written": time.time(),
                "best": None if best is None else {**asdict(best), "command": best.command(self.shared)},
                **extra,
                "trials": list((earlier | described).values()),
            }
            write_text(path, json.dumps(values, indent=1) + "\n")


@dataclass(frozen=True)
class BestConfiguration:
    """The configuration with the best mean over seeds, or folds, on validation.

    Attributes:
        varies: its varying overrides; without seed and fold where there are several.
        mean: mean of the selecting metric.
        metrics: means of all metrics, test metrics included.
        count: number of seeds or folds.
        left_out: configurations with fewer of them, that were not considered.
        over_folds: whether it is a mean over folds, so that its commands train without folds.
    """

    varies: dict[str, str]
    mean: float
    metrics: dict[str, float]
    count: int
    left_out: int = 0
    over_folds: bool = False

    @property
    def label(self) -> str:
        """Its varying overrides in one word: ``patch=2,depth=4``."""
        return label_of(self.varies)

    def command(self, common: Sequence[str]) -> str:
        """The command that trains it again, where ``common`` are the sweep's flags and fixed overrides."""
        return f"{provenance.program('train')} {shlex.join(self._overrides(common))}"

    def on_fresh_seeds(self, common: Sequence[str], seeds: Sequence[int]) -> str:
        """The command that trains it on as many other seeds as ``seeds``, at least three."""
        kept = [override for override in self._overrides(common) if not override.startswith("seed=")]
        return f"{provenance.program('train')} -m {shlex.join([*kept, fresh_seeds(seeds)])}"

    def _overrides(self, common: Sequence[str]) -> list[str]:
        typed = [*map(_without_quotes, common), *(f"{key}={value}" for key, value in self.varies.items())]
        keyed = [(text.partition("=")[0].lstrip("+"), text) for text in typed]
        if self.over_folds:  # a file may set them, too
            keyed = [(key, text) for key, text in keyed if key not in OF_FOLDS]
            keyed += [(key, f"{key}=null") for key in OF_FOLDS]
        return [text for key, text in keyed if not is_of_multirun(key)]


def _monitored(points: Sequence[Point]) -> str:
    """The metric by which every trial selects its epoch; ``METRIC`` if it is a loss, which depends on ``loss``."""
    first, *others = {point.config.callbacks.monitor for point in points}
    return METRIC if others or first in ("val/loss", "last") else first


def best_configuration(
    varies: Sequence[Mapping[str, str]], results: Sequence[TrialResult], metric: str = METRIC
) -> BestConfiguration | None:
    """The best among the configurations with the most finished seeds; ``None`` if none is finished.

    Also ``None`` over several data sets: which of these is easier is no choice.
    """
    if len({overrides.get("data") for overrides in varies}) > 1:
        return None
    found = ranked_configurations(varies, results, metric)
    return replace(found[0], left_out=sum(one.count < found[0].count for one in found)) if found else None


def ranked_configurations(
    varies: Sequence[Mapping[str, str]], results: Sequence[TrialResult], metric: str = METRIC
) -> list[BestConfiguration]:
    """Each configuration with finished trials whose metric is finite.

    First those with the most trials, and of equally many those with the best mean.
    """
    found, over_folds = [], "data.fold" in _repeated(varies)
    for group, members in by_configuration(varies, results).items():
        metrics = [result.metrics for result in members.values()]
        if finite := [one for one in metrics if math.isfinite(one.get(metric, math.nan))]:
            means = mean_metrics(finite)
            found.append(BestConfiguration(dict(group), means[metric], means, len(finite), over_folds=over_folds))
    sign = 1 if lower_is_better(metric) else -1
    return sorted(found, key=lambda one: (-one.count, sign * one.mean))


def by_configuration(
    varies: Sequence[Mapping[str, str]], results: Sequence[TrialResult]
) -> dict[Group, dict[Group, TrialResult]]:
    """Results of finished trials by their varying overrides, and in each by seed and fold where there are several."""
    repeated = _repeated(varies)
    keys = list(dict.fromkeys(key for overrides in varies for key in overrides))  # their order differs between commands
    groups: dict[Group, dict[Group, TrialResult]] = {}
    for overrides, result in zip(varies, results, strict=True):
        group = tuple((key, overrides[key]) for key in keys if key in overrides and key not in repeated)
        repetition = tuple((key, overrides[key]) for key in keys if key in overrides and key in repeated)
        if result.status == "finished":
            groups.setdefault(group, {})[repetition] = result
    return groups


def _repeated(varies: Sequence[Mapping[str, str]]) -> set[str]:
    """Return the keys whose values are repetitions."""
    repeated = {key for key in REPETITIONS if len({overrides.get(key) for overrides in varies}) > 1}
    return repeated | {"data.val_seed"} if "data.fold" in repeated else repeated  # another division into folds


def mean_metrics(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean of each metric that all of ``metrics`` have."""
    return {name: fmean(values[name] for values in metrics) for name in metrics[0] if all(name in m for m in metrics)}


def read_sweep(folder: Path) -> dict[str, Any]:
    """Read sweep.json.

    Raises:
        RunError: it is missing, damaged or another user's, or was written by another version of vitrine.
    """
    path = folder / "sweep.json"
    try:
        values: dict[str, Any] = read_json(path)
        if not isinstance(values, dict):
            raise ValueError("it does not hold an object")
    except FileNotFoundError:
        raise RunError(f"{folder} is not a sweep: it has no sweep.json") from None
    except PermissionError as error:
        raise _forbidden(folder, error) from None
    except (OSError, ValueError) as error:
        hint = "delete it, and the same command rebuilds it from the trials"
        but = "but that of sweep=decide holds what was announced: rerun=true starts over in a new folder"
        raise RunError(f"cannot read {path}: {first_line(error)}; {hint}; {but}") from None
    if (written := values.get("format")) != FORMAT:
        raise RunError(
            f"{folder} was written by another version of vitrine (its format is {written}, this one's {FORMAT}); "
            "rerun=true starts over in a new folder beside it, sweep.name=NAME in another one"
        )
    if problem := misshapen(values, SHAPES):
        raise RunError(f"{path}: {problem}")
    return values


def _forbidden(folder: Path, error: PermissionError) -> RunError:
    hint = f"its owner can allow it: chmod -R g+rX {folder}"
    return RunError(f"cannot read {folder / 'sweep.json'}: {error.strerror}; {hint}")


def folder_of(point: Point, own_name: str) -> tuple[Path, dict[str, Any]]:
    """Return the folder of a command's sweep, which may not exist yet, and what its sweep.json holds.

    Args:
        point: a point of the sweep, whose command may name the folder.
        own_name: of the folder otherwise.

    Raises:
        RunError: as :func:`check_folder`.
    """
    command: TrainCommand = point.config
    first = point.folder or Path(command.paths.output_dir) / "sweeps" / (command.sweep.name or own_name)
    folder = _newest(first, command.rerun)
    return folder, check_folder(folder)


def _newest(first: Path, rerun: bool) -> Path:
    """The newest folder of a sweep: ``NAME``, or ``NAME@2`` after ``rerun=true``; with ``rerun``, the next one."""
    suffixes = [
        path.name.rpartition("@")[2] for path in first.parent.glob("*@*") if path.name.startswith(f"{first.name}@")
    ]
    numbers = [int(suffix) for suffix in suffixes if suffix.isdigit()] + ([1] if first.exists() else [])
    number = max(numbers, default=1) + (1 if rerun and numbers else 0)
    return first if number == 1 else first.with_name(f"{first.name}@{number}")


def check_folder(folder: Path) -> dict[str, Any]:
    """Return what sweep.json in ``folder``, which others may have made, holds; nothing if there is none.

    Raises:
        RunError: the sweep cannot be continued: its sweep.json is damaged or was written by another version of vitrine,
            or what a sweep writes in the folder is a link that leads out of it.
    """
    try:
        known = read_sweep(folder) if (folder / "sweep.json").exists() else {}
    except PermissionError as error:
        raise _forbidden(folder, error) from None
    for path in (*(folder / name for name in WRITTEN), *folder.glob("logs/*")):
        refuse_link_out(path, path.parent)
    return known


def _without_quotes(override: str) -> str:
    """``depth='3'`` and ``data.root='a b'`` as a user types them; Hydra's grammar needs the quotes, and gets them."""
    is_path = override.partition("=")[0] in PATH_KEYS
    return re.sub(r"^([\w.]+)='([^'\",$~]+)'$" if is_path else r"^([\w/]+)='(\d+)'$", r"\1=\2", override)
