"""A data set of the Hugging Face ``datasets`` library on disk, as its ``save_to_disk`` writes it.

::

    ROOT/dataset_dict.json             names of the splits; a single split has none
    ROOT/train/dataset_info.json       columns and class names
    ROOT/train/state.json              names of the files, in order
    ROOT/train/data-00000-of-00001.arrow

Scanning it reads the JSON files only. Images stay in the Arrow files, which pyarrow maps into memory, until they are
decoded. Scanning imports no torch.
"""

import io
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from vitrine.data.image_folder import SPLIT_FOLDERS
from vitrine.errors import DataError, first_line
from vitrine.text import did_you_mean, listed, nearest, nfc, plural
from vitrine.untrusted import is_file_name, misshapen, read_json, refuse_pipe

if TYPE_CHECKING:
    from torch import Tensor

SPLITS = {name: split for split, names in SPLIT_FOLDERS.items() for name in names}
INSTALL = "reading Arrow files takes pyarrow: pip install -e '.[parquet]'"
SAVE = "datasets.load_dataset(...).save_to_disk(FOLDER) writes one"

Version = tuple[int, int, int]  # of a file: inode, size in bytes, modification time in nanoseconds


@dataclass(frozen=True)
class ArrowImage:
    """An image file in a row of an Arrow file.

    Attributes:
        container: the Arrow file.
        column: name of the column of images.
        row: number of the row, from 0.
        version: of the Arrow file that the row was listed in.
    """

    container: Path
    column: str
    row: int
    version: Version

    def __str__(self) -> str:
        return f"row {self.row} of {self.container}"

    def size(self) -> int:
        """Return the size of the image file in bytes."""
        return int(self._content().size)

    def open(self) -> BinaryIO:
        """Return the image file's content."""
        return io.BytesIO(self._content())

    def tail(self, count: int) -> bytes:
        """Return the image file's last ``count`` bytes."""
        content = self._content()
        return bytes(content.slice(max(0, content.size - count)).to_pybytes())

    def _content(self) -> Any:
        content = _table(self.container, self.version)[self.column][self.row]["bytes"].as_buffer()
        if content is None:
            raise DataError(f"{self} has the path of an image, not the image; save_to_disk stores images")
        return content


@dataclass(frozen=True)
class HubSplit:
    """A split: its Arrow files, the columns that hold images and labels, and those that could tell groups of images."""

    files: list[Path]
    image: str
    label: str
    others: list[str]

    def read(self, classes: int, where: str) -> "tuple[list[ArrowImage], Tensor]":
        """List the images, and read their labels (N,) int64, of which each must name one of the ``classes``.

        Args:
            classes: their number.
            where: the split, for messages.

        Raises:
            DataError: pyarrow is not installed, a file is missing or damaged, there are no images, or an image has no
                label, for which the hub writes -1.
        """
        import torch

        images: list[ArrowImage] = []
        parts = []
        for file in self.files:
            version = _version(file)
            table = _table(file, version)
            _check_column(table, self.image, "struct", file)
            _check_column(table, self.label, "int", file)
            images += [ArrowImage(file, self.image, row, version) for row in range(len(table))]
            parts.append(torch.from_numpy(table[self.label].fill_null(-1).to_numpy().astype("int64")))
        if not images:
            raise DataError(f"{where} has no images")
        labels = torch.cat(parts)
        if unlabelled := int((labels < 0).sum()):
            raise DataError(f"{where} has {plural(unlabelled, 'image')} without a label; save the data set without it")
        if (highest := int(labels.max())) >= classes:
            raise DataError(f"{where} has labels up to {highest}, but {plural(classes, 'class', 'classes')}")
        return images, labels

    def groups(self, column: str, where: str) -> list[str]:
        """Return the group of each image, in Unicode's form NFC: the content of a column of texts or whole numbers.

        Raises:
            DataError: there is no such column, a row of it is empty, or as :meth:`read`.
        """
        if column not in self.others:
            hint = did_you_mean(nearest(column, self.others))
            found = f"those it has are {listed(self.others)}" if self.others else "it has none"
            raise DataError(f"{where} has no column {column} of texts or whole numbers; {found}{hint}")
        groups: list[str] = []
        for file in self.files:
            table = _table(file, _version(file))
            _check_column(table, column, ("int", "string"), file)
            for row, value in enumerate(table[column].to_pylist()):
                if not (name := "" if value is None else nfc(str(value).strip())):
                    raise DataError(f"row {row} of {file}: there is no {column}")
                groups.append(name)
        return groups


