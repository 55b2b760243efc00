"""Pictures in class folders: ``ROOT/{train,val,test}/<class>/*``. Only names are read here, no pixels and no torch."""

from dataclasses import dataclass
from pathlib import Path

from vitrine.errors import DataError
from vitrine.text import did_you_mean, nearest

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}


@dataclass(frozen=True)
class ImageFolder:
    """What lies under a folder of pictures.

    Attributes:
        root: the folder.
        classes: names of the class folders under ``train``, sorted; a label is a place in this list.
        splits: for ``train``, and ``val`` and ``test`` where there are such folders, each picture with its label.
    """

    root: Path
    classes: list[str]
    splits: dict[str, list[tuple[Path, int]]]

    @classmethod
    def scan(cls, root: str | Path) -> "ImageFolder":
        """List the pictures under ``root``.

        Raises:
            DataError: ``root`` or its ``train`` is missing, there are fewer than two classes, a class has no picture,
                or ``val`` or ``test`` has a class that ``train`` has not.
        """
        root = Path(root)
        if not root.is_dir():
            raise DataError(f"{root} is not a folder{_neighbour(root)}")
        if not (root / "train").is_dir():
            raise DataError(f"{root} has no folder train; expected {root}/train/<class>/*.png or other pictures")
        classes = _classes(root / "train")
        if len(classes) < 2:
            found = f"only {classes[0]}" if classes else "none"
            raise DataError(f"{root}/train must hold a folder for each of at least two classes; there is {found}")
        splits = {}
        for split in ("train", "val", "test"):
            if not (root / split).is_dir():
                continue
            if strange := sorted(set(_classes(root / split)) - set(classes)):
                hint = did_you_mean(nearest(strange[0], classes))
                raise DataError(f"{root}/{split} has a class that train has not: {', '.join(strange)}{hint}")
            pictures = [(path, label) for label, name in enumerate(classes) for path in _pictures(root / split / name)]
            if not pictures:
                raise DataError(f"{root}/{split} holds no picture ({', '.join(sorted(SUFFIXES))})")
            splits[split] = pictures
        counts = dict.fromkeys(range(len(classes)), 0)
        for _, label in splits["train"]:
            counts[label] += 1
        if empty := [classes[label] for label, count in counts.items() if not count]:
            raise DataError(f"{root}/train holds no picture of {', '.join(empty)}")
        return cls(root, classes, splits)


def _classes(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _pictures(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


def _neighbour(folder: Path) -> str:
    """A hint at a folder beside the missing one that has nearly its name."""
    try:
        names = [path.name for path in folder.absolute().parent.iterdir() if path.is_dir()]
    except OSError:
        return ""
    match = nearest(folder.name, names)
    return did_you_mean(folder.parent / match if match else "")
