"""What run folders say, kept beside them in ``.runs.sqlite``, so that thousands are listed quickly. Imports no torch.

The folders are the truth. The file can be deleted at any time: each listing looks at every folder again and reads those
anew whose files have another time or size. Without a place to write it, listing works all the same, more slowly. Paths
in it are relative, so that a folder of runs can be moved as a whole.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from vitrine.errors import RunError
from vitrine.runs.flatten import flat
from vitrine.runs.record import RunRecord

INDEX = ".runs.sqlite"
VERSION = 1
SOURCES = ("run.json", "config.yaml", "metrics.json")  # what the index is made of
LEFT_BEHIND = ("checkpoints", "config.yaml", "metrics.csv")  # by these a run folder without its run.json is known
STORED = (
    *("started", "ended", "group", "varies", "like", "tags", "error", "host", "device", "processes", "precision"),
    *("parameters", "flops_per_image", "epochs", "validation"),
)
KEPT = (*STORED, "code", "pid", "process", "wandb_id")  # facts that the index has; status apart

Signature = tuple[int, ...]


def listed(root: Path) -> Iterator[tuple[str, "Row", Callable[[], str]]]:
    """The runs under one folder, from its index as far as that is still true.

    Yields:
        Its path in the folder, what is known of it, and what gives its configuration as JSON: most lists need none.
    """
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
        if row is not None:  # else deleted while it was read
            yield name, row, partial(_configuration, index, fresh, name)


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
