"""Thousands of run folders, listed quickly. Imports no torch.

The folders are the truth. What they say is kept beside them in ``.runs.sqlite``, which can be deleted at any time: each
listing looks at every folder again and reads those anew whose files have another time or size. Without a place to write
it, listing works all the same, more slowly. Paths in it are relative, so that a folder of runs can be moved as a whole.
"""

import json
import math
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from vitrine.errors import RunError, nearest
from vitrine.runs.record import RunRecord, status_of

INDEX = ".runs.sqlite"
VERSION = 1
SOURCES = ("run.json", "config.yaml", "metrics.json")  # what the index is made of
LEFT_BEHIND = ("checkpoints", "config.yaml", "metrics.csv")  # by these a run folder without its run.json is known
STORED = (
    *("started", "ended", "group", "varies", "like", "tags", "error", "host", "device", "processes", "precision"),
    *("parameters", "flops_per_image", "epochs", "validation"),
)
FACTS = ("path", "run", "status", *STORED, "commit")  # columns that run.json gives
KEPT = (*STORED, "code", "pid", "process", "wandb_id")  # facts that the index has; status apart

Signature = tuple[int, ...]


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
        raise RunError(f"no run has a column {word}{f'; did you mean {match}?' if match else ''}")

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
        runs |= {os.path.normpath(f"{place}/{name}"): one for name, one in _listed(folder)}  # a run in two folders once
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


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values under dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


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


def _listed(root: Path) -> Iterator[tuple[str, Entry | Broken]]:
    """The runs under one folder, from its index as far as that is still true, by their paths in it."""
    seen = dict(_folders(str(root)))
    index = _Index(root)
    known = index.rows()
    fresh: dict[str, Row] = {}
    for name, signature in seen.items():
        if name in known and known[name].signature == signature:
            continue
        if (row := _read(root / name, signature)) is not None:
            fresh[name] = row
    gone = [name for name in known if name not in seen]
    if (fresh or gone) and "." not in seen:  # a run folder needs no index inside it
        index.replace(fresh, gone)
    for name in seen:
        row = fresh.get(name) or known.get(name)
        if row is None:  # deleted while it was read
            continue
        if row.problem:
            yield name, Broken(root / name, row.problem)
        else:
            facts, metrics = json.loads(row.brief)
            yield name, Entry(root / name, facts, metrics, partial(_configuration, index, fresh, name))


def _configuration(index: "_Index", fresh: Mapping[str, "Row"], name: str) -> str:
    return fresh[name].config if name in fresh else index.configs.get(name, "{}")


class Row(NamedTuple):
    """What the index has of a run: facts and metrics, the flat configuration, and why it can't be read, if it can't."""

    signature: Signature
    brief: str
    problem: str
    config: str = ""


def _read(path: Path, signature: Signature) -> Row | None:
    record = RunRecord(path)
    try:
        facts = record.facts
        if "status" not in facts:
            raise RunError(f"{path / 'run.json'} does not say what became of the run")
        kept = {name: facts[name] for name in ("status", *KEPT) if facts.get(name) is not None}
        started = (path / "config.yaml").exists() or facts["status"] == "finished"
        config = flat(record.config) if started else {}  # it may have failed before it wrote one
        brief = json.dumps([kept, record.metrics], default=str)
        return Row(signature, brief, "", json.dumps(config, default=str))
    except RunError as error:
        return Row(signature, "", str(error)) if path.is_dir() else None


def _folders(root: str) -> Iterator[tuple[str, Signature]]:
    """Run folders under ``root``, by their path in it, each with the times and sizes of its files."""
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        signature = _signature(folder)
        if not signature[0]:
            with suppress(OSError), os.scandir(folder) as inside:
                children = list(inside)
                if not any(one.name in LEFT_BEHIND for one in children):
                    waiting += [
                        one.path for one in children if one.is_dir(follow_symlinks=False) and one.name[0] != "."
                    ]
                    continue
        yield os.path.relpath(folder, root), signature


def _signature(folder: str) -> Signature:
    found: list[int] = []
    for name in SOURCES:
        try:
            stat = os.stat(f"{folder}/{name}")  # noqa: PTH116 - three for each of ten thousand runs
            found += [stat.st_mtime_ns, stat.st_size]
        except OSError:
            found += [0, 0]
    return tuple(found)


class _Index:
    """The file that remembers. Whatever is wrong with it, it is made anew or done without."""

    def __init__(self, root: Path) -> None:
        self._path = root / INDEX

    def rows(self) -> dict[str, Row]:
        """What is remembered but for the configurations, by each run's path in the root."""
        found = self._ask("SELECT name, signature, brief, problem FROM runs")
        return {name: Row(tuple(map(int, signature.split())), *row) for name, signature, *row in found}

    @cached_property
    def configs(self) -> dict[str, str]:
        """The remembered configurations."""
        return dict(self._ask("SELECT name, config FROM runs"))

    def _ask(self, question: str) -> list[Any]:
        try:
            with closing(sqlite3.connect(f"file:{_quoted(self._path)}?mode=ro", uri=True)) as index:
                (version,) = index.execute("PRAGMA user_version").fetchone()
                return index.execute(question).fetchall() if version == VERSION else []
        except sqlite3.Error:
            return []

    def replace(self, rows: Mapping[str, Row], gone: Iterable[str]) -> None:
        """Remember ``rows``, and forget those that are ``gone``."""
        try:
            self._write(rows, gone)
        except (sqlite3.OperationalError, UnicodeEncodeError):
            return  # a folder that is not ours to write to, another listing that writes now, a name that is no text
        except sqlite3.DatabaseError:
            with suppress(OSError, sqlite3.Error):
                self._path.unlink()
                self._write(rows, gone)

    def _write(self, rows: Mapping[str, Row], gone: Iterable[str]) -> None:
        with closing(sqlite3.connect(self._path)) as index, index:
            if index.execute("PRAGMA user_version").fetchone() != (VERSION,):
                index.execute("DROP TABLE IF EXISTS runs")
                columns = "name TEXT PRIMARY KEY, signature TEXT, brief TEXT, problem TEXT, config TEXT"
                index.execute(f"CREATE TABLE runs ({columns})")
                index.execute(f"PRAGMA user_version = {VERSION}")
            written = [(name, " ".join(map(str, row.signature)), *row[1:]) for name, row in rows.items()]
            index.executemany("DELETE FROM runs WHERE name = ?", [(name,) for name in gone])
            index.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", written)


def _quoted(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
