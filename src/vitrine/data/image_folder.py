"""Scan of an image folder, ``ROOT/{train,val,test}/<class>/*``. Reads file names only; imports no torch.

``val`` may be called ``valid`` or ``validation``. Links to files and folders are followed. Class names are in Unicode's
form NFC, in which classes and files are sorted, so that a copy from another file system is read alike.
"""

import errno
import os
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from vitrine.data.labelled_files import LabelledFiles
from vitrine.errors import DataError
from vitrine.text import did_you_mean, listed, nearest, nfc, plural, similar_path_hint

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
NO_PICTURES = {".csv", ".db", ".html", ".ini", ".json", ".log", ".md", ".tsv", ".txt", ".xml", ".yaml", ".yml"}
SPLIT_FOLDERS = {"train": ["train"], "val": ["val", "valid", "validation"], "test": ["test"]}
MAX_LISTED = 5

Identity = tuple[int, int]  # of a folder: device and inode


class Content(NamedTuple):
    """What is directly in a folder, except hidden files and folders: previews of file managers, copies of notebooks.

    Attributes:
        identity: the same by whichever link the folder was reached.
        pictures: names of files with an image's suffix, sorted.
        folders: names of folders, sorted.
        others: suffixes of the other files, except those of text.
    """

    identity: Identity
    pictures: list[str]
    folders: list[str]
    others: list[str]


def scan_folder(root: str | Path) -> LabelledFiles:
    """List the images under ``root``.

    Raises:
        DataError: ``root`` or ``root/train`` is missing, there are fewer than two classes, a class has no training
            image, there are two validation splits, two splits are one folder, a split's name has capital letters, two
            folders of a split have one name in two Unicode forms, or ``val`` or ``test`` has no image or a class that
            ``train`` lacks.
    """
    root = Path(root)
    if not root.is_dir():
        is_table = root.suffix.lower() == ".csv" and root.is_file()
        hint = did_you_mean("data=csv") if is_table else similar_path_hint(root, Path.is_dir)
        raise DataError(f"{root} is not a folder{hint}")
    known = {name for names in SPLIT_FOLDERS.values() for name in names}
    if capital := [name for name in look_into(str(root)).folders if name not in known and name.lower() in known]:
        raise DataError(f"{root}/{capital[0]} is not read; rename it to {capital[0].lower()}, or to something else")
    if not (root / "train").is_dir():
        hint = did_you_mean((root.parent / "train").is_dir() and root.parent)
        raise DataError(f"{root} has no train folder; expected {root}/train/<class>/*.png (or other image types){hint}")
    classes = sorted(_class_folders(root / "train", look_into(str(root / "train"))))
    if len(classes) < 2:
        only = f"only {classes[0]}" if classes else "none"
        raise DataError(f"{root}/train needs a folder for each of at least two classes; found {only}")
    splits, seen, loose, others = {}, dict[Identity, Path](), 0, dict[str, list[str]]()
    for split, names in SPLIT_FOLDERS.items():
        if not (folders := [name for name in names if (root / name).is_dir()]):
            continue
        if len(folders) > 1:
            raise DataError(f"{root} has {listed(folders)}, of which one at most can be the validation split")
        split_folder = root / folders[0]
        found = look_into(str(split_folder))
        if (other := seen.setdefault(found.identity, split_folder)) != split_folder:
            raise DataError(f"{split_folder} and {other} are one folder: leakage, as both splits have its images")
        class_folders = _class_folders(split_folder, found)
        if unknown := sorted(class_folders.keys() - set(classes)):
            hint = did_you_mean(nearest(unknown[0], classes))
            raise DataError(f"{split_folder} has classes that train lacks: {listed(unknown, MAX_LISTED)}{hint}")
        loose += len(found.pictures)
        others[split] = []
        images = [
            (path, label)
            for label, name in enumerate(classes)
            if name in class_folders
            for path in _images(split_folder / class_folders[name], found.identity, others[split])
        ]
        if not images:
            raise DataError(f"{split_folder} has no images ({', '.join(sorted(SUFFIXES))}){unread_hint(others[split])}")
        splits[split] = images
    labels = {label for _, label in splits["train"]}
    if empty := [name for label, name in enumerate(classes) if label not in labels]:
        raise DataError(f"{root}/train has no images of {listed(empty, MAX_LISTED)}{unread_hint(others['train'])}")
    return LabelledFiles(root, classes, splits, left_out=_left_out(loose, [*chain(*others.values())]))


