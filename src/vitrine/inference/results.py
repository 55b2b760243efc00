"""Results of a prediction: a row per picture, the journal that rows are appended to, and the file made of it.

While a command runs, ``x.csv.partial`` holds a line of JSON that says which runs and settings made it, then one per
picture. Rerunning the command drops a line that was cut short, checks that the others are of the same pictures, and
continues after them. When all pictures are there, the journal becomes ``x.csv``, ``x.json`` or ``x.parquet``.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, SoftFileLock, Timeout

from vitrine.data.image_csv import SEPARATOR, join_labels, split_labels
from vitrine.errors import RunError
from vitrine.files import naming_failed_write, replacing
from vitrine.text import without_formula
from vitrine.untrusted import NUMBER

LONGEST_LINE = 1_000_000  # bytes: a row of results is shorter
ROWS_IN_GROUP = 10_000  # of a Parquet file

Cell = str | float | None


@dataclass(frozen=True)
class Row:
    """What was found for one picture.

    Attributes:
        path: as it was listed.
        classes: names of the likeliest classes, in order; empty for a picture that cannot be read. Where pictures have
            several labels, those that are likely enough.
        probabilities: of these classes, in [0, 1].
        label: name of the true class, or names separated by ``|``; "" if unknown.
        label_probability: probability of the true class; ``None`` if unknown, or if there are several.
        error: why the picture cannot be read; else "".
        split: what a CSV file's column ``split`` has; else "".
        features: (D,) float32, little-endian in base64; "" if none were asked for.
        paged: whether it has further pages or frames, which were not read.
    """

    path: str
    classes: list[str]
    probabilities: list[float]
    label: str = ""
    label_probability: float | None = None
    error: str = ""
    split: str = ""
    features: str = ""
    paged: bool = False

    def check(self) -> None:
        """Raise TypeError where a value has another type, as in a row that was read from a damaged file."""
        texts = [self.path, *self.classes, self.label, self.error, self.split, self.features]
        numbers = [*self.probabilities, self.label_probability or 0.0, self.paged]
        if not all(isinstance(text, str) for text in texts) or not all(isinstance(one, NUMBER) for one in numbers):
            raise TypeError


@dataclass(frozen=True)
class Layout:
    """How rows become cells of a file or table.

    Attributes:
        top_k: number of classes of each picture.
        confidence: least probability of a class that is given.
        multi_label: whether pictures have several labels: ``cat|dog`` and ``0.98|0.7`` are then a cell each.
        labelled: whether the true classes of pictures are known, which come last.
    """

    top_k: int = 1
    confidence: float | None = None
    multi_label: bool = False
    labelled: bool = False

    @property
    def answers(self) -> list[str]:
        """Names of the model's columns: class, probability, class_2, ...; or classes, probabilities."""
        if self.multi_label:
            return ["classes", "probabilities"]
        ranks = ["", *(f"_{rank}" for rank in range(2, self.top_k + 1))]
        return [f"{name}{rank}" for rank in ranks for name in ("class", "probability")]

    @property
    def columns(self) -> list[str]:
        """Names of all columns: path, :attr:`answers`, label."""
        return ["path", *self.answers, *["label"] * self.labelled]

    def cells(self, row: Row) -> list[Cell]:
        """Return the values of :attr:`columns`: ``None`` for classes in doubt, unreadable pictures, unknown labels."""
        cells: list[Cell] = []
        if self.multi_label and not row.error:
            cells = [join_labels(row.classes), SEPARATOR.join(map(str, row.probabilities))]
        elif not self.multi_label:
            names: list[Cell] = [None] * self.top_k if self.is_doubtful(row) else [*row.classes]
            cells = [cell for pair in zip(names, row.probabilities, strict=False) for cell in pair]
        cells += [None] * (len(self.answers) - len(cells))
        return [row.path, *cells, *[row.label or None] * self.labelled]

    def is_doubtful(self, row: Row) -> bool:
        """Whether the likeliest class has a lower probability than :attr:`confidence`."""
        if self.multi_label or self.confidence is None:
            return False
        return bool(row.probabilities) and row.probabilities[0] < self.confidence

    def is_right(self, row: Row) -> bool:
        """Whether a labelled picture is classified correctly, with all of its labels."""
        return set(row.classes) == set(split_labels(row.label)) if self.multi_label else row.classes[0] == row.label


