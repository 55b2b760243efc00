"""Image files listed in a CSV file, with columns ``path``, ``label`` and optionally ``split``. Imports no torch.

::

    path,label,split
    images/1.jpg,cat,train
    images/2.jpg,dog,test

Relative paths start at the folder of the CSV file; those with other letters than ASCII are looked for in each form of
Unicode that file systems use. Labels are in the form NFC. Without the column ``split``, all images are for training.
With ``data.multi_label``, ``cat|dog`` is an image with two labels, ``|`` one with none. ``data.targets=[animal,place]``
reads these columns in place of ``label``.
"""

import csv
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from vitrine.data.labelled_files import Label, LabelledFiles
from vitrine.errors import DataError, first_line
from vitrine.runs.data_changes import SPLITS
from vitrine.text import did_you_mean, listed, nearest, nfc, plural, similar_path_hint

LABEL = "label"  # the column of the classes, unless others are named
SEPARATOR = "|"  # of the labels of an image
MAX_LISTED = 3
_NOT_UTF8 = re.compile(r"[\0\udc80-\udcff]")  # Python's stand-ins for other bytes; zeros are of UTF-16

Value = TypeVar("Value")


class ImageRow(NamedTuple):
    """A row: the number of its line, the path, the cells of the columns that are read, and the split."""

    line: int
    path: str
    cells: list[str]
    split: str


def read_csv(
    root: str | Path, *, multi_label: bool = False, targets: Sequence[str] = (), group: str | None = None
) -> LabelledFiles:
    """Read the CSV file ``root``.

    Args:
        root: the file.
        multi_label: whether images have several labels, or none; of a single target.
        targets: names of the columns with classes; by default, ``label``.
        group: name of the column with groups of images, if there is one.

    Raises:
        DataError: it is no CSV file with these columns, or not UTF-8; a row lacks a value or names an unknown split;
            fewer than two classes of a target have training images, or another split has a class that ``train`` lacks;
            images are missing; or an image is listed twice, which between two splits would be leakage.
    """
    root, columns = Path(root), tuple(targets) or (LABEL,)
    if not root.is_file():
        if root.is_dir():
            raise DataError(f"{root} is a folder{did_you_mean('data=imagefolder')}")
        hint = similar_path_hint(root, lambda entry: entry.suffix.lower() == ".csv")
        raise DataError(f"there is no file {root}{hint}")
    rows, unread = _rows(root, columns if group is None else (*columns, group), multi_label)
    files = [_located(root.parent, row.path) for row in rows]
    _refuse_repeated_files(root, rows, files)
    labels = [[split_labels(cell) if multi_label else [cell] for cell in row.cells[: len(columns)]] for row in rows]
    classes = {
        column: _classes(root, column, _by_split(rows, [own[number] for own in labels]))
        for number, column in enumerate(columns)
    }
    _check_files(root, rows, files)
    indices = [{name: index for index, name in enumerate(names)} for names in classes.values()]
    labelled = [(file, _label(own, indices, multi_label)) for file, own in zip(files, labels, strict=True)]
    images = _by_split(rows, labelled)
    splits = {split: images[split] for split in SPLITS if split in images}
    groups = {} if group is None else _by_split(rows, [row.cells[-1] for row in rows])
    return LabelledFiles(root, classes[columns[0]], splits, classes, groups, unread)


def _by_split(rows: Sequence[ImageRow], values: Sequence[Value]) -> dict[str, list[Value]]:
    """Return the values, one of each row, by the split of their rows."""
    found: dict[str, list[Value]] = {}
    for row, value in zip(rows, values, strict=True):
        found.setdefault(row.split, []).append(value)
    return found


def _located(folder: Path, path: str) -> Path:
    """Return the file at ``path``, in the form of Unicode in which it exists; if in none, as it is written."""
    forms = (folder / form for form in other_forms(path))
    return next(filter(os.path.isfile, forms), folder / path)  # Path's may raise


def _refuse_repeated_files(table: Path, rows: Sequence[ImageRow], files: Sequence[Path]) -> None:
    behind_links = cache(os.path.realpath)
    listed_by: dict[str, ImageRow] = {}  # by absolute path
    for row, file in zip(rows, files, strict=True):
        same = os.path.abspath(file)  # noqa: PTH100 - pathlib is slow
        if ".." in file.parts:  # behind a link, it is not the folder before it
            same = f"{behind_links(file.parent)}/{file.name}"
        first = listed_by.setdefault(same, row)
        if first is row:
            continue
        if first.split == row.split:
            lines = f"lines {first.line} and {row.line}"
            raise DataError(f"{table} lists {row.path} twice, in {lines}; keep one of them")
        raise DataError(
            f"{table} lists {row.path} in {first.split} (line {first.line}) and in {row.split} (line {row.line}): "
            "leakage, as the model would be measured on an image that another split knows; keep one of them"
        )


def _label(labels: Sequence[Sequence[str]], indices: Sequence[Mapping[str, int]], multi_label: bool) -> Label:
    """Return what an image's labels for each target are as indices of classes."""
    if multi_label:
        return tuple(sorted({indices[0][name] for name in labels[0]}))
    found = tuple(index[name] for (name,), index in zip(labels, indices, strict=True))
    return found if len(found) > 1 else found[0]


def split_labels(cell: str) -> list[str]:
    """Return the labels in a cell of an image with several: ``cat|dog``; ``|`` has none."""
    return [name for part in cell.split(SEPARATOR) if (name := part.strip())]


