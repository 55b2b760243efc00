"""Find run folders below a folder and read them, cached in ``.runs.sqlite`` for speed. Does not import torch.

The index is a cache: it can be deleted at any time. Each listing checks every folder, and reads those again whose files
changed their time or size. Without permission to write the index, listing works, more slowly. Paths in it are relative,
so that a folder of runs can be moved.

The folder can come from anywhere. SQLite would roll back a journal that lies beside an index, and delete files that the
journal names. So an index is read as a file that never changes, which has no journal, and is replaced as a whole.
"""

import json
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from vitrine.errors import DiskFull, RunError, first_line
from vitrine.files import replacing
from vitrine.runs.flatten import flatten
from vitrine.runs.record import RunRecord

INDEX = ".runs.sqlite"
VERSION = 5
TABLE = "CREATE TABLE runs (name TEXT PRIMARY KEY, signature TEXT, brief TEXT, config TEXT)"
FEW = 0.001  # share of changed runs: reading so many again takes a tenth of the time of replacing a large index
SOURCES = ("run.json", "config.yaml", "metrics.json")  # files that the index is built from
RUN_FILES = ("checkpoints", "config.yaml", "metrics.csv")  # mark a run folder that lost its run.json
STORED = (
    *("started", "ended", "user", "group", "varies", "like", "tags", "error", "host", "device", "processes"),
    *("precision", "parameters", "flops_per_image", "epochs", "validation"),
)
KEPT = (*STORED, "code", "parts", "pid", "process", "wandb_id")  # facts in the index, in addition to the status

Signature = tuple[int, ...]


def index_runs(root: Path) -> Iterator[tuple[str, "IndexedRun", Callable[[], str]]]:
    """Iterate over the runs under a folder, from its index where that is up to date.

    Yields:
        The run's path relative to ``root``, its entry, and a function that returns its configuration as JSON.
    """
    seen = dict(_run_folders(str(root)))
    index = _Index(root)
    known = index.runs
    fresh: dict[str, IndexedRun] = {}
    for name, signature in seen.items():
        if name in known and known[name].signature == signature:
            continue
        if (row := _read(root / name, signature)) is not None:
            fresh[name] = row
    deleted = [name for name in known if name not in seen]
    readable = {name: row for name, row in fresh.items() if not row.problem}  # another user may read the others
    if len(readable) + len(deleted) > FEW * len(known) and "." not in seen:  # a run folder gets no index
        index.update(readable, deleted)
    for name in seen:
        row = fresh.get(name) or known.get(name)
        if row is not None:  # otherwise deleted while it was read
            yield name, row, partial(_configuration, root, index, fresh, name)


def _configuration(root: Path, index: "_Index", fresh: Mapping[str, "IndexedRun"], name: str) -> str:
    if name not in fresh and name in index.configs:
        return index.configs[name]
    row = fresh.get(name) or _read(root / name, ())  # another process has replaced the index since
    return "{}" if row is None else row.config


class IndexedRun(NamedTuple):
    """A run in the index.

    Attributes:
        signature: times and sizes of its files.
        brief: facts and final metrics, as JSON.
        config: the flat configuration, as JSON.
        problem: why it cannot be read; empty if it can. The index has no runs with a problem.
    """

    signature: Signature
    brief: str
    config: str = ""
    problem: str = ""


def _read(path: Path, signature: Signature) -> IndexedRun | None:
    record = RunRecord(path)
    try:
        facts = record.facts
        if "status" not in facts:
            raise RunError(f"{path / 'run.json'} has no status")
        kept = {name: facts[name] for name in ("status", *KEPT) if facts.get(name) is not None}
        started = (path / "config.yaml").exists() or facts["status"] == "finished"
        config = flatten(record.config) if started else {}  # it may have failed before writing it
        brief = json.dumps([kept, record.metrics], default=str)
        return IndexedRun(signature, brief, json.dumps(config, default=str))
    except (RunError, TypeError, ValueError, ArithmeticError) as error:  # values that JSON has not
        problem = str(error) if isinstance(error, RunError) else f"{path} holds an unusable value: {first_line(error)}"
        return IndexedRun(signature, "", problem=problem) if path.is_dir() else None


