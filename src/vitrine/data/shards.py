"""A data set as a few .npz files of limited size with checksums: write it, and read it back into memory.

::

    ROOT/cifar10-packed/
        index.json       classes, and the shards of each split in order, each with its SHA-256 checksum
        train-00.npz     images (N, C, H, W) uint8 and labels (N,) int64, uncompressed
        train-01.npz
        test-00.npz

The index is written last: a folder without one is incomplete.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.errors import DataError, first_line
from vitrine.files import replacing, write_text
from vitrine.runs.provenance import program
from vitrine.text import plural, shape_and_dtype
from vitrine.untrusted import is_file_name, read_json, refuse_inflating

OVERHEAD = 1024  # upper bound, in bytes, of what the format adds to a shard's images and labels

Arrays = tuple[np.ndarray, np.ndarray]


def shards_folder(root: str | Path, name: str) -> Path:
    """Return the folder of the shards of data set ``name`` under ``root``."""
    return Path(root) / f"{name}-packed"


def write_shards(
    folder: Path, name: str, classes: Sequence[str], splits: Mapping[str, Arrays], shard_size: int
) -> list[Path]:
    """Write each split as shards of at most ``shard_size`` bytes and return the paths of all files.

    Args:
        folder: target folder; created if missing.
        name: name of the data set, as in ``data=NAME``.
        classes: class names, indexed by the labels.
        splits: images (N, C, H, W) uint8 and labels (N,) int64 of each split.
        shard_size: maximum size of a file in bytes.

    Raises:
        DataError: ``folder`` holds shards already or is not writable, or ``shard_size`` is too small for one image.
    """
    index = folder / "index.json"
    if index.exists():
        raise DataError(f"{folder} already holds a sharded data set; delete the folder to write it again")
    shards: dict[str, list[dict[str, Any]]] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for split, (images, labels) in splits.items():
            each = images[0].nbytes + labels[0].nbytes
            count = (shard_size - OVERHEAD) // each
            if count < 1:
                raise DataError(f"shards of {shard_size:,} bytes are too small: one image takes {each + OVERHEAD:,}")
            shards[split] = []
            for start in range(0, len(images), count):
                file = f"{split}-{len(shards[split]):02}.npz"
                stop = start + count
                sha256 = _write(folder / file, images[start:stop], labels[start:stop])
                shards[split].append({"file": file, "sha256": sha256})
        write_text(index, json.dumps({"data": name, "classes": list(classes), "splits": shards}, indent=1) + "\n")
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error.strerror}") from None
    return [*(folder / shard["file"] for split in shards.values() for shard in split), index]


def read_shards(folder: Path, name: str) -> tuple[list[str], dict[str, Arrays]]:
    """Return the classes and each split's images and labels, as passed to :func:`write_shards`.

    Raises:
        DataError: files are missing, damaged or from different writes; the message names all of them.
    """
    classes, shards = _read_index(folder, name)
    problems: list[str] = []
    splits = {}
    for split, files in shards.items():
        arrays: list[Arrays] = []
        for file, checksum in files:
            try:
                arrays.append(_read(folder / file, checksum, len(classes)))
            except DataError as error:
                problems.append(str(error))
        if len({images.shape[1:] for images, _ in arrays}) > 1:
            problems.append(f"the shards of {split} have images of several shapes")
        if not problems:
            images, labels = (np.concatenate(parts) for parts in zip(*arrays, strict=True))
            splits[split] = images, labels
    if problems:
        raise DataError(f"{folder} is damaged: {'; '.join(problems)}. Copy it again, or run {program('pack')} again")
    return classes, splits


def _write(path: Path, images: np.ndarray, labels: np.ndarray) -> str:
    """Write a shard and return its SHA-256 checksum."""
    with replacing(path) as temporary:
        with temporary.open("wb") as file:
            np.savez(file, images=images, labels=labels)
        return hashlib.sha256(temporary.read_bytes()).hexdigest()


def _read(path: Path, checksum: str, classes: int) -> Arrays:
    """Read the images and labels of a shard, of which each must name one of the ``classes``."""
    if path.exists() and not path.is_file():  # reading a device may never end
        raise DataError(f"{path.name} is not a file")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path.name} is missing") from None
    except OSError as error:
        raise DataError(f"{path.name} cannot be read ({error.strerror})") from None
    if hashlib.sha256(content).hexdigest() != checksum:
        raise DataError(f"{path.name} does not match its SHA-256 checksum in index.json")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            refuse_inflating(archive)
        with np.load(io.BytesIO(content), allow_pickle=False) as shard:
            images, labels = shard["images"], shard["labels"]
    except Exception as error:  # reading an arbitrary file can fail in any way
        raise DataError(f"{path.name} cannot be read ({first_line(error)})") from None
    if images.dtype != np.uint8 or images.ndim != 4 or not images.size:
        raise DataError(f"{path.name} has images {shape_and_dtype(images)}; they must be (N, C, H, W) uint8")
    if labels.dtype != np.int64 or labels.shape != images.shape[:1]:
        raise DataError(f"{path.name} has labels {shape_and_dtype(labels)}; they must be ({len(images)},) int64")
    if labels.min() < 0 or labels.max() >= classes:
        found = f"labels from {labels.min()} to {labels.max()}"
        raise DataError(f"{path.name} has {found}; they must be >= 0 and < {classes}, the number of classes")
    return images, labels


def _read_index(folder: Path, name: str) -> tuple[list[str], dict[str, list[tuple[str, str]]]]:
    """Return the classes, and the file name and checksum of each shard by split."""
    path = folder / "index.json"
    try:
        index = read_json(path)
        shards = {
            split: [(str(entry["file"]), entry["sha256"]) for entry in entries]
            for split, entries in index["splits"].items()
        }
        stored, classes = index["data"], [str(label) for label in index["classes"]]
    except FileNotFoundError:
        raise DataError(f"{folder} has no index.json: writing or copying it was not finished") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise DataError(f"{path} is damaged; copy it again, or run {program('pack')} again") from None
    if stored != name:
        raise DataError(f"{path} belongs to data={stored}, not to data={name}")
    names = [file for files in shards.values() for file, _ in files]
    if outside := [file for file in names if not is_file_name(file)]:
        raise DataError(f"{path} names the shard {outside[0]!r}; a shard must be in the folder itself, as train-00.npz")
    if len(set(names)) < len(names):
        raise DataError(f"{path} names {plural(len(names), 'shard')}, of which {len(set(names))} differ; all must")
    if empty := [split for split in ("train", *shards) if not shards.get(split)]:
        raise DataError(f"{path} has no shards of {empty[0]}")
    return classes, shards
