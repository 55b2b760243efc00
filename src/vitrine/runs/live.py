"""How far a run is while it trains, read from its folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrine.errors import RunError
from vitrine.runs.record import RunRecord


@dataclass(frozen=True)
class Progress:
    """The state of a training at its last logged row.

    Attributes:
        epoch: the current epoch, from 1; 0 before the first row.
        epochs: planned epochs; 0 if not known yet.
        loss: mean training loss of the last logged steps.
        left: seconds of training that are left at the mean pace so far; ``None`` if unknown.
        curve: the metric after each epoch.
    """

    epoch: int = 0
    epochs: int = 0
    loss: float | None = None
    left: float | None = None
    curve: tuple[float, ...] = ()


def read_progress(folder: Path, metric: str = "val/acc") -> Progress:
    """Read how far the run in ``folder`` is. A folder that is not readable, or not yet there, has not begun."""
    record = RunRecord(folder)
    try:
        return _progress(record.facts, record.history(), metric)
    except (RunError, TypeError, ValueError, KeyError, ArithmeticError):
        return Progress()


def _progress(facts: Mapping[str, Any], rows: Sequence[Mapping[str, float]], metric: str) -> Progress:
    epochs, steps = int(facts.get("epochs") or 0), int(facts.get("steps_per_epoch") or 0)
    if not rows:
        return Progress(epochs=epochs)
    last = rows[-1]
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    remaining = max(0, epochs * steps - int(last["step"]))
    return Progress(
        epoch=int(last["epoch"]),
        epochs=epochs,
        loss=losses[-1] if losses else None,
        left=last["seconds"] / last["step"] * remaining if epochs and last["step"] else None,
        curve=tuple(row[metric] for row in rows if metric in row),
    )
