"""Load the results of runs from their folders. A damaged run is reported and left out."""

import json
import math
import re
import shlex
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.compare.folds import repetition_of
from vitrine.config.sweep import one_spelling
from vitrine.config.trust import prefixes
from vitrine.errors import RunError
from vitrine.runs import RunRecord
from vitrine.runs.predictions import read_groups, read_predictions
from vitrine.runs.registry import RunEntry, RunList, UnreadableRun, find_runs
from vitrine.runs.status import FAILED
from vitrine.untrusted import read_json

LONGEST_COMMAND = 20_000  # characters: the time of shlex.split is quadratic in them, 25 ms for so many
_OVERRIDE = re.compile(r"[+~]{0,2}([\w./@]+)=(.*)", re.DOTALL)
_NEXT_OVERRIDE = re.compile(r",(?=[+~]{0,2}[\w./@]+=)")


@dataclass(frozen=True)
class RunResult:
    """A run to be compared, from a run folder or from Weights & Biases.

    Attributes:
        name: path of the run folder, or ``ENTITY/PROJECT/ID`` at W&B.
        status: as in run.json. Only ``finished`` runs are compared; of others, only the configuration is loaded.
        config: the resolved configuration, flat: ``{"model.dim": 64, ...}``.
        overrides: what the user typed, ``{"position": "rope", "seed": "0"}``; in a sweep, the trial's own values.
        facts: the content of run.json.
        metrics: final metrics; empty for a run that is not finished.
        history: metrics.csv, a dict per row.
        folder: the run folder, if it is on this machine.
        labels_hash: SHA-256 of the labels in predictions.npz; empty if there are none.
        trust: prefixes of the dotted names that the run may import.
        allow_changed_code: whether its model is shown even if the code of its parts was edited since training.
    """

    name: str
    status: str
    config: Mapping[str, Any]
    overrides: Mapping[str, str]
    facts: Mapping[str, Any]
    metrics: Mapping[str, float]
    history: list[dict[str, float]]
    folder: Path | None = None
    labels_hash: str = ""
    trust: tuple[str, ...] = ()
    allow_changed_code: bool = False

    @property
    def seed(self) -> Any:
        """The seed; the run's name if it is not known."""
        return self.config.get("seed", self.name)

    @property
    def parent(self) -> Path | None:
        """The folder that holds the run folder, with links resolved; ``None`` if the run is not on this machine."""
        return None if self.folder is None else self.folder.resolve().parent

    @property
    def repetition(self) -> Hashable:
        """What sets the run apart from others of its configuration: its seed, or its fold with the seed."""
        return repetition_of(self.config, self.name)

    @property
    def data(self) -> str:
        """The data source; empty if it is not known."""
        return str(self.config.get("data.name", ""))

    @property
    def started(self) -> str:
        """Start time as an ISO 8601 string."""
        return str(self.facts.get("started", ""))

    @property
    def images_per_second(self) -> float | None:
        """Training throughput, from the median step time."""
        value = (self.facts.get("speed") or {}).get("images_per_second")
        return None if value is None else float(value)

    def seconds_to(self, target: float) -> float | None:
        """Return the training time until validation accuracy first reached ``target``; ``None`` if it never did."""
        times = (row for row in self.history if "seconds" in row and "val/acc" in row)
        return next((row["seconds"] for row in times if row["val/acc"] >= target), None)

    @property
    def logits(self) -> np.ndarray:
        """Stored logits of the test images, (N, classes)."""
        return self._stored("logits")

    @property
    def labels(self) -> np.ndarray:
        """Stored labels of the test images, (N,) int64."""
        return self._stored("labels")

    @property
    def groups(self) -> np.ndarray | None:
        """Stored number of each test image's group, (N,); ``None`` if they have none."""
        assert self.folder is not None
        return read_groups(self.folder / "predictions.npz")

    def _stored(self, name: str) -> np.ndarray:
        assert self.folder is not None
        return read_predictions(self.folder / "predictions.npz", name)[0]


@dataclass(frozen=True)
class RunResults:
    """Runs to be compared, damaged runs as pairs of name and problem, and runs that filters left out, not loaded."""

    runs: list[RunResult]
    damaged: list[tuple[str, str]]
    left_out: Sequence[RunResult] = ()