@dataclass(frozen=True)
class HubDataset:
    """Classes and splits of a data set in a folder.

    Attributes:
        root: path of the folder.
        classes: names of the classes; labels index this list.
        splits: ``train`` and, if there are any, ``val`` (``validation`` on the hub) and ``test``.
    """

    root: Path
    classes: list[str]
    splits: dict[str, HubSplit]

    @classmethod
    def scan(cls, root: str | Path) -> "HubDataset":
        """Read the description of the data set under ``root``.

        Raises:
            DataError: ``root`` has none, or it lacks training images, class names, or a column of images.
        """
        root = Path(root)
        if not root.is_dir():
            raise DataError(f"{root} is not a folder")
        if (root / "dataset_dict.json").is_file():
            names = _read(root / "dataset_dict.json", "splits", [str])
        elif (root / "dataset_info.json").is_file():
            names = [""]
        else:
            raise DataError(f"{root} has no dataset_dict.json: it is not a saved Hugging Face data set; {SAVE}")
        splits, classes = {}, {}
        for name in names:
            if name and name not in SPLITS:
                hint = did_you_mean(nearest(name, SPLITS))
                raise DataError(f"{root} has a split {name}, which is not one of train, validation, test{hint}")
            split = SPLITS.get(name, "train")
            if split in splits:
                both = listed([name for name in names if SPLITS.get(name) == split])
                raise DataError(f"{root} has {both}, of which one at most can be the {split} split")
            splits[split], classes[split] = _split(root / name)
        if "train" not in splits:
            raise DataError(f"{root} has no split train; found {listed(names)}")
        if other := [split for split in classes if classes[split] != classes["train"]]:
            raise DataError(f"{root}: {other[0]} has other class names than train")
        return cls(root, classes["train"], splits)


def _split(folder: Path) -> tuple[HubSplit, list[str]]:
    path = folder / "dataset_info.json"
    features = _read(path, "features", {})
    kinds = {name: feature.get("_type") for name, feature in features.items() if isinstance(feature, dict)}
    described = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
    found = {}
    for kind, what, advice in (
        ("Image", "images", "cast_column(NAME, datasets.Image())"),
        ("ClassLabel", "class labels", "class_encode_column(NAME)"),
    ):
        columns = [name for name, given in kinds.items() if given == kind]
        if len(columns) != 1:
            raise DataError(
                f"{folder} needs one column of {what}, type {kind}, and has {len(columns)}; its columns are {described}"
                + (f"; {advice} makes one" if not columns else "; remove_columns([NAME]) leaves one out")
            )
        found[kind] = columns[0]
    files = [entry.get("filename") for entry in _read(folder / "state.json", "_data_files", [{"filename": str}])]
    if outside := [name for name in files if not name or not is_file_name(name)]:
        problem = f"names the file {outside[0]!r}; a file must be in the folder itself, as data-00000-of-00001.arrow"
        raise DataError(f"{folder / 'state.json'} {problem}")
    names = features[found["ClassLabel"]].get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path} is damaged: names of classes must be a list of texts; copy the data set again")
    others = [name for name, kind in kinds.items() if kind == "Value" and _tells_groups(features[name].get("dtype"))]
    return HubSplit([folder / name for name in files], found["Image"], found["ClassLabel"], others), names


def _tells_groups(dtype: object) -> bool:
    return isinstance(dtype, str) and _is_of(dtype, ("int", "string"))


def _is_of(dtype: str, kinds: str | tuple[str, ...]) -> bool:
    """Whether Arrow's name of a type is of these kinds: ``uint8`` of ``int``, ``large_string`` of ``string``."""
    return dtype.lstrip("u").removeprefix("large_").startswith(kinds)


def _check_column(table: Any, column: str, kinds: str | tuple[str, ...], file: Path) -> None:
    """Raise DataError unless an Arrow file has the column that its description names, of one of these kinds."""
    found = str(table.schema.field(column).type) if table.column_names.count(column) == 1 else "missing"
    if not _is_of(found, kinds):
        problem = f"its column {column} is {found}, unlike in dataset_info.json"
        raise DataError(f"{file} is damaged: {problem}; copy the data set again")


def _read(path: Path, key: str, shape: Any) -> Any:
    """Return an entry of a JSON file, which must have a shape (:func:`vitrine.untrusted.misshapen`)."""
    try:
        entry = read_json(path)[key]
        if problem := "it is null" if entry is None else misshapen({key: entry}, {key: shape}):
            raise ValueError(problem)
        return entry
    except FileNotFoundError:
        raise DataError(f"{path} is missing; copy the data set again, or save it again") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(f"{path} is damaged: {first_line(error)}; copy the data set again") from None


def _version(file: Path) -> Version:
    try:
        status = file.stat()
    except FileNotFoundError:
        raise DataError(f"{file} is missing; copy the data set again") from None
    return status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=256)
def _table(file: Path, version: Version) -> Any:
    """Map an Arrow file into memory; each process does so once for each version of the file."""
    try:
        import pyarrow as pa
    except ImportError:
        raise DataError(INSTALL) from None
    try:
        refuse_pipe(file)
        with pa.memory_map(str(file)) as source:
            table = pa.ipc.open_stream(source).read_all()
            table.validate(full=True)  # offsets in the file are read as places in memory
            if len(table) > version[1]:  # columns of nothing can be of any length
                raise OSError(f"it claims to have {len(table):,} rows, more than it has bytes")
            if _version(file) != version:
                raise DataError(f"{file} has changed since its rows were listed; start again")
            return table
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{file} is damaged: {first_line(error)}; copy the data set again") from None
