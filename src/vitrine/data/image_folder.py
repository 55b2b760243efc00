"""Scan of an image folder, ``ROOT/{train,val,test}/<class>/*``. Reads file names only; imports no torch.

``val`` may be called ``valid`` or ``validation``. Links to files and folders are followed. Class names are in Unicode's
form NFC, in which classes and files are sorted, so that a copy from another file system is read alike.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
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
        broken: names of the pictures that are no files, such as links that lead nowhere.
    """

    identity: Identity
    pictures: list[str]
    folders: list[str]
    others: list[str]
    broken: set[str]


class SplitFolder(NamedTuple):
    """The folder of a split.

    Attributes:
        path: where it is.
        found: what is directly in it.
        classes: names of its folders as they are on disk, by the class.
    """

    path: Path
    found: Content
    classes: dict[str, str]


def scan_folder(root: str | Path) -> LabelledFiles:
    """List the images under ``root``.

    Raises:
        DataError: as :func:`class_folders`; or a class has no training image, or ``val`` or ``test`` has no image.
    """
    root = Path(root)
    classes, folders = class_folders(root)
    splits, loose, others = {}, 0, dict[str, list[str]]()
    for split, folder in folders.items():
        loose += len(folder.found.pictures)
        others[split] = []
        images = [
            (path, label)
            for label, name in enumerate(classes)
            if name in folder.classes
            for path in _images(folder.path / folder.classes[name], folder.found.identity, others[split])
        ]
        if not images:
            raise _without_images(folder, others[split])
        splits[split] = images
    labels = {label for _, label in splits["train"]}
    if empty := [name for label, name in enumerate(classes) if label not in labels]:
        raise DataError(f"{root}/train has no images of {listed(empty, MAX_LISTED)}{unread_hint(others['train'])}")
    return LabelledFiles(root, classes, splits, left_out=_left_out(loose, [*chain(*others.values())]))


def class_folders(root: Path) -> tuple[list[str], dict[str, SplitFolder]]:
    """Return the classes under ``root``, sorted, and the folder of each split; no class folder is read.

    Raises:
        DataError: ``root`` or ``root/train`` is missing, there are fewer than two classes, there are two validation
            splits, two splits are one folder, a split's name has capital letters, two folders of a split have one name
            in two Unicode forms, or ``val`` or ``test`` has no class folder or a class that ``train`` lacks.
    """
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
    classes: list[str] = []
    splits: dict[str, SplitFolder] = {}
    for split, names in SPLIT_FOLDERS.items():
        if not (folders := [name for name in names if (root / name).is_dir()]):
            continue
        if len(folders) > 1:
            raise DataError(f"{root} has {listed(folders)}, of which one at most can be the validation split")
        folder = _split_folder(root / folders[0])
        for other in splits.values():
            if other.found.identity == folder.found.identity:
                problem = "are one folder: leakage, as both splits have its images"
                raise DataError(f"{folder.path} and {other.path} {problem}")
        if split == "train" and len(classes := sorted(folder.classes)) < 2:
            only = f"only {classes[0]}" if classes else "none"
            raise DataError(f"{folder.path} needs a folder for each of at least two classes; found {only}")
        if unknown := sorted(folder.classes.keys() - set(classes)):
            hint = did_you_mean(nearest(unknown[0], classes))
            raise DataError(f"{folder.path} has classes that train lacks: {listed(unknown, MAX_LISTED)}{hint}")
        if not folder.classes:
            raise _without_images(folder, folder.found.others)
        splits[split] = folder
    return classes, splits


def refuse_url(name: str) -> None:
    """Raise DataError if the name of a picture is a URL."""
    if re.match(r"\w+://", name):
        raise DataError(f"{name} is a URL; pictures are read from files only")


def cifar10_folder(root: str | Path) -> Path | None:
    """Return the image folder of CIFAR-10 under ``root``; ``None`` if there is none, or torchvision's batches are."""
    folder = Path(root) / "cifar10"
    return folder if folder.is_dir() and not (Path(root) / "cifar-10-batches-py").is_dir() else None


def _split_folder(path: Path) -> SplitFolder:
    found, classes = look_into(str(path)), dict[str, str]()
    for folder in found.folders:
        if classes.setdefault(nfc(folder), folder) != folder:
            problem = f"has two folders called {nfc(folder)}, which Unicode spells in two ways"
            raise DataError(f"{path} {problem}; move their pictures into one")
    return SplitFolder(path, found, classes)


def _images(folder: Path, split: Identity, others: list[str]) -> list[Path]:
    """List the files of a class. Links to its split's folder are not followed, which would find all classes' images."""
    found = map(Path, pictures_in(str(folder), {split}, others, files_only=True))
    return sorted(found, key=lambda path: nfc(str(path)).split("/"))


def _without_images(split: SplitFolder, others: Sequence[str]) -> DataError:
    """The error of a split without images in class folders, with files of these other suffixes in them."""
    if loose := len(split.found.pictures):
        name = split.path.name
        or_else = "" if name == "train" else f", or rename {name}, which is then not read"
        problem = f"{plural(loose, 'picture')} in no class folder; move them to {split.path}/<class>/{or_else}"
    else:
        problem = f"no images ({', '.join(sorted(SUFFIXES))})"
    return DataError(f"{split.path} has {problem}{unread_hint(others)}")


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


def pictures_in(
    folder: str, read: set[Identity], others: list[str] | None = None, *, files_only: bool = False
) -> Iterator[str]:
    """Yield the paths of the pictures in a folder and in those inside it.

    Args:
        folder: its path.
        read: folders that were read already; links to these end here. Those that are read join it.
        others: receives the suffixes of the other files, except those of text.
        files_only: leave out links that lead nowhere.

    Raises:
        DataError: a folder cannot be read.
    """
    found = look_into(folder)
    if found.identity in read:
        return
    read.add(found.identity)
    if others is not None:
        others += found.others
    left_out = found.broken if files_only else ()
    yield from (f"{folder}/{name}" for name in found.pictures if name not in left_out)
    for name in found.folders:
        yield from pictures_in(f"{folder}/{name}", read, others, files_only=files_only)


def look_into(folder: str) -> Content:
    """List what is directly in a folder.

    Raises:
        DataError: it cannot be read.
    """
    pictures, folders, others, broken = [], [], [], set()
    try:
        status = Path(folder).stat()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if _leads_to(entry.is_dir):
                    folders.append(entry.name)
                elif (suffix := Path(entry.name).suffix.lower()) in SUFFIXES:
                    pictures.append(entry.name)
                    if not _leads_to(entry.is_file):
                        broken.add(entry.name)
                elif suffix not in NO_PICTURES:
                    others.append(suffix)
    except OSError as error:
        raise DataError(f"cannot read {folder}: {error.strerror or error}") from None
    return Content((status.st_dev, status.st_ino), sorted(pictures), sorted(folders), others, broken)


def _leads_to(kind: Callable[[], bool]) -> bool:
    """Call ``is_dir`` or ``is_file`` of an entry, which know the answer without a system call, except of a link."""
    try:
        return kind()
    except OSError as error:
        if error.errno == errno.ELOOP:  # links that lead to each other lead nowhere
            return False
        raise
