"""What differs between the data of two runs, or of a run and today: by classes and by split. Imports no torch.

A fingerprint has, for each split, the number of images in all and by class, and checksums (data/fingerprint.py). A data
set that was read from files and is now packed, or the other way round, has other checksums: what both have is compared.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from vitrine.text import file_size, listed, nfc, plural

SPLITS = ("train", "val", "test")
MAX_LISTED = 3

KEYS = {  # of a split, in the order in which they are compared, with what differs
    "images": "",
    "per_class": "",
    "names": "files of other names",
    "bytes": "",
    "sizes": "files of other sizes",
    "labels": "other labels, or its images in another order",
    "shape": "images of another shape",
    "pixels": "other images",
}

Fingerprint = Mapping[str, Mapping[str, Any]]  # by split, as JSON values


def changes(
    before: Fingerprint, now: Fingerprint, classes: Sequence[str] = (), splits: Sequence[str] = SPLITS
) -> list[str]:
    """Return what differs between two fingerprints, as ``train has 20 images, not 40 (cat: 10, not 30)``.

    Args:
        before: the one that is expected.
        now: the one that is there.
        classes: names of the classes, for the message.
        splits: those that are compared.
    """
    found = []
    for name in splits:
        old, new = before.get(name), now.get(name)
        if old is None or new is None:
            if old is not new:
                found.append(f"there is no {name} split any more" if new is None else f"there is a {name} split now")
        elif change := _change(name, old, new, classes):
            found.append(change)
    return found


def run_changes(before: Mapping[str, Any], now: Mapping[str, Any], splits: Sequence[str] = SPLITS) -> list[str]:
    """Return what differs between the data of two runs, or of a run and today, by what run.json keeps of it.

    Without fingerprints, the numbers of images are compared.

    Args:
        before: facts of the run that is expected.
        now: those of the other one.
        splits: those that are compared; the choice of validation images with ``val``.
    """
    classes = now.get("classes") or []
    found = class_changes(before.get("classes") or classes, classes)
    targets = before.get("targets") or {}
    for target, names in list((now.get("targets") or {}).items())[1:]:  # the first target's are the classes
        found += [f"of {target}, {change}" for change in class_changes(targets.get(target) or names, names)]
    stored, current = before.get("data_fingerprint"), now.get("data_fingerprint")
    if stored is not None and current is not None:
        found += changes(stored, current, classes, splits)
    else:
        sizes, new = before.get("images") or {}, now.get("images") or {}
        differ = [name for name in splits if name in sizes and name in new and sizes[name] != new[name]]
        found += [f"{name} has {new[name]:,} images, not {sizes[name]:,}" for name in differ]
    validation = before.get("validation", now.get("validation"))
    if "val" in splits and not found and validation != now.get("validation"):
        found.append(f"the validation split is {now.get('validation')}, not {validation}")
    return found


def class_changes(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """Return what differs between two lists of class names, in whatever form of Unicode these are."""
    if len(before) != len(now):
        return [f"there are {len(now)} classes, not {len(before)}"]
    pairs = enumerate(zip(before, now, strict=True))
    found = [f"class {index} is {new}, not {old}" for index, (old, new) in pairs if nfc(old) != nfc(new)]
    return [listed(found, MAX_LISTED)] if found else []


def _change(name: str, old: Mapping[str, Any], new: Mapping[str, Any], classes: Sequence[str]) -> str:
    """Return the first thing that differs in a split; empty if nothing that both have does."""
    both = [key for key in KEYS if old.get(key) is not None and new.get(key) is not None]
    different = next((key for key in both if old[key] != new[key]), "")
    if different == "images":
        return f"{name} has {plural(new['images'], 'image')}, not {old['images']:,}{_by_class(old, new, classes)}"
    if different == "per_class":
        return f"{name} has other numbers of images in its classes{_by_class(old, new, classes)}"
    if different == "bytes":
        sizes = [file_size(new["bytes"]), file_size(old["bytes"])]
        if sizes[0] == sizes[1]:
            sizes = [f"{split['bytes']:,} bytes" for split in (new, old)]
        return f"{name} has files of {sizes[0]} in all, not {sizes[1]}"
    return f"{name} has {KEYS[different]}" if different else ""


def _by_class(old: Mapping[str, Any], new: Mapping[str, Any], classes: Sequence[str]) -> str:
    before, now = old.get("per_class") or (), new.get("per_class") or ()
    if not len(classes) == len(before) == len(now):
        return ""
    counts = zip(classes, before, now, strict=True)
    found = [f"{label}: {count}, not {was}" for label, was, count in counts if count != was]
    return f" ({listed(found, MAX_LISTED)})" if found else ""
