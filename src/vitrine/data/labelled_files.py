"""Image files with their labels, by split: what a scan of class folders or of a CSV file finds. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LabelledFiles:
    """Classes and image files of a data set.

    Attributes:
        root: the folder or the CSV file.
        classes: names of the classes that ``train`` has, sorted; labels index this list.
        splits: (path, label) of each image, for ``train`` and, where there are any, ``val`` and ``test``.
    """

    root: Path
    classes: list[str]
    splits: dict[str, list[tuple[Path, int]]]