class Journal:
    """Rows on disk, appended as they come.

    Args:
        file: open for reading and writing, after its first line.
        path: its path.
        output: the file that it becomes.
    """

    def __init__(self, file: BinaryIO, path: Path, output: Path) -> None:
        self._file = file
        self.path = path
        self.output = output

    @classmethod
    @contextmanager
    def open(cls, output: Path, made_by: dict[str, Any]) -> Iterator["Journal"]:
        """Open the journal of ``output``, or begin it, and keep other processes from it; remove it if it stays empty.

        Args:
            output: file that it becomes.
            made_by: runs and settings that rows depend on, as plain values.

        Raises:
            RunError: it cannot be written, ``output`` is a folder, another process writes it, or other runs or settings
                made it.
        """
        if output.is_dir():
            raise RunError(f"cannot write {output}: it is a folder")
        path = output.with_name(f"{output.name}.partial")
        with ExitStack() as stack:
            with naming_failed_write(path):
                stack.enter_context(_held(path))
                file = stack.enter_context(path.open("a+b"))
                file.seek(0)
                first, line = file.readline(), _line(made_by)
                if first != line and line.startswith(first):  # empty, or cut short
                    file.truncate(0)
                    file.write(line)
                    file.flush()
                elif first != line:
                    problem = "holds results of other runs or settings; delete it, or choose another output"
                    raise RunError(f"{path} {problem}{_differences(first, made_by)}")
            try:
                yield cls(file, path, output)
            finally:
                with suppress(FileNotFoundError):
                    if path.stat().st_size == len(line):  # without a row, it would only be in the way
                        path.unlink()

    def resumed(self) -> Iterator[Row]:
        """Yield the rows that are there, and drop a last one that was cut short.

        Raises:
            RunError: another one is damaged.
        """
        yield from self.rows()
        with naming_failed_write(self.path):
            self._file.truncate(self._file.tell())

    def append(self, rows: Iterable[Row]) -> None:
        """Write rows.

        Raises:
            DiskFull: rows written before are kept.
            RunError: the file is not writable any more.
        """
        with naming_failed_write(self.path):
            self._file.write(b"".join(_line(asdict(row)) for row in rows))
            self._file.flush()

    def finish(self, layout: Layout) -> None:
        """Turn the journal into the output, atomically.

        Raises:
            RunError: the output cannot be written; the journal is kept.
        """
        rows = map(layout.cells, self.rows())
        with naming_failed_write(self.output), replacing(self.output) as temporary:
            _WRITERS[self.output.suffix.lower()](temporary, layout.columns, rows)
        self.path.unlink()

    def rows(self) -> Iterator[Row]:
        """Yield the rows from the first on; leave the position after the last whole one."""
        self._file.seek(0)
        end = len(self._file.readline())
        while (line := self._file.readline()).endswith(b"\n"):
            end += len(line)
            try:
                row = Row(**json.loads(line))
                row.check()
            except (ValueError, TypeError, RecursionError):
                raise RunError(f"{self.path} is damaged; delete it, and rerun the same command") from None
            yield row
        self._file.seek(end)


def may_replace(path: Path) -> bool:
    """Return whether ``path`` may become results: there is no such file, it is empty, or has the columns of results.

    Raises:
        RunError: it cannot be read.
    """
    if not path.is_file():
        return True
    with naming_failed_write(path):
        return path.stat().st_size == 0 or _columns_of(path)[:3] in RESULTS


def _columns_of(path: Path) -> list[str]:
    """Return the names of the columns in a CSV, JSON or Parquet file; empty if it is none."""
    with path.open("rb") as file:
        if path.suffix.lower() == ".parquet":
            from pyarrow import ArrowInvalid
            from pyarrow.parquet import read_schema

            try:
                return list(read_schema(file).names)
            except (ArrowInvalid, OSError):
                return []
        lines = [file.readline(LONGEST_LINE).decode("utf-8", "replace") for _ in range(2)]
    try:
        if path.suffix.lower() == ".csv":
            return next(csv.reader(lines[:1]), [])
        return list(json.loads(lines[1].rstrip(",\n")))
    except (csv.Error, ValueError, TypeError, RecursionError):
        return ["path", *Layout().answers] if lines[0] == "[]\n" else []


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def _differences(first: bytes, made_by: dict[str, Any]) -> str:
    """Return what differs, as `` (top_k was 1, is 3)``; "" where the line cannot be read."""
    try:
        before = dict(json.loads(first))
    except (ValueError, TypeError, RecursionError):
        return ""
    keys = [key for key in {**made_by, **before} if made_by.get(key) != before.get(key)]
    changed = [f"{key} was {before.get(key)}, is {made_by.get(key)}" for key in keys]
    return f" ({'; '.join(changed)})"


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Keep other processes from ``path``."""
    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        # Where the file system has no locks, a killed process leaves the file.
        hint = f"; if none is running, delete {lock.lock_file}" if isinstance(lock, SoftFileLock) else ""
        raise RunError(f"{path} is being written by another process{hint}") from None
    try:
        yield
    finally:
        with suppress(OSError):
            Path(lock.lock_file).unlink()
        lock.release()


def _write_csv(path: Path, names: list[str], rows: Iterator[list[Cell]]) -> None:
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)  # whatever separates cells there
        writer.writerow(names)
        writer.writerows([without_formula(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)


def _write_json(path: Path, names: list[str], rows: Iterator[list[Cell]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        separator = "["
        for row in rows:
            file.write(f"{separator}\n{json.dumps(dict(zip(names, row, strict=True)))}")
            separator = ","
        file.write("\n]\n" if separator == "," else "[]\n")


def _write_parquet(path: Path, names: list[str], rows: Iterator[list[Cell]]) -> None:
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    schema = pyarrow.schema([(name, "float64" if name.startswith("probability") else "string") for name in names])
    with ParquetWriter(path, schema) as writer:
        while group := list(islice(rows, ROWS_IN_GROUP)):
            values = zip(*([_text(row[0]), *row[1:]] for row in group), strict=True)
            writer.write_table(pyarrow.table(list(map(pyarrow.array, values, schema.types)), schema=schema))


def _text(path: Cell) -> str:
    """A path as valid Unicode: bytes of a file name that are not UTF-8 are replaced."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


RESULTS = (["path", *Layout().answers], ["path", *Layout(multi_label=True).answers])  # how columns begin
_WRITERS = {".csv": _write_csv, ".json": _write_json, ".parquet": _write_parquet}
