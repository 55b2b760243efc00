"""Lists of runs in folders: filter them by any column, select the best, delete them. Does not import torch."""

import json
import math
import operator
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from vitrine.durations import duration_seconds
from vitrine.errors import RunError
from vitrine.runs.facts import SHAPES
from vitrine.runs.index import INDEX, STORED, index_runs
from vitrine.runs.lock import RunLocked
from vitrine.runs.record import RunRecord
from vitrine.runs.status import STATUSES, status_of
from vitrine.text import as_override, did_you_mean, listed, nearest, plural
from vitrine.untrusted import ANY, NUMBER, misshapen

COMPARISONS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
FACTS = ("path", "run", "status", *STORED, "commit")  # columns that run.json gives


@dataclass(frozen=True)
class RunEntry:
    """A run in a list.

    Attributes:
        path: the run folder.
        facts: the content of run.json, without its large values.
        metrics: final metrics; empty for a run that is not finished.
        read_config: returns the flat configuration as JSON; called only where a list needs it.
    """

    path: Path
    facts: Mapping[str, Any]
    metrics: Mapping[str, float]
    read_config: Callable[[], str]

    @cached_property
    def config(self) -> dict[str, Any]:
        """The flat configuration: ``{"model.depth": 6, ...}``.

        Raises:
            RunError: the index holds something else.
        """
        with suppress(ValueError, TypeError, RecursionError):
            if isinstance(values := json.loads(self.read_config()), dict):
                return values
        raise RunError(f"{self.path}: {INDEX} has no configuration that can be read; delete it; it will be rebuilt")

    @cached_property
    def status(self) -> str:
        """The status, see :attr:`RunRecord.status`."""
        return status_of(self.facts, self.path)

    def value(self, column: str) -> Any:
        """Return the value of a column, given by its full name; ``None`` if the run has none."""
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
class UnreadableRun:
    """A run folder that cannot be read, and why."""

    path: Path
    problem: str


@dataclass(frozen=True)
class RunList:
    """Runs in the order they were started, and the run folders that cannot be read."""

    entries: list[RunEntry]
    unreadable: list[UnreadableRun]

    @cached_property
    def columns(self) -> list[str]:
        """Full names of all columns: facts, final metrics, configuration keys."""
        metrics = (name for entry in self.entries for name in entry.metrics)
        config = (key for entry in self.entries for key in entry.config)
        return list(dict.fromkeys([*FACTS, *metrics, *config]))  # like and tags are facts and keys

    def column(self, name: str) -> str:
        """Return the full name of a column from its full name, its config group (``data``) or its last part (``lr``).

        Raises:
            RunError: there is no such column, or several match.
        """
        if name in FACTS:
            return name
        columns = self.columns
        for full_name in (name, f"{name}.name"):
            if full_name in columns:
                return full_name
        matches = [column for column in columns if column.rpartition(".")[2] == name]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise RunError(f"{name} is ambiguous: {' or '.join(matches)}")
        if inside := [column for column in columns if column.startswith(f"{name}.")]:
            raise RunError(f"no run has a column {name}: give a key in it, such as {inside[0]}")
        by_last_part = {column.rpartition(".")[2]: column for column in reversed(columns)}
        match = by_last_part.get(nearest(name, by_last_part), "") or nearest(name, columns)
        raise RunError(f"no run has a column {name}{did_you_mean(match)}")

    def where(self, column: str, values: str) -> "RunList":
        """Return the runs whose value in ``column``, or an item of it, is among the comma-separated ``values``.

        Raises:
            RunError: there is no such column, or no such status.
        """
        name, allowed = self.column(column), _split(values)
        known = {*STATUSES, *(str(run.value(name)) for run in self.entries)}  # other versions may have others
        for value in allowed if name == "status" else ():
            if value not in known:
                raise RunError(
                    f"status={value} is not one of {listed(STATUSES)}{did_you_mean(nearest(value, STATUSES))}"
                )
        found = [run for run in self.entries if any(_matches(run.value(name), text) for text in allowed)]
        return RunList(found, self.unreadable)

    def compared(self, column: str, sign: str, number: str) -> "RunList":
        """Return the runs whose value in ``column`` is a number and ``sign`` (>, >=, <, <=) ``number``.

        Raises:
            RunError: there is no such column, or ``number`` is none, or beyond 1 for a metric in [0, 1].
        """
        name, bound = self.column(column), math.nan
        with suppress(ValueError):
            bound = float(number)
        if math.isnan(bound):
            raise RunError(f"{column}{sign}{number} needs a number after {sign}")
        if bound > 1 and "/" in name:
            from vitrine.config.metrics import is_share  # imports OmegaConf, which other lists do not need

            if is_share(name):
                hint = did_you_mean(f"{column}{sign}{bound / 100:g}" if bound <= 100 else "")
                raise RunError(f"{column}{sign}{number}: {name} is in [0, 1]{hint}")
        compare = COMPARISONS[sign]
        found = [run for run in self.entries if _is_finite(value := run.value(name)) and compare(value, bound)]
        return RunList(found, self.unreadable)

    def by(self, column: str, *, descending: bool = False) -> "RunList":
        """Return the runs sorted by a column: those without a value first, then numbers, then texts.

        Raises:
            RunError: there is no such column.
        """
        name = self.column(column)
        values = {run.path: run.value(name) for run in self.entries}
        known = [run for run in self.entries if values[run.path] is not None]
        unknown = [run for run in self.entries if values[run.path] is None]
        known.sort(key=lambda run: _rank(values[run.path]), reverse=descending)
        return RunList([*unknown, *known], self.unreadable)

    def since(self, text: str) -> "RunList":
        """Return the runs started since a local time (``2026-01-31``), or within an age (``7d``, ``12h``, ``9m``).

        Raises:
            RunError: ``text`` is neither.
        """
        begin = _parse_time(text).isoformat()  # the format of run.json, so comparable as text
        return RunList([run for run in self.entries if str(run.facts.get("started") or "") >= begin], self.unreadable)