def join_labels(names: Iterable[str]) -> str:
    """Return the cell with these labels; see :func:`split_labels`."""
    return SEPARATOR.join(names) or SEPARATOR


def other_forms(path: str) -> list[str]:
    """Return a path in the forms of Unicode that file systems use, where it is not ASCII; first as it is written."""
    return [] if path.isascii() else [path, nfc(path), unicodedata.normalize("NFD", path)]


def utf8_lines(file: Path) -> Iterator[str]:
    """Yield the lines of a CSV file, with their ends, without a byte order mark.

    Raises:
        DataError: a line is not UTF-8.
        OSError: the file cannot be read.
    """
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        for number, line in enumerate(lines, start=1):
            if _NOT_UTF8.search(line):
                raise DataError(f"{file}, line {number}, is not UTF-8; save the file as UTF-8")
            yield line


def refuse_repeated(file: Path, read: Iterable[str], columns: Sequence[str]) -> None:
    """Raise DataError where a column that is read occurs twice in a CSV file: which one is meant is unknown."""
    if repeated := [column for column in read if columns.count(column) > 1]:
        raise DataError(f"{file} has more than one column {repeated[0]}; rename or remove the others")


def _rows(file: Path, columns: Sequence[str], multi_label: bool) -> tuple[list[ImageRow], list[str]]:
    """Return the rows, with their content of ``columns``, and the names of the columns that are not read."""
    found = []
    try:
        rows = csv.DictReader(utf8_lines(file))
        _check_columns(file, ("path", *columns), rows.fieldnames or [])
        refuse_repeated(file, ("path", *columns, "split"), rows.fieldnames or [])
        unread = [name for name in rows.fieldnames or [] if name not in ("path", *columns, "split")]
        for row in rows:
            if any(row.get(None) or ()):
                problem = "there are more cells than columns; quote cells that hold commas"
                raise DataError(f"{file}, line {rows.line_num}: {problem}")
            for column in ("path", *columns):
                if not (row[column] or "").strip():
                    hint = f"; for an image with none, {SEPARATOR}" if multi_label and column == columns[0] else ""
                    raise DataError(f"{file}, line {rows.line_num}: there is no {column}{hint}")
                if "\n" in row[column]:
                    problem = f"{column} continues past the line's end; is a quote missing?"
                    raise DataError(f"{file}, line {rows.line_num}: {problem}")
            split = (row["split"] or "").strip() if "split" in row else "train"
            if split not in SPLITS:
                problem = f"split '{split}' is not one of {', '.join(SPLITS)}{did_you_mean(nearest(split, SPLITS))}"
                raise DataError(f"{file}, line {rows.line_num}: {problem}")
            cells = [nfc(row[column].strip()) for column in columns]
            found.append(ImageRow(rows.line_num, row["path"].strip(), cells, split))
        return found, unread
    except csv.Error as error:
        raise DataError(f"cannot read {file}: {first_line(error)}") from None
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from None


def _check_columns(file: Path, needed: Sequence[str], columns: Sequence[str]) -> None:
    lacking = [column for column in needed if column not in columns]
    if not lacking:
        misspelt = [column for column in columns if column not in needed and column.strip().lower() == "split"]
        if "split" not in columns and misspelt:  # all rows would be trained on
            raise DataError(f"{file} has a column {misspelt[0]!r}; rename it to 'split', or to something else")
        return
    given = ",".join(columns) or "empty"
    separator = next((letter for letter in ";\t|" if letter in given and len(columns) == 1), "")
    hint = f"; separate columns by a comma, not by {separator!r}" if separator else ""
    for column in lacking:
        if not hint and (near := nearest(column, columns)):
            hint = f"; rename {near} to {column}?"
    raise DataError(f"{file} has no column {' or '.join(lacking)}; its first line is {given}{hint}")


def _classes(file: Path, column: str, found: Mapping[str, Sequence[Sequence[str]]]) -> list[str]:
    """Return the labels of the training images in a column, sorted."""
    labels = {label for own in found.get("train", []) for label in own}
    where = "" if column == LABEL else f" in column {column}"
    if len(labels) < 2:
        only = f"only {labels.pop()}" if labels else "none"
        raise DataError(f"{file} needs training images of at least two classes{where}; found {only}")
    numbers = all(label.isdecimal() for label in labels)
    classes = sorted(labels, key=lambda label: (int(label), label) if numbers else (0, label))
    for split in ("val", "test"):
        if unknown := sorted({label for own in found.get(split, []) for label in own} - labels):
            hint = did_you_mean(nearest(unknown[0], classes))
            raise DataError(f"{file}: {split} has labels{where} that train lacks: {listed(unknown, MAX_LISTED)}{hint}")
    return classes


def _check_files(table: Path, rows: Sequence[ImageRow], files: Sequence[Path]) -> None:
    missing = [(file, row.line) for file, row in zip(files, rows, strict=True) if not os.path.isfile(file)]  # noqa: PTH113
    if not missing:
        return
    file, line = missing[0]
    more = f" and {plural(len(missing) - 1, 'more file')}" if len(missing) > 1 else ""
    start = "relative paths start at the folder of the CSV file"
    if "\\" in file.name:  # written on Windows
        start += "; write / between folders"
    raise DataError(f"{table}, line {line}: there is no file {file}{more}; {start}{similar_path_hint(file)}")
