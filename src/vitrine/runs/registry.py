"""Lists of runs: found in folders, chosen by any column, the best of them, and deleted. Imports no torch."""

import json
import math
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from vitrine.errors import RunError
from vitrine.runs.index import STORED, listed
from vitrine.runs.record import RunRecord, status_of
from vitrine.text import did_you_mean, nearest

FACTS = ("path", "run", "status", *STORED, "commit")  # columns that run.json gives


@dataclass(frozen=True)
class Entry:
    """A run, as far as lists need it.

    Attributes:
        path: the run folder.
        facts: what run.json says, without what is bulky.
        metrics: final metrics; empty for a run that did not come to its end.
        stored: gives the configuration, flat, as JSON: most lists need none.
    """

    path: Path
    facts: Mapping[str, Any]
    metrics: Mapping[str, float]
    stored: Callable[[], str]

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration, flat: ``{"model.depth": 6, ...}``."""
        return json.loads(self.stored())

    @cached_property
    def status(self) -> str:
        """As :attr:`RunRecord.status`."""
        return status_of(self.facts)

    def value(self, column: str) -> Any:
        """What the run has under the full name of a column; None where it has nothing."""
        match column:
            case "path" | "run":
                return str(self.path) if column == "path" else self.path.name
            case "status":
                return self.status
            case "commit":
                return (self.facts.get("code") or {}).get("commit")
        if column in STORED:
            return self.facts.get(column)
        return self.metrics[column] if column in self.metrics else self.config.get(column)


@dataclass(frozen=True)
class Broken:
    """A folder that should be a run and can't be read, and why."""

    path: Path
    problem: str


@dataclass(frozen=True)
class Found:
    """The runs under some folders, the earliest first, and the folders that had to be skipped."""

    entries: list[Entry]
    broken: list[Broken]

    @cached_property
    def columns(self) -> list[str]:
        """The full name of every column: facts, final metrics, configuration."""
        config = dict.fromkeys(key for entry in self.entries for key in entry.config)
        return [*FACTS, *dict.fromkeys(name for entry in self.entries for name in entry.metrics), *config]

    def column(self, word: str) -> str:
        """The full name of a column from its name, its group's (``data``) or its last part (``lr``).

        Raises:
            RunError: there is no such column, or several end so.
        """
        if word in FACTS:
            return word
        columns = self.columns
        for name in (word, f"{word}.name"):
            if name in columns:
                return name
        ending = [name for name in columns if name.rpartition(".")[2] == word]
        if len(ending) == 1:
            return ending[0]
        if ending:
            raise RunError(f"{word} may be {' or '.join(ending)}")
        last = {name.rpartition(".")[2]: name for name in reversed(columns)}
        match = last.get(nearest(word, last), "") or nearest(word, columns)
        raise RunError(f"no run has a column {word}{did_you_mean(match)}")

    def where(self, column: str, words: str) -> "Found":
        """Only the runs that have one of ``words``, separated by commas, under ``column``."""
        name, allowed = self.column(column), words.split(",")
        return Found([one for one in self.entries if _is_one_of(one.value(name), allowed)], self.broken)

    def since(self, word: str) -> "Found":
        """Only the runs that started since a date or time in UTC (2026-01-31), or so long ago: ``7d``, ``12h``, ``9m``.

        Raises:
            RunError: ``word`` is neither.
        """
        begin = _moment(word).astimezone(UTC).isoformat()  # as run.json has it, and so comparable as text
        return Found([one for one in self.entries if str(one.facts.get("started") or "") >= begin], self.broken)


def find(folders: Iterable[str | Path]) -> Found:
    """All runs in ``folders``, at any depth.

    Raises:
        RunError: one of them is not a folder.
    """
    runs: dict[str, Entry | Broken] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise RunError(f"{folder} is no folder")
        place = str(folder.resolve())
        for name, row, config in listed(folder):
            path = os.path.normpath(f"{place}/{name}")  # a run in two folders is listed once
            if row.problem:
                runs[path] = Broken(folder / name, row.problem)
            else:
                facts, metrics = json.loads(row.brief)
                runs[path] = Entry(folder / name, facts, metrics, config)
    entries = [one for one in runs.values() if isinstance(one, Entry)]
    broken = [one for one in runs.values() if isinstance(one, Broken)]
    entries.sort(key=lambda one: (str(one.facts.get("started")), one.path.name))
    return Found(entries, sorted(broken, key=lambda one: one.path))


def best(found: Found, metric: str, count: int = 1) -> list[Entry]:
    """The ``count`` best finished runs by a validation metric: the highest, or the lowest where it is a loss.

    A run in which it is not finite is none: it diverged.

    Raises:
        RunError: it is a test metric, which chooses nothing, or no finished run has it.
    """
    metric = found.column(metric)
    if metric.startswith("test/"):
        raise RunError(f"{metric} chooses nothing: test images are for the run that validation has chosen")
    values = {one.path: one.metrics.get(metric) for one in found.entries}
    runs = [one for one in found.entries if _is_finite(values[one.path])]
    if not runs:
        diverged = any(value is not None for value in values.values())
        raise RunError(f"{metric} is finite in no finished run" if diverged else f"no finished run has {metric}")
    sign = 1 if metric.endswith(("loss", "seconds")) else -1
    return sorted(runs, key=lambda one: sign * one.metrics[metric])[:count]


def remove(runs: Iterable[str | Path], *, force: bool = False) -> None:
    """Delete run folders, all or none of them: each first out of every list in one step, then from disk.

    Args:
        runs: the folders.
        force: also those that read as running on another machine.

    Raises:
        RunError: one of them is no run, or still running, and nothing is deleted; or one can't be deleted.
    """
    records = [RunRecord.open(run) for run in runs]
    for record in records:
        if not record.has_ended(force=force):
            facts = record.facts
            away = "" if facts.get("host") == socket.gethostname() else ", or delete it with --force if it is gone"
            where = f"as process {facts.get('pid')} on {facts.get('host')}"
            raise RunError(f"{record.path} is still running, {where}; stop it first{away}; nothing deleted")
    for path in dict.fromkeys(record.path.resolve() for record in records):
        try:
            for leftover in path.parent.glob(".*.removed"):  # of a deletion that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            hidden = path.with_name(f".{path.name}.removed")
            path.rename(hidden)
            with suppress(FileNotFoundError):  # another deletion found it left over
                shutil.rmtree(hidden)
        except OSError as error:
            raise RunError(f"cannot delete {error.filename or path}: {error.strerror}") from None


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _moment(word: str) -> datetime:
    units = {"d": "days", "h": "hours", "m": "minutes"}
    with suppress(ValueError, OverflowError):
        if word[-1:] in units:
            return datetime.now(UTC) - timedelta(**{units[word[-1]]: float(word[:-1])})
        moment = datetime.fromisoformat(word)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    raise RunError(f"{word} is no time: a date such as 2026-01-31, or so long ago: 7d, 12h, 30m")


def _is_one_of(value: Any, words: Sequence[str]) -> bool:
    if isinstance(value, list):
        return any(str(one) in words for one in value)
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null") in words
    if isinstance(value, int | float):
        for word in words:
            with suppress(ValueError):
                if float(word) == value:
                    return True
        return False
    return str(value) in words
