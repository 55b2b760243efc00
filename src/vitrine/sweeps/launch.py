"""``python train.py -m``: the trials of a sweep carried out by the launcher that was chosen."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from vitrine.composition import Point
from vitrine.config.multirun import LauncherConfig
from vitrine.errors import Interrupted
from vitrine.sweeps import process
from vitrine.sweeps.board import Board, show_end
from vitrine.sweeps.queue import Queue, Source
from vitrine.sweeps.sweep import Sweep
from vitrine.sweeps.trial import Busy, Trial, carry_out


def run(points: Sequence[Point], launcher: str) -> int:
    """Carry out what is left of the sweep that ``points`` make; gives how many of its trials failed.

    Raises:
        RunError: its folder is of another version, or cannot be written.
        ConfigError: the launcher is asked for more than this machine has.
        Interrupted: a signal asked to stop; the same command goes on.
    """
    if points[0].space:
        return _search(points[0], launcher)
    sweep = Sweep.plan(points)
    with Board(sweep, live=_is_live(launcher)) as board:
        queue = Queue(sweep.trials, board.begins, board.ended)
        with _written_at_the_end(board):
            _carry_out(queue, launcher, points[0].config.launcher, sweep.trials)
    show_end(sweep, board.outcomes)
    return sum(came.status == "failed" for came in board.outcomes)


def _search(point: Point, launcher: str) -> int:
    from vitrine.sweeps.ranking import conclude, described
    from vitrine.sweeps.search import Search

    search = Search(point)
    sweep = replace(search.sweep, more=lambda: described(search))
    with Board(sweep, live=_is_live(launcher)) as board:
        search.begins, search.ended = board.begins, board.ended
        with _written_at_the_end(board):
            _carry_out(search, launcher, point.config.launcher, [Trial(0, point.config.run, {}, sweep.folder)])
    return conclude(search)


def _is_live(launcher: str) -> bool:
    return launcher != "basic" and sys.stdout.isatty()


@contextmanager
def _written_at_the_end(board: Board) -> Iterator[None]:
    try:
        yield
    except Interrupted:
        raise Interrupted("interrupted; the same command goes on with what is left") from None
    finally:
        board.outcomes = board.sweep.outcomes()
        board.sweep.write(board.outcomes)


def _carry_out(queue: Source, launcher: str, settings: LauncherConfig, trials: list[Trial]) -> None:
    if queue.done:
        return
    if launcher == "process":
        process.carry_out_all(queue, settings, trials)
    else:
        _one_after_the_other(queue)


def _one_after_the_other(queue: Source) -> None:
    """``hydra/launcher=basic``: in this process."""
    while not queue.done:
        if (trial := queue.ask()) is None:
            time.sleep(0.2)
            continue
        try:
            queue.tell(trial, carry_out(trial))
        except Busy:
            queue.put_back(trial)