def find_runs(folders: Iterable[str | Path]) -> RunList:
    """Find all runs in ``folders``, at any depth.

    Raises:
        RunError: a path is not a folder.
    """
    runs: dict[str, RunEntry | UnreadableRun] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise RunError(f"{folder} is not a folder")
        place = str(folder.resolve())
        for name, indexed, read_config in index_runs(folder):
            path = os.path.normpath(f"{place}/{name}")  # a run found through two folders is listed once
            if indexed.problem:
                runs[path] = UnreadableRun(folder / name, indexed.problem)
            else:
                try:
                    facts, metrics = json.loads(indexed.brief)
                    problem = misshapen(facts, SHAPES) or misshapen(metrics, {ANY: NUMBER})
                except (ValueError, TypeError, AttributeError, RecursionError):
                    problem = "it has a row that cannot be read"
                if problem:
                    problem = f"{folder / INDEX}: {problem}; delete it; it will be rebuilt"
                    runs[path] = UnreadableRun(folder / name, problem)
                    continue
                runs[path] = RunEntry(folder / name, facts, metrics, read_config)
    entries = [run for run in runs.values() if isinstance(run, RunEntry)]
    unreadable = [run for run in runs.values() if isinstance(run, UnreadableRun)]
    entries.sort(key=lambda run: (str(run.facts.get("started")), run.path.name))
    return RunList(entries, sorted(unreadable, key=lambda run: run.path))


def best_runs(runs: RunList, metric: str, count: int = 1) -> list[RunEntry]:
    """Return the ``count`` best finished runs by a validation metric: the highest values, or the lowest losses.

    A run whose metric is not finite is left out.

    Raises:
        RunError: there is no run; it is a test metric; or no finished run has a finite value.
    """
    if not runs.entries:
        raise RunError("no runs found")
    metric = runs.column(metric)
    if metric.startswith("test/"):
        raise RunError(f"cannot select by {metric}: select by a validation metric, such as val/acc")
    values = {run.path: run.metrics.get(metric) for run in runs.entries}
    finite = [run for run in runs.entries if _is_finite(values[run.path])]
    if not finite:
        diverged = any(value is not None for value in values.values())
        raise RunError(f"{metric} is not finite in any finished run" if diverged else f"no finished run has {metric}")
    from vitrine.config.metrics import lower_is_better  # imports OmegaConf, which a list of runs does not need

    sign = 1 if lower_is_better(metric) else -1
    return sorted(finite, key=lambda run: sign * run.metrics[metric])[:count]


