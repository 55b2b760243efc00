"""Image files with their labels, by split: what a scan of class folders or of a CSV file finds. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# The index of a class; of several targets, one index each; or, where an image has several labels, those of its classes.
Label = int | tuple[int, ...]


@dataclass(frozen=True)
class LabelledFiles:
    """Classes and image files of a data set.

    Attributes:
        root: the folder or the CSV file.
        classes: names of the classes that ``train`` has, sorted; labels index this list. Of several targets, those of
            the first.
        splits: (path, label) of each image, for ``train`` and, where there are any, ``val`` and ``test``; labels are of
            one kind.
        targets: names of the classes of each target, where the images can have several.
        groups: name of the group of each image, by split, where they are asked for.
        unread: names of the columns of a CSV file that are not read.
        left_out: what may be images that were not read, for people; empty if there are none.
    """

    root: Path
    classes: list[str]
    splits: Mapping[str, Sequence[tuple[Path, Label]]]
    targets: Mapping[str, list[str]] = field(default_factory=dict)
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unread: Sequence[str] = ()
    left_out: str = ""
