"""Image files with their labels, by split: what a scan of class folders or of a CSV file finds. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Label = int | tuple[int, ...]  # the index of a class; or, where an image has several labels, those of its classes


@dataclass(frozen=True)
class LabelledFiles:
    """Classes and image files of a data set.

    Attributes:
        root: the folder or the CSV file.
        classes: names of the classes that ``train`` has, sorted; labels index this list.
        splits: (path, label) of each image, for ``train`` and, where there are any, ``val`` and ``test``; labels are of
            one kind.
    """

    root: Path
    classes: list[str]
    splits: Mapping[str, Sequence[tuple[Path, Label]]]