def refuse_url(name: str) -> None:
    """Raise DataError if the name of a picture is a URL."""
    if re.match(r"\w+://", name):
        raise DataError(f"{name} is a URL; pictures are read from files only")


def cifar10_folder(root: str | Path) -> Path | None:
    """Return the image folder of CIFAR-10 under ``root``; ``None`` if there is none, or torchvision's batches are."""
    folder = Path(root) / "cifar10"
    return folder if folder.is_dir() and not (Path(root) / "cifar-10-batches-py").is_dir() else None


def _class_folders(split_folder: Path, found: Content) -> dict[str, str]:
    """Return the names of a split's folders as they are on disk, by the class."""
    folders: dict[str, str] = {}
    for folder in found.folders:
        if folders.setdefault(nfc(folder), folder) != folder:
            problem = f"has two folders called {nfc(folder)}, which Unicode spells in two ways"
            raise DataError(f"{split_folder} {problem}; move their pictures into one")
    return folders


def _images(folder: Path, split: Identity, others: list[str]) -> list[Path]:
    """List the files of a class. Links to its split's folder are not followed, which would find all classes' images."""
    found = [path for path in map(Path, pictures_in(str(folder), {split}, others)) if path.is_file()]
    return sorted(found, key=lambda path: nfc(str(path)).split("/"))


def _left_out(loose: int, others: Sequence[str]) -> str:
    """Describe what may be pictures that are not read: so many in no class, and files of so many suffixes."""
    parts = [f"{plural(loose, 'picture')} in no class folder"] if loose else []
    return listed([*parts, *([unread_files(others)] if others else [])])


def unread_files(others: Sequence[str]) -> str:
    """Describe files of other types than pictures by their suffixes: ``2 files of another type (.heic)``."""
    suffixes = listed(sorted({suffix or "no suffix" for suffix in others}), MAX_LISTED)
    return f"{plural(len(others), 'file')} of another type ({suffixes})"


def unread_hint(others: Sequence[str]) -> str:
    """The end of a message that pictures are missing, where files of other types may be the pictures."""
    return f"; left out: {unread_files(others)}: save them as .jpg or .png" if others else ""


def pictures_in(folder: str, read: set[Identity], others: list[str] | None = None) -> Iterator[str]:
    """Yield the paths of the pictures in a folder and in those inside it.

    Args:
        folder: its path.
        read: folders that were read already; links to these end here. Those that are read join it.
        others: receives the suffixes of the other files, except those of text.

    Raises:
        DataError: a folder cannot be read.
    """
    found = look_into(folder)
    if found.identity in read:
        return
    read.add(found.identity)
    if others is not None:
        others += found.others
    yield from (f"{folder}/{name}" for name in found.pictures)
    for name in found.folders:
        yield from pictures_in(f"{folder}/{name}", read, others)


def look_into(folder: str) -> Content:
    """List what is directly in a folder.

    Raises:
        DataError: it cannot be read.
    """
    pictures, folders, others = [], [], []
    try:
        status = Path(folder).stat()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if _is_folder(entry):
                    folders.append(entry.name)
                elif (suffix := Path(entry.name).suffix.lower()) in SUFFIXES:
                    pictures.append(entry.name)
                elif suffix not in NO_PICTURES:
                    others.append(suffix)
    except OSError as error:
        raise DataError(f"cannot read {folder}: {error.strerror or error}") from None
    return Content((status.st_dev, status.st_ino), sorted(pictures), sorted(folders), others)


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:  # links that lead to each other lead nowhere
            return False
        raise