def remove_runs(runs: Iterable[str | Path], *, force: bool = False) -> None:
    """Delete run folders; none where a process writes to one of them.

    Each is renamed first, so that no list shows a half-deleted run. Of a link to a run folder, only the link is
    removed.

    Args:
        runs: the folders.
        force: also delete runs that a process on another machine may write to.

    Raises:
        RunError: a path is not a run, or a process writes to the run, and nothing is deleted; or some could not be
            deleted, while the others are.
    """
    records = {record.path.parent.resolve() / record.path.name: record for record in map(RunRecord.open, runs)}
    for path, record in records.items():  # one lock at a time: each takes an open file and a thread
        try:
            if not path.is_symlink():  # the run that it points to stays
                with record.owned(force=force):
                    pass
        except RunLocked as error:
            gone = ", or give --force if that machine is gone" if error.elsewhere else ""
            raise RunError(f"{error}: stop it first{gone}; nothing was deleted") from None
    for leftover in (found for parent in {path.parent for path in records} for found in parent.glob(".*.removed")):
        shutil.rmtree(leftover, ignore_errors=True)  # from a deletion that was killed
    problems = []
    for path, record in records.items():
        try:
            _remove(path, record, force=force)
        except RunError as error:  # the run was resumed just now
            problems.append(str(error))
        except OSError as error:
            problems.append(f"cannot delete {error.filename or path}: {error.strerror}")
    if problems:
        others = len(records) - len(problems)
        raise RunError("; ".join([*problems, f"{plural(others, 'other run')} deleted"] if others else problems))


def _remove(path: Path, record: RunRecord, *, force: bool) -> None:
    if path.is_symlink():
        path.unlink()
        return
    hidden = path.with_name(f".{path.name}.removed")
    with record.owned(force=force):
        path.rename(hidden)
    # The lock's file is closed: a file that is open would stay in the folder under another name on NFS.
    with suppress(FileNotFoundError):  # another process deletes leftovers, too
        shutil.rmtree(hidden)


def _rank(value: Any) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return (0, -math.inf, "") if math.isnan(value) else (1, value, "")
    return 2, 0.0, str(value)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _parse_time(text: str) -> datetime:
    """Return a time in UTC."""
    with suppress(ValueError, OverflowError):
        return datetime.now(UTC) - timedelta(seconds=duration_seconds(text))
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(text).astimezone(UTC)
    raise RunError(
        f"{text or 'an empty text'} is not a time: give a date such as 2026-01-31, or an age such as 7d, 12h or 1h30m"
    )


def _split(values: str) -> list[str]:
    """Return the texts between the commas of ``values``, but for those in brackets or quotes; without outer quotes."""
    parts, depth, quote = [""], 0, ""
    for character in values:
        if quote:
            quote = quote.replace(character, "")
            parts[-1] += character
            continue
        quote = character if character in "'\"" and parts[-1].rstrip()[-1:] in ("", "[", ",") else ""
        depth += (character in "[{") - (character in "]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part[1:-1] if part[:1] in "'\"" and part[:1] == part[-1:] and len(part) > 1 else part for part in parts]


def _matches(value: Any, text: str) -> bool:
    """Whether ``value`` is what ``text`` says, or a list that has it."""
    if isinstance(value, list):
        inner = text[1:-1] if text[:1] + text[-1:] == "[]" else None
        items = [item.strip(" '\"") for item in _split(inner)] if inner else []
        is_whole = inner is not None and len(items) == len(value) and all(map(_matches, value, items))
        return is_whole or any(_matches(item, text) for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(ValueError):
            return float(text) == value
        return False
    return as_override(value) == text