def _run_folders(root: str) -> Iterator[tuple[str, Signature]]:
    """Run folders under ``root`` by their relative path, each with the times and sizes of its files."""
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        signature = _signature(folder)
        if not signature[0]:
            with suppress(OSError), os.scandir(folder) as inside:
                children = list(inside)
                if not any(child.name in RUN_FILES for child in children):
                    folders = (child for child in children if child.is_dir(follow_symlinks=False))
                    waiting += [child.path for child in folders if child.name[0] != "."]
                    continue
        yield os.path.relpath(folder, root), signature


def _signature(folder: str) -> Signature:
    found: list[int] = []
    for name in SOURCES:
        try:
            file = os.stat(f"{folder}/{name}")  # noqa: PTH116 - pathlib is too slow for 10,000 runs
            found += [file.st_mtime_ns, file.st_size]
        except OSError:
            found += [0, 0]
    return tuple(found)


class _Index:
    """The index file. If it is damaged, it is rebuilt; if it cannot be written, or is a link, it is ignored.

    Of two processes that replace it at the same time, the rows of one are lost, which the next listing reads again.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / INDEX
        self._unchanging = f"{_uri(self._path)}?immutable=1"

    @cached_property
    def runs(self) -> dict[str, IndexedRun]:
        """The runs by their path relative to the root, without their configurations; none if it cannot be read."""
        found = {}
        for name, signature, brief in self._query("SELECT name, signature, brief FROM runs"):
            with suppress(ValueError, AttributeError):  # a row that someone else wrote: the run is read again
                found[name] = IndexedRun(tuple(map(int, signature.split())), brief)
        return found

    @cached_property
    def configs(self) -> dict[str, str]:
        """Configurations as JSON, by the runs' paths."""
        return dict(self._query("SELECT name, config FROM runs"))

    def _query(self, query: str) -> list[Any]:
        if not self._is_file:
            return []
        try:
            with closing(sqlite3.connect(self._unchanging, uri=True)) as index:
                return index.execute(query).fetchall() if _is_current(index) else []
        except sqlite3.Error:
            return []

    @property
    def _is_file(self) -> bool:
        """Whether it is there, and no link, which could lead to another program's database."""
        try:
            return stat.S_ISREG(self._path.lstat().st_mode)
        except OSError:
            return False

    def update(self, runs: Mapping[str, IndexedRun], deleted: Iterable[str]) -> None:
        """Store ``runs``, and remove those that were ``deleted``."""
        if self._path.is_symlink():
            return
        with suppress(OSError, DiskFull, sqlite3.Error, UnicodeEncodeError):  # or a path that is not valid Unicode
            try:
                self._write(runs, deleted, keep=bool(self.runs))
            except sqlite3.DatabaseError:  # what is kept is damaged
                self._write(runs, deleted, keep=False)

    def _write(self, runs: Mapping[str, IndexedRun], deleted: Iterable[str], *, keep: bool) -> None:
        """Replace the index by one of ``runs`` and, with ``keep``, of its other rows that were not ``deleted``."""
        with replacing(self._path) as new, closing(sqlite3.connect(_uri(new), uri=True)) as index, index:
            index.execute("PRAGMA journal_mode = OFF")  # a new file of this process, deleted after an error
            index.execute("PRAGMA synchronous = OFF")
            index.execute(f"PRAGMA user_version = {VERSION}")
            index.execute(TABLE)
            if keep and self._is_file:
                index.execute("ATTACH ? AS old", (self._unchanging,))
                if _is_current(index, "old"):
                    index.execute("INSERT INTO runs SELECT * FROM old.runs")  # whole pages, without a WHERE
            written = [(name, " ".join(map(str, run.signature)), run.brief, run.config) for name, run in runs.items()]
            index.executemany("DELETE FROM runs WHERE name = ?", [(name,) for name in deleted])
            index.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", written)


def _is_current(index: sqlite3.Connection, database: str = "main") -> bool:
    """Whether it has this version's table alone: views, triggers and computed columns could work without end."""
    schema = index.execute(f"SELECT name, sql FROM {database}.sqlite_master").fetchall()
    if schema != [("runs", TABLE), ("sqlite_autoindex_runs_1", None)]:
        return False
    return bool(index.execute(f"PRAGMA {database}.user_version").fetchone() == (VERSION,))


def _uri(path: Path) -> str:
    return "file:" + str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