def load_results(
    paths: str | Path | Iterable[str | Path],
    filters: Iterable[str] = (),
    *,
    trust: Collection[str] = (),
    allow_changed_code: bool = False,
) -> RunResults:
    """Load every run at ``paths`` or anywhere below them, each once, in the order they were started.

    Trials of a sweep are together, in its order: on a cluster, jobs start in any order.

    Args:
        paths: run folders, and folders of runs; or one of them.
        filters: values of configuration keys that runs must have, ``KEY=VALUE,VALUE``; see :meth:`RunList.where`.
        trust: prefixes of the dotted names that runs with parts of your own may import, for images of their models.
        allow_changed_code: make these images even if the code of the models' parts was edited since training.

    Raises:
        RunError: there is no run at one of the paths, no such key, or no run with these values.
    """
    found: dict[Path, RunEntry | UnreadableRun] = {}
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        if not path.is_dir():
            RunRecord.open(path)  # raises with the nearest run as a hint
        listed = find_runs([path])
        entries: list[RunEntry | UnreadableRun] = [*listed.entries, *listed.unreadable]
        if not entries:
            raise RunError(f"there is no run in {path}: no run.json in it or below it")
        found |= {entry.path.resolve(): entry for entry in entries}
    kept = RunList(
        [entry for entry in found.values() if isinstance(entry, RunEntry)],
        [entry for entry in found.values() if isinstance(entry, UnreadableRun)],
    )
    every = kept.entries
    for text in filters:
        column, _, values = text.partition("=")
        if kept.entries and all(kept.column(column) not in entry.config for entry in kept.entries):
            raise RunError(f"{text}: {column} is not a key of the configuration; runs are not selected by results")
        kept = kept.where(column, values)
        if not kept.entries:
            raise RunError(f"no run has {text}")
    runs, damaged = [], [(str(entry.path), entry.problem) for entry in kept.unreadable]
    for entry in kept.entries:
        try:
            runs.append(replace(result_of(entry), trust=prefixes(trust), allow_changed_code=allow_changed_code))
        except RunError as error:
            damaged.append((str(entry.path), str(error)))
    runs.sort(key=lambda run: (not run.started, run.started, run.name))  # those that failed before they began come last
    begun: dict[Path, tuple[bool, str]] = {}
    for run in runs:
        begun.setdefault(Path(run.name).parent, (not run.started, run.started))
    orders = {parent: _order_of_trials(parent) for parent in begun}

    def place(run: RunResult) -> tuple[tuple[bool, str], str, float]:
        path = Path(run.name)
        return begun[path.parent], str(path.parent), orders[path.parent].get(path.name, math.inf)

    paths_kept = {entry.path for entry in kept.entries}
    left_out = [_without_results(entry, entry.facts) for entry in every if entry.path not in paths_kept]
    return RunResults(sorted(runs, key=place), damaged, left_out)


def _order_of_trials(folder: Path) -> dict[str, int]:
    """Places of a sweep's trials by their folders' names; empty elsewhere."""
    try:
        trials = read_json(folder / "sweep.json")["trials"]
        return {str(trial["folder"]): place for place, trial in enumerate(trials)}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def result_of(entry: RunEntry) -> RunResult:
    """Read a finished run from its folder; of another, the status and the configuration.

    Raises:
        RunError: part of its record is missing or damaged.
    """
    folder, status = entry.path, entry.status
    if status != "finished":
        return _without_results(entry, RunRecord.open(folder).facts if status in FAILED else entry.facts)
    record = RunRecord.open(folder)
    facts, metrics = record.facts, entry.metrics
    if not metrics:
        raise RunError(f"{folder / 'metrics.json'} is empty")
    history = record.history()
    predictions, labels_hash = folder / "predictions.npz", ""
    if predictions.is_file():
        labels_hash = sha256(read_predictions(predictions, "labels")[0].tobytes()).hexdigest()
    return RunResult(str(folder), status, entry.config, _overrides(facts), facts, metrics, history, folder, labels_hash)


def _without_results(entry: RunEntry, facts: Mapping[str, Any]) -> RunResult:
    return RunResult(str(entry.path), entry.status, entry.config, _overrides(facts), facts, {}, [], entry.path)


def _overrides(facts: Mapping[str, Any]) -> dict[str, str]:
    return parse_overrides(str(facts.get("command", "")), str(facts.get("varies") or ""))


def parse_overrides(command: str, varies: str) -> dict[str, str]:
    """Return the overrides of a command; in a sweep, the trial's values (``varies``) replace the sweep's.

    There are none if either is longer than ``LONGEST_COMMAND``.
    """
    if max(len(command), len(varies)) > LONGEST_COMMAND:
        return {}
    try:
        arguments = shlex.split(command)
    except ValueError:
        arguments = []
    matches = [_OVERRIDE.fullmatch(text) for text in [*arguments, *_NEXT_OVERRIDE.split(varies)]]
    return {match[1]: one_spelling(match[1], match[2]) for match in matches if match}


def as_typed(value: Any) -> str:
    """Return a configuration value as users type it, different for different values."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return json.dumps(value) if isinstance(value, (list, dict)) else str(value)
