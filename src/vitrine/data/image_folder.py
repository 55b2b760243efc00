"""Scan of an image folder, ``ROOT/{train,val,test}/<class>/*``. Reads file names only; imports no torch.

``val`` may be called ``valid`` or ``validation``.
"""

from pathlib import Path

from vitrine.data.labelled_files import LabelledFiles
from vitrine.errors import DataError
from vitrine.text import did_you_mean, listed, nearest

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
SPLIT_FOLDERS = {"train": ["train"], "val": ["val", "valid", "validation"], "test": ["test"]}


def scan_folder(root: str | Path) -> LabelledFiles:
    """List the images under ``root``.

    Raises:
        DataError: ``root`` or ``root/train`` is missing, there are fewer than two classes, a class has no training
            image, there are two validation splits, or ``val`` or ``test`` has no image or a class that ``train`` lacks.
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root} is not a folder{_hint(root)}")
    if not (root / "train").is_dir():
        raise DataError(f"{root} has no train folder; expected {root}/train/<class>/*.png (or other image types)")
    classes = _class_names(root / "train")
    if len(classes) < 2:
        found = f"only {classes[0]}" if classes else "none"
        raise DataError(f"{root}/train needs a folder for each of at least two classes; found {found}")
    splits = {}
    for split, names in SPLIT_FOLDERS.items():
        if not (folders := [name for name in names if (root / name).is_dir()]):
            continue
        if len(folders) > 1:
            raise DataError(f"{root} has {listed(folders)}, of which one at most can be the validation split")
        split_folder = root / folders[0]
        if unknown := sorted(set(_class_names(split_folder)) - set(classes)):
            hint = did_you_mean(nearest(unknown[0], classes))
            raise DataError(f"{split_folder} has classes that train lacks: {', '.join(unknown)}{hint}")
        images = [(path, label) for label, name in enumerate(classes) for path in _images(split_folder / name)]
        if not images:
            raise DataError(f"{split_folder} has no images ({', '.join(sorted(SUFFIXES))})")
        splits[split] = images
    labels = {label for _, label in splits["train"]}
    if empty := [name for label, name in enumerate(classes) if label not in labels]:
        raise DataError(f"{root}/train has no images of {', '.join(empty)}")
    return LabelledFiles(root, classes, splits)


def cifar10_folder(root: str | Path) -> Path | None:
    """Return the image folder of CIFAR-10 under ``root``; ``None`` if there is none, or torchvision's batches are."""
    folder = Path(root) / "cifar10"
    return folder if folder.is_dir() and not (Path(root) / "cifar-10-batches-py").is_dir() else None


def _class_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not _is_hidden(path.relative_to(folder)) and path.is_file()
    )


def _is_hidden(path: Path) -> bool:
    """Whether a file, or a folder that it is in, is hidden: previews of file managers, copies of notebooks."""
    return any(part.startswith(".") for part in path.parts)


def _hint(folder: Path) -> str:
    """Suggest a sibling folder with a similar name."""
    try:
        names = [path.name for path in folder.absolute().parent.iterdir() if path.is_dir()]
    except OSError:
        return ""
    match = nearest(folder.name, names)
    return did_you_mean(folder.parent / match if match else "")
