"""Whether the data is still what a run was trained on, by the fingerprint in its run.json (data/fingerprint.py)."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitrine.data.datamodule import ImageDataModule
from vitrine.errors import RunError
from vitrine.runs import RunRecord
from vitrine.runs.data_changes import SPLITS, run_changes
from vitrine.runs.record import now
from vitrine.text import listed, report


def data_facts(data: ImageDataModule) -> dict[str, Any]:
    """Return what run.json keeps of a run's data."""
    return {
        "images": data.sizes,
        "classes": data.dataset.classes,
        **({"targets": dict(data.dataset.targets)} if data.dataset.targets else {}),
        "validation": data.validation_hash,
        "data_fingerprint": data.dataset.fingerprint,
    }


def check_data(
    record: RunRecord,
    data: ImageDataModule,
    *,
    accept: bool,
    splits: Sequence[str] = SPLITS,
    warn: bool = True,
    key: str = "data.root",
) -> list[str]:
    """Compare the data with what the run was trained on.

    Args:
        record: the run.
        data: its data as it is now, with a fingerprint.
        accept: whether changed data is accepted.
        splits: those that are compared.
        warn: whether to report accepted changes.
        key: the command's override for the folder of the data.

    Returns:
        What has changed, if that is accepted.

    Raises:
        RunError: the data has changed; the message says what differs.
    """
    known = record.facts
    found = run_changes(known, data_facts(data), splits)
    if found and "train" in splits and _drawn_anew(known, data):
        found.append("validation images are drawn anew, and the model was trained on some: val/acc is too high")
    if found and not accept:
        differs = listed(found, separator="; ")
        raise RunError(
            f"the data is not what {record.path} was trained on: {differs}. "
            f"Give the data that it was trained on, {key}=DIR, or continue with this data: accept_changed_data=true"
        )
    if warn and found:
        report(f"warning: the data is not what {record.path} was trained on: {listed(found, separator='; ')}")
    return found


def _drawn_anew(known: Mapping[str, Any], data: ImageDataModule) -> bool:
    """Return whether validation images are kept from training, but not those that were kept from the run's."""
    if data.train_val_split is None or not data.config.data.hold_out:
        return False
    before, now = known.get("data_fingerprint") or {}, data.dataset.fingerprint or {}
    old, new = before.get("train", {}), now.get("train", {})
    kept = ("images", "per_class", "names", "labels")
    moved = any(old[key] != new[key] for key in kept if key in old and key in new)
    return moved or known.get("validation", data.validation_hash) != data.validation_hash


def validation_splits(data: ImageDataModule) -> list[str]:
    """Return the splits that validation images depend on: the data's own, or that for training and the choice of it."""
    return ["train", "val"] if data.dataset.val is None else ["val"]


def record_data(record: RunRecord, data: ImageDataModule, changed: list[str]) -> None:
    """Record the data that a run is resumed on, if its changes were accepted."""
    if changed:
        known = record.facts
        entry = {"at": now(), "changes": changed, "images": known.get("images"), "classes": known.get("classes")}
        record.update(data_changes=[*(known.get("data_changes") or []), entry], **data_facts(data))
