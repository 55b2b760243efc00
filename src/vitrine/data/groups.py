"""Groups of images (``data.group``) by the names of files, and whether two splits share one. Imports no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from vitrine.config.groups import FOLDER
from vitrine.errors import DataError
from vitrine.text import listed, nfc, plural

MAX_LISTED = 3
LIKELY = {"animal", "case", "group", "patient", "scene", "site", "slide", "specimen", "subject", "video"}


def group_of(path: Path, rule: str) -> str:
    """Return the group of an image, in Unicode's form NFC, by its path inside its class's folder.

    Args:
        path: such as ``P7/1.png`` or ``P7_1.png``.
        rule: ``folder`` is the first folder in the path; ``prefix`` is the file's name up to its first ``_``.

    Raises:
        DataError: the path has no such part.
    """
    if rule == FOLDER:
        if len(path.parts) > 1:
            return nfc(path.parts[0])
        raise DataError(f"data.group=folder: {path} is in no folder inside its class; expected CLASS/GROUP/{path}")
    name, separator, _ = path.name.partition("_")
    if separator and name:
        return nfc(name)
    raise DataError(f"data.group=prefix: the name of {path} does not begin with a group and _, as in P7_1.png")


def refuse_shared(groups: Mapping[str, Sequence[str]], root: str) -> None:
    """Raise DataError if two of the data set's own splits have images of one group."""
    splits_of: dict[str, list[str]] = {}
    for split, names in groups.items():
        for name in dict.fromkeys(names):
            splits_of.setdefault(name, []).append(split)
    shared = [f"{name} ({listed(splits)})" for name, splits in splits_of.items() if len(splits) > 1]
    if shared:
        count = plural(len(shared), "group")
        raise DataError(
            f"{root}: {count} with images in two splits, which would be leakage: {listed(shared, MAX_LISTED)}; move "
            "all images of a group to one split"
        )


def likely_groups(columns: Sequence[str]) -> str:
    """Return the first of a data set's columns whose name suggests groups; empty if none does."""
    return next((name for name in columns if name.lower().removesuffix("_id").removesuffix("id").strip() in LIKELY), "")
