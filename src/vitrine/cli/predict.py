"""``vitrine predict`` and ``python predict.py``: the classes of pictures, from trained runs."""

import sys
from collections.abc import Sequence

from vitrine.cli.command import Command, run_command
from vitrine.command.compose import Point
from vitrine.errors import ConfigError, Fault
from vitrine.inference.inputs import Pictures
from vitrine.runs import RunRecord
from vitrine.runs.checkpoints import checkpoint_of

SOME_UNREADABLE = 4  # exit code where some pictures could not be read


def main(arguments: Sequence[str] | None = None) -> None:
    """Classify the pictures that the command line names; exits non-zero if that fails for any."""
    run_command(Command("predict", predict_one, predict_all), arguments)


def predict_one(point: Point) -> None:
    """Classify the pictures of one input."""
    config = point.config
    for run in config.runs:  # both raise before PyTorch is imported, which takes seconds
        checkpoint_of(RunRecord.open(run), config.checkpoint)
    pictures = Pictures.of(config.input)
    from vitrine.inference.predict import predict

    if predict(config, pictures):
        sys.exit(SOME_UNREADABLE)


def predict_all(points: list[Point], launcher: str) -> int:
    """Refuse ``-m``."""
    raise ConfigError([Fault("-m", "", "is not for this command; run=[RUN,RUN] averages several runs")])
