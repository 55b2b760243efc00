"""Image files listed in a CSV file, with columns ``path``, ``label`` and optionally ``split``. Imports no torch.

::

    path,label,split
    images/1.jpg,cat,train
    images/2.jpg,dog,test

Relative paths start at the folder of the CSV file. Without the column ``split``, all images are for training.
With ``data.multi_label``, ``cat|dog`` is an image with two labels, ``|`` one with none.
"""

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from vitrine.data.labelled_files import Label, LabelledFiles
from vitrine.errors import DataError, first_line
from vitrine.text import did_you_mean, listed, nearest, plural

COLUMNS = ("path", "label")
SPLITS = ("train", "val", "test")
SEPARATOR = "|"  # of the labels of an image
MAX_LISTED = 3


def read_csv(root: str | Path, *, multi_label: bool = False) -> LabelledFiles:
    """Read the CSV file ``root``.

    Args:
        root: the file.
        multi_label: whether images have several labels, or none.

    Raises:
        DataError: it is no CSV file with these columns; a row lacks a value or names an unknown split; fewer than
            two classes have training images, or another split has a class that ``train`` lacks; images are
            missing; or an image is listed twice, which between two splits would be leakage.
    """
    root = Path(root)
    if not root.is_file():
        raise DataError(f"{root} is not a CSV file{_hint(root)}")
    found: dict[str, list[tuple[Path, list[str]]]] = {}
    rows: dict[str, tuple[str, int]] = {}  # split and line of each path
    for line, path, label, split in _rows(root, multi_label):
        location = os.path.normpath(root.parent / path)
        if location in rows:
            raise DataError(_listed_twice(root, path, rows[location], (split, line)))
        rows[location] = split, line
        found.setdefault(split, []).append((Path(location), split_labels(label) if multi_label else [label]))
    classes = _classes(root, found)
    _check_files(root, rows)
    index = {name: label for label, name in enumerate(classes)}
    splits: dict[str, list[tuple[Path, Label]]] = {split: [] for split in SPLITS if split in found}
    for split, images in splits.items():
        for file, names in found[split]:
            labels = tuple(sorted({index[name] for name in names}))
            images.append((file, labels if multi_label else labels[0]))
    return LabelledFiles(root, classes, splits)


def split_labels(cell: str) -> list[str]:
    """Return the labels in a cell of an image with several: ``cat|dog``; ``|`` has none."""
    return [name for part in cell.split(SEPARATOR) if (name := part.strip())]


def join_labels(names: Iterable[str]) -> str:
    """Return the cell with these labels; see :func:`split_labels`."""
    return SEPARATOR.join(names) or SEPARATOR


def _rows(file: Path, multi_label: bool) -> Iterator[tuple[int, str, str, str]]:
    """Yield line number, path, label and split of each row."""
    try:
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
            rows = csv.DictReader(lines)
            _check_columns(file, rows.fieldnames or [])
            for row in rows:
                for column in COLUMNS:
                    if not (row[column] or "").strip():
                        hint = f"; for an image with none, {SEPARATOR}" if multi_label and column == "label" else ""
                        raise DataError(f"{file}, line {rows.line_num}: there is no {column}{hint}")
                split = (row["split"] or "").strip() if "split" in row else "train"
                if split not in SPLITS:
                    problem = f"split '{split}' is not one of {', '.join(SPLITS)}{did_you_mean(nearest(split, SPLITS))}"
                    raise DataError(f"{file}, line {rows.line_num}: {problem}")
                yield rows.line_num, row["path"].strip(), row["label"].strip(), split
    except csv.Error as error:
        raise DataError(f"cannot read {file}: {first_line(error)}") from None
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from None


def _check_columns(file: Path, columns: Sequence[str]) -> None:
    lacking = [column for column in COLUMNS if column not in columns]
    if not lacking:
        return
    given = ",".join(columns) or "empty"
    separator = next((letter for letter in ";\t|" if letter in given and len(columns) == 1), "")
    hint = f"; separate columns by a comma, not by {separator!r}" if separator else ""
    for column in lacking:
        if not hint and (near := nearest(column, columns)):
            hint = f"; rename {near} to {column}?"
    raise DataError(f"{file} has no column {' or '.join(lacking)}; its first line is {given}{hint}")


def _classes(file: Path, found: "dict[str, list[tuple[Path, list[str]]]]") -> list[str]:
    """Return the labels of the training images, sorted."""
    labels = {label for _, own in found.get("train", []) for label in own}
    if len(labels) < 2:
        only = f"only {labels.pop()}" if labels else "none"
        raise DataError(f"{file} needs training images of at least two classes; found {only}")
    numbers = all(label.isdecimal() for label in labels)
    classes = sorted(labels, key=lambda label: (int(label), label) if numbers else (0, label))
    for split in ("val", "test"):
        if unknown := sorted({label for _, own in found.get(split, []) for label in own} - labels):
            hint = did_you_mean(nearest(unknown[0], classes))
            raise DataError(f"{file}: {split} has labels that train lacks: {listed(unknown, MAX_LISTED)}{hint}")
    return classes


def _check_files(file: Path, rows: "dict[str, tuple[str, int]]") -> None:
    missing = [(location, line) for location, (_, line) in rows.items() if not os.path.isfile(location)]  # noqa: PTH113
    if not missing:
        return
    location, line = missing[0]
    try:
        names = os.listdir(Path(location).parent)  # noqa: PTH208 - a folder may hold very many
    except OSError:
        names = []
    near = nearest(Path(location).name, names)
    hint = did_you_mean(Path(location).with_name(near) if near else "")
    more = f" and {plural(len(missing) - 1, 'more file')}" if len(missing) > 1 else ""
    start = "relative paths start at the folder of the CSV file"
    raise DataError(f"{file}, line {line}: there is no file {location}{more}; {start}{hint}")


def _listed_twice(file: Path, path: str, first: tuple[str, int], second: tuple[str, int]) -> str:
    (split, line), (other, again) = first, second
    if split == other:
        return f"{file} lists {path} twice, in lines {line} and {again}; keep one of them"
    return (
        f"{file} lists {path} in {split} (line {line}) and in {other} (line {again}): leakage, as the model would be "
        f"measured on an image that another split knows; keep one of them"
    )


def _hint(path: Path) -> str:
    """Suggest a file beside it with a similar name."""
    try:
        names = [entry.name for entry in path.absolute().parent.iterdir() if entry.suffix.lower() == ".csv"]
    except OSError:
        return ""
    match = nearest(path.name, names)
    return did_you_mean(path.parent / match if match else "")
