"""Find the newest state of a run that reads whole, before the run is resumed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrine.errors import RunError
from vitrine.files import move_aside
from vitrine.runs import RunRecord
from vitrine.runs.checkpoints import epoch_path, kept_epochs
from vitrine.text import report
from vitrine.training.checkpoints import AtomicCheckpointIO, Checkpoints, copy_checkpoint
from vitrine.training.weights import DamagedCheckpoint, read_checkpoint

KEPT = ("config", "global_step", "epoch", "loops", "callbacks")


@dataclass(frozen=True)
class SavedState:
    """What a checkpoint of a run holds.

    Attributes:
        path: the checkpoint.
        step: optimiser steps done.
        epoch: epoch that it was saved in, from 1.
        best_epoch: best epoch so far; ``None`` before the end of the first.
        checkpoint: its entries but weights and optimiser.
    """

    path: Path
    step: int
    epoch: int
    best_epoch: int | None
    checkpoint: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "SavedState":
        """Read a checkpoint; raises as ``read_checkpoint`` does."""
        checkpoint = read_checkpoint(path)
        try:
            best = checkpoint["callbacks"][Checkpoints.__name__]["best"]
            best_epoch = int(best["best_epoch"]) if best else None
            kept = {key: checkpoint[key] for key in KEPT if key in checkpoint}
            return cls(path, int(checkpoint["global_step"]), int(checkpoint["epoch"]) + 1, best_epoch, kept)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedCheckpoint(f"{path} is not a checkpoint to resume from: it lacks {error}") from None


def recover(record: RunRecord) -> SavedState | None:
    """Make last.ckpt the newest checkpoint that reads whole, and print what was done about others.

    Damaged checkpoints are renamed, never deleted. A best.ckpt that was lost, or not yet copied when the process was
    killed, is copied again if the best epoch is among the last two or was kept. Without the last two, epochs that were
    kept are read, the latest first. Call this with the run's lock held.

    Returns:
        What last.ckpt now holds; ``None`` if the run has no checkpoint yet.

    Raises:
        RunError: the run was trained and no checkpoint reads whole, one cannot be opened, or a damaged one is in a
            folder that is a link.
    """
    notes: list[str] = []
    found = [_read(path, notes) for path in (record.last, record.previous, record.best)]
    if found[:2] == [None, None]:
        kept = (epoch_path(record, epoch) for epoch in reversed(kept_epochs(record)))
        found.append(next((state for path in kept if (state := _read(path, notes)) is not None), None))
    states = {state.path: state for state in found if state is not None}
    if not states:
        if _was_trained(record):
            raise RunError("; ".join([*notes, f"{record.path} cannot be resumed: {_NOTHING_LEFT}"]))
        return None
    newest = max(states.values(), key=lambda state: state.step)  # last.ckpt, of equal steps
    if newest.path != record.last:
        copy_checkpoint(newest.path, record.last)
        notes.append(f"{record.path} is resumed from {newest.path.name}, step {newest.step} in epoch {newest.epoch}")
    best = states.get(record.best)
    if newest.best_epoch is not None and (best is None or best.epoch != newest.best_epoch):
        ends = [state for state in states.values() if state.epoch == newest.best_epoch == state.best_epoch]
        if not ends and newest.best_epoch in kept_epochs(record):
            ends = list(filter(None, [_read(epoch_path(record, newest.best_epoch), notes)]))
        if ends:
            copy_checkpoint(ends[0].path, record.best)
        elif best is None:
            notes.append(f"{record.path} has lost its best epoch, {newest.best_epoch}: later ones take its place")
    for note in notes:
        report(note)
    return newest


def replace_lost_best(record: RunRecord) -> dict[str, float]:
    """Take the last epoch for the best, which was lost when no epoch was left to train; return its metrics."""
    row = [row for row in record.history() if "val/loss" in row][-1]
    best = {name: value for name, value in row.items() if name.startswith("val/")} | {"best_epoch": int(row["epoch"])}
    checkpoint = read_checkpoint(record.last)
    checkpoint["callbacks"][Checkpoints.__name__]["best"] = best  # later epochs, if there are any, are compared to it
    record.check_claim()
    AtomicCheckpointIO().save_checkpoint(checkpoint, record.last)
    copy_checkpoint(record.last, record.best)
    report(f"{record.path} has no epoch left to train: its last, {best['best_epoch']}, takes the place of its best")
    return best


_NOTHING_LEFT = "it was trained, but no checkpoint of it is left; like=RUN starts a new run with its configuration"


def _was_trained(record: RunRecord) -> bool:
    """Whether the run has had a checkpoint: it is written before the second epoch begins."""
    return (
        any(record.last.parent.glob("[!.]*.ckpt*"))
        or record.facts.get("status") == "finished"
        or any(row["epoch"] > 1 for row in record.history())
    )


def _read(path: Path, notes: list[str]) -> SavedState | None:
    if not path.exists():
        return None
    try:
        return SavedState.read(path)
    except DamagedCheckpoint as error:
        if path.parent.is_symlink():  # others may have made it, to lead to files of the user's
            raise RunError(f"{error}; it is not renamed, since {path.parent} is a link: move it yourself") from None
        notes.append(f"{error}; it is kept as {move_aside(path).name}")
        return None
