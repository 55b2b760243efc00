"""``python train.py -m``: the trials of a sweep carried out by the launcher that was chosen."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from vitrine.composition import Point
from vitrine.config.multirun import LauncherConfig
from vitrine.errors import ConfigError, Fault, Interrupted
from vitrine.runs.provenance import command_began
from vitrine.sweeps import process
from vitrine.sweeps.board import Board, show_end
from vitrine.sweeps.queue import Queue, Source
from vitrine.sweeps.sweep import Sweep
from vitrine.sweeps.trial import Busy, Trial, carry_out
from vitrine.training.launched import launched


def run(points: Sequence[Point], launcher: str) -> int:
    """Carry out what is left of the sweep that ``points`` make; gives how many of its trials failed.

    Raises:
        RunError: its folder is of another version, or cannot be written.
        ConfigError: the launcher is asked for more than there is.
        Interrupted: a signal asked to stop; the same command goes on.
    """
    if points[0].space:
        return _search(points[0], launcher)
    sweep = Sweep.plan(points)
    carry_out_all = _carrier(launcher, points[0].config.launcher, sweep)
    with Board(sweep, live=_is_live(launcher)) as board:
        queue = Queue(sweep.trials, board.begins, board.ended)
        with _written_at_the_end(board):
            carry_out_all(queue)
    show_end(sweep, board.outcomes)
    return sum(came.status == "failed" for came in board.outcomes)


def _search(point: Point, launcher: str) -> int:
    from vitrine.sweeps.ranking import conclude, described
    from vitrine.sweeps.search import Search

    search = Search(point)
    sweep = replace(search.sweep, more=lambda: described(search))
    one = Trial(0, point.config.run, {}, sweep.folder)  # what each of them needs of a machine
    carry_out_all = _carrier(launcher, point.config.launcher, replace(sweep, trials=[one]))
    with Board(sweep, live=_is_live(launcher)) as board:
        search.begins, search.ended = board.begins, board.ended
        with _written_at_the_end(board):
            carry_out_all(search)
    return conclude(search)


def _is_live(launcher: str) -> bool:
    return launcher != "basic" and sys.stdout.isatty()


@contextmanager
def _written_at_the_end(board: Board) -> Iterator[None]:
    try:
        yield
    except Interrupted as stop:
        raise type(stop)(f"{stop.reason}; the same command goes on with what is left") from None
    finally:
        board.outcomes = board.sweep.outcomes()
        board.sweep.write(board.outcomes)


def _carrier(launcher: str, settings: LauncherConfig, sweep: Sweep) -> Callable[[Source], None]:
    """What carries out the trials of a queue, once it is certain that it can.

    Raises:
        ConfigError: it can not.
    """
    if launcher == "basic":
        return _one_after_the_other
    if (started := launched()) is not None:
        problem = f"{started.by} has started processes that train together, one trial after the other"
        raise ConfigError([Fault("hydra/launcher", launcher, problem, "hydra/launcher=basic")])
    if launcher == "process":
        return partial(process.carry_out_all, free=process.places(settings, sweep.trials))
    from vitrine.sweeps import cluster

    return partial(cluster.carry_out_all, scheduler=cluster.scheduler(launcher, settings, sweep))


def _one_after_the_other(queue: Source) -> None:
    """``hydra/launcher=basic``: in this process."""
    while not queue.done:
        if (trial := queue.ask()) is None:
            time.sleep(0.2)
            continue
        try:
            queue.tell(trial, carry_out(trial, time_from=command_began()))
        except Busy:
            queue.put_back(trial)
