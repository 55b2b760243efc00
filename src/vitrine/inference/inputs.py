"""The pictures that ``input=`` names, listed one at a time. Imports no torch."""

import csv
import glob
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple

from vitrine.data.image_csv import LABEL, other_forms, refuse_repeated, utf8_lines
from vitrine.data.image_folder import SUFFIXES, look_into, pictures_in, refuse_url, unread_hint
from vitrine.errors import DataError, first_line
from vitrine.text import nfc, printable, similar_path_hint


class Listed(NamedTuple):
    """A picture.

    Attributes:
        path: as it is listed.
        label: name of the true class, printable and NFC as training stores it, or "".
        split: the cell of a CSV file's column ``split``, or "".
    """

    path: str
    label: str = ""
    split: str = ""


@dataclass(frozen=True)
class Pictures:
    """Paths of pictures, with the names of their true classes where these are given.

    Iterating lists them anew, in the same order, except for standard input, which is read once. The names of one folder
    at a time are in memory, and all matches of a glob pattern.

    Attributes:
        source: what was given.
        listing: lists them.
        folders: names of the folders directly in ``source``, which may be classes.
        columns: of a CSV file.
        label: the column of the true classes.
        is_stream: whether ``source`` is standard input.
    """

    source: str
    listing: Callable[[], Iterator[Listed]]
    folders: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    label: str = LABEL
    is_stream: bool = False

    @classmethod
    def of(cls, source: str) -> "Pictures":
        """Find out what ``source`` is: ``-``, a folder, a CSV file, another file, or a glob pattern.

        Raises:
            DataError: it is a URL, there is no such file or folder, it cannot be read, it has no pictures, or a CSV
                file is not UTF-8 or has no column ``path``.
        """
        refuse_url(source)
        if source == "-":
            return cls(source, _lines, is_stream=True)
        with _reading(source):
            found, problem = cls._found(source)
            if next(iter(found), None) is None:
                raise DataError(f"{problem}{unread_hint(found.others())}")
        return found

    @classmethod
    def _found(cls, source: str) -> "tuple[Pictures, str]":
        """Return the pictures of a source that is no stream, and what to say where there are none."""
        path = Path(source)
        if path.is_dir():
            found = cls(source, partial(_walk, str(path)), tuple(map(_class, look_into(str(path)).folders)))
            problem = f"{source} has no pictures ({', '.join(sorted(SUFFIXES))})"
        elif path.is_file() and path.suffix.lower() == ".csv":
            found = cls(source, partial(_rows, path, LABEL), columns=_columns(path))
            problem = f"{source} has no rows"
        elif path.is_file():
            found, problem = cls(source, lambda: iter([Listed(source)])), ""
        elif glob.has_magic(source):
            found, problem = cls(source, partial(_matches, source)), f"no file matches {source}"
        else:
            raise DataError(f"there is no picture or folder {source}{similar_path_hint(path)}")
        return found, problem

    def __iter__(self) -> Iterator[Listed]:
        return self.listing()

    @property
    def has_labels(self) -> bool:
        """Whether this is a CSV file with the column :attr:`label`."""
        return self.label in self.columns

    def labelled_by(self, column: str) -> "Pictures":
        """Return the same pictures, of a CSV file with the true classes in ``column``."""
        if not self.columns:
            return self
        return replace(self, listing=partial(_rows, Path(self.source), column), label=column)

    def count(self) -> int | None:
        """Return how many there are; ``None`` for standard input."""
        return None if self.is_stream else sum(1 for _ in self)

    def others(self) -> list[str]:
        """Return the suffixes of the files in a folder that are left out as no pictures, except those of text."""
        found: list[str] = []
        if not self.is_stream and Path(self.source).is_dir():
            for _ in pictures_in(self.source, set(), found):
                pass
        return found


def _walk(folder: str) -> Iterator[Listed]:
    """Yield the pictures in a folder and in those inside it; their class is the uppermost folder."""
    found = look_into(folder)
    yield from (Listed(f"{folder}/{name}") for name in found.pictures)
    for name in found.folders:
        yield from (Listed(path, _class(name)) for path in pictures_in(f"{folder}/{name}", {found.identity}))


def _matches(pattern: str) -> Iterator[Listed]:
    paths = sorted(glob.iglob(pattern, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    return (Listed(path) for path in paths if not os.path.isdir(path))  # noqa: PTH112 - Path's may raise


def _lines() -> Iterator[Listed]:
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # names of files need not be valid text
    paths = (line.removeprefix("\ufeff").rstrip("\r\n") for line in sys.stdin)  # a byte order mark may come first
    path = ""
    for path in filter(str.strip, paths):
        if "\0" in path:
            raise DataError("input=-: standard input holds zero bytes; name one picture a line")
        yield Listed(path)
    if not path:
        raise DataError("input=-: no picture was named")


def _columns(file: Path) -> tuple[str, ...]:
    with _reading(file):
        columns = next(csv.reader(utf8_lines(file)), [])
    if "path" not in columns:
        raise DataError(f"{file} has no column path; its first line is {','.join(columns) or 'empty'}")
    return tuple(columns)


def _rows(file: Path, label: str) -> Iterator[Listed]:
    with _reading(file):
        rows = csv.DictReader(utf8_lines(file))
        refuse_repeated(file, ("path", label, "split"), rows.fieldnames or ())
        for row in rows:
            if path := (row["path"] or "").strip():
                true, split = (_class((row.get(column) or "").strip()) for column in (label, "split"))
                yield Listed(_beside(file, path), true, split)


def _beside(file: Path, path: str) -> str:
    """Return where a picture that a CSV file lists is: relative to it, as in training, or to the current folder."""
    forms = other_forms(path) or [path]
    beside = [os.path.join(*file.parent.parts, form) for form in forms]  # noqa: PTH118 - path stays as it is written
    return next(filter(os.path.exists, [*beside, *forms]), path)


def _class(name: str) -> str:
    return printable(nfc(name))


@contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    """Report what cannot be read as :class:`DataError`."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except csv.Error as error:
        raise DataError(f"cannot read {path}: {first_line(error)}") from None
