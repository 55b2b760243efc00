"""``vitrine eval`` and ``python eval.py``: the test or validation metrics of runs, from their checkpoints."""

from collections.abc import Sequence

from vitrine.cli.command import Command, run_command
from vitrine.command.compose import Point
from vitrine.errors import VitrineError
from vitrine.runs import RunRecord
from vitrine.runs.checkpoints import checkpoint_of
from vitrine.text import report


def main(arguments: Sequence[str] | None = None) -> None:
    """Test the run that the command line names; exits non-zero if that fails."""
    run_command(Command("eval", evaluate_one, evaluate_all), arguments)


def evaluate_one(point: Point) -> None:
    """Test one run."""
    config = point.config
    checkpoint_of(RunRecord.open(config.run), config.checkpoint)  # raises before PyTorch is imported, in seconds
    from vitrine.training.evaluate import evaluate_run

    evaluate_run(config)


def evaluate_all(points: list[Point], launcher: str) -> int:
    """Test several runs sequentially; return how many could not be tested."""
    failed = 0
    for point in points:
        try:
            evaluate_one(point)
        except VitrineError as error:
            report(f"{point.config.run}: {error}")
            failed += 1
    return failed
