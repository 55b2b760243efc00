"""Runs to be compared, read from their folders. What is damaged is named and left out."""

import json
import re
import shlex
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.errors import RunError, first_line
from vitrine.runs import RunRecord
from vitrine.runs.registry import RunEntry, UnreadableRun, find_runs

_TYPED = re.compile(r"[+~]{0,2}([\w./@]+)=(.*)", re.DOTALL)
_NEXT_WORD = re.compile(r",(?=[+~]{0,2}[\w./@]+=)")


@dataclass(frozen=True)
class Run:
    """One run, wherever its record lies.

    Attributes:
        name: the folder as it can be opened, or the run's address at W&B.
        status: as run.json has it; only ``finished`` ones are compared, and of others nothing else is read.
        config: the resolved configuration, flat: ``{"model.dim": 64, ...}``.
        words: what was typed to get it, ``{"position": "rope", "seed": "0"}``; of a sweep, what its trial was given.
        facts: run.json.
        metrics: final metrics; empty for a run that did not come to its end.
        history: metrics.csv, a dict per row.
        folder: of the run, if it is on this disk.
        labels: SHA-256 of the test labels that predictions were stored for; empty where none were.
    """

    name: str
    status: str
    config: Mapping[str, Any]
    words: Mapping[str, str]
    facts: Mapping[str, Any]
    metrics: Mapping[str, float]
    history: list[dict[str, float]]
    folder: Path | None = None
    labels: str = ""

    @property
    def seed(self) -> Any:
        """What tells the run from its repetitions."""
        return self.config.get("seed", self.name)

    @property
    def data(self) -> str:
        """The data source; empty where it is not known."""
        return str(self.config.get("data.name", ""))

    @property
    def started(self) -> str:
        """When, as ISO 8601."""
        return str(self.facts.get("started", ""))

    @property
    def images_per_second(self) -> float | None:
        """In training, by the median step."""
        speed = self.facts.get("speed")
        value = speed.get("images_per_second") if isinstance(speed, dict) else None
        return float(value) if isinstance(value, (int, float)) else None

    def seconds_to(self, target: float) -> float | None:
        """Training time until validation accuracy first reached ``target``; ``None`` if it never did."""
        times = (row for row in self.history if "seconds" in row and "val/acc" in row)
        return next((row["seconds"] for row in times if row["val/acc"] >= target), None)

    @property
    def logits(self) -> np.ndarray:
        """(N, classes), of the test images."""
        return self._stored("logits")

    @property
    def truth(self) -> np.ndarray:
        """(N,) int64, the test images' labels."""
        return self._stored("labels")

    def _stored(self, name: str) -> np.ndarray:
        assert self.folder is not None
        return _read_predictions(self.folder / "predictions.npz", name)


@dataclass(frozen=True)
class Gathered:
    """Runs to be compared, and what could not be read: a folder's name and why."""

    runs: list[Run]
    damaged: list[tuple[str, str]]


def gather(paths: Iterable[str | Path]) -> Gathered:
    """Every run at ``paths`` or anywhere under them, each once, in the order they were started.

    Raises:
        RunError: there is no run at one of the paths.
    """
    found: dict[Path, RunEntry | UnreadableRun] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            RunRecord.open(path)  # says what is nearest
        listed = find_runs([path])
        inside: list[RunEntry | UnreadableRun] = [*listed.entries, *listed.unreadable]
        if not inside:
            raise RunError(f"there is no run in {path}: no run.json in it or below it")
        found |= {one.path.resolve(): one for one in inside}
    runs, damaged = [], []
    for one in found.values():
        try:
            if isinstance(one, UnreadableRun):
                raise RunError(one.problem)
            runs.append(read(one))
        except RunError as error:
            damaged.append((str(one.path), str(error)))
    return Gathered(sorted(runs, key=lambda run: (run.started, run.name)), damaged)


def read(entry: RunEntry) -> Run:
    """A run as it was found, with all that its folder has if it is finished; of others the status is enough.

    Raises:
        RunError: part of its record is missing or damaged.
    """
    folder, status = entry.path, entry.status
    if status != "finished":
        return Run(str(folder), status, {}, {}, entry.facts, {}, [], folder)
    record = RunRecord.open(folder)
    facts, metrics = record.facts, entry.metrics
    if not all(isinstance(value, (int, float)) for value in metrics.values()):
        raise RunError(f"{folder / 'metrics.json'} holds what is no number")
    if not metrics:
        raise RunError(f"{folder / 'metrics.json'} is empty")
    try:
        history = record.history()
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {folder / 'metrics.csv'}: {first_line(error)}") from None
    predictions, labels = folder / "predictions.npz", ""
    if predictions.is_file():
        labels = sha256(_read_predictions(predictions, "labels").tobytes()).hexdigest()
    words = typed(str(facts.get("command", "")), str(facts.get("varies") or ""))
    return Run(str(folder), status, entry.config, words, facts, metrics, history, folder, labels)


def typed(command: str, varies: str) -> dict[str, str]:
    """The overrides of a command; in a sweep, those that ``varies`` gave to the trial stand for the sweep's."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    matches = [_TYPED.fullmatch(word) for word in [*words, *_NEXT_WORD.split(varies)]]
    return {match[1]: match[2] for match in matches if match}


def shown(value: Any) -> str:
    """A configuration's value as it is typed."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value) if isinstance(value, (list, dict)) else str(value)


def _read_predictions(path: Path, name: str) -> np.ndarray:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return stored[name]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RunError(f"cannot read {path}: {first_line(error)}") from None
