"""``vitrine train`` and ``python train.py``: train one model, or with ``-m`` one for each point of a sweep."""

import sys
from collections.abc import Sequence

from vitrine.cli.command import Command, run_command
from vitrine.command.compose import Point
from vitrine.command.composer import PERMISSIONS
from vitrine.errors import VitrineError
from vitrine.runs.provenance import process_started_at


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what the command line asks for; exits non-zero if it fails."""
    run_command(Command("train", train_one, train_all), arguments)


def train_one(point: Point) -> None:
    """Train one run, or resume it."""
    _check_platform()
    from vitrine.training.fit import fit
    from vitrine.training.resume import resume

    began = process_started_at()
    if point.config.resume is not None:
        config = point.config
        allowed = {name: getattr(config, name) for name in PERMISSIONS}
        resume(config.resume, config.run, began=began, **allowed)
    else:
        fit(point.config.run, folder=point.folder, began=began, trust=point.config.trust)


def train_all(points: list[Point], launcher: str) -> int:
    """Carry out a sweep; return how many trials failed."""
    _check_platform()
    from vitrine.sweeps.run import run

    return run(points, launcher)


def _check_platform() -> None:
    """Raise VitrineError on Windows, before PyTorch is imported."""
    if sys.platform == "win32":
        raise VitrineError("training does not start on Windows; use WSL 2, which is Linux: docs/platforms.md")
