"""The checkpoints of a run to choose from: the best, and the epochs that ``callbacks.keep_every`` kept. No torch."""

import re
from pathlib import Path

from vitrine.errors import RunError
from vitrine.runs.record import RunRecord
from vitrine.text import listed


def checkpoint_of(record: RunRecord, epoch: int | None) -> Path:
    """Return the checkpoint of an epoch, counted from 1, or of the best one for ``None``, which need not be there.

    Raises:
        RunError: the epoch was not kept, or is not an integer.
    """
    if epoch is None:
        return record.best
    if type(epoch) is not int:  # as a caller in Python may give
        raise RunError(f"checkpoint is the number of an epoch, such as 10, not {epoch!r}")
    if epoch in (kept := kept_epochs(record)):
        return epoch_path(record, epoch)
    has = "none is kept but the best; callbacks.keep_every=N keeps every Nth"
    if kept:
        nearest = min(kept, key=lambda one: abs(one - epoch))
        has = f"kept are {listed(kept, 5)}, beside the best; the nearest is {nearest}"
    raise RunError(f"{record.path} has no checkpoint of epoch {epoch}: {has}")


def kept_epochs(record: RunRecord) -> list[int]:
    """Return the epochs whose checkpoints are kept, in order."""
    names = (path.name for path in record.last.parent.glob("epoch_*.ckpt"))
    return sorted(int(found[1]) for name in names if (found := re.fullmatch(r"epoch_([1-9]\d{0,6})\.ckpt", name)))


def epoch_path(record: RunRecord, epoch: int) -> Path:
    """Return where the checkpoint of an epoch is kept."""
    return record.last.with_name(f"epoch_{epoch}.ckpt")
