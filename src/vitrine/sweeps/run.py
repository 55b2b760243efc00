"""``python train.py -m``: the trials of a sweep carried out by the launcher that was chosen."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from vitrine.command.compose import Point
from vitrine.config.sweep import LauncherConfig
from vitrine.distributed.launch import launched
from vitrine.distributed.rendezvous import Ranks, together
from vitrine.errors import ConfigError, Fault, Interrupted, OutOfTime
from vitrine.runs import provenance
from vitrine.sweeps.launchers import process
from vitrine.sweeps.progress import Board, show_end
from vitrine.sweeps.queue import Queue, Source
from vitrine.sweeps.sweep import Sweep
from vitrine.sweeps.trial import OVER, Busy, Trial, carry_out, follow, no_time_for_another


def run(points: Sequence[Point], launcher: str) -> int:
    """Carry out what is left of the sweep that ``points`` make; gives how many of its trials failed.

    Raises:
        RunError: its folder is of another version, or cannot be written.
        ConfigError: the launcher is asked for more than there is.
        Interrupted: a signal asked to stop; the same command goes on.
    """
    with together(process_group=False) as ranks:
        if ranks.rank > 0:
            follow(ranks, provenance.process_started_at())
            return 0
        try:
            return _lead(points, launcher, ranks)
        finally:
            ranks.send(None)


def _lead(points: Sequence[Point], launcher: str, ranks: Ranks) -> int:
    """Carry out the sweep as rank 0, or alone."""
    if points[0].space:
        return _search(points[0], launcher, ranks)
    sweep = Sweep.plan(points)
    outcomes = sweep.outcomes()
    left = [trial for trial, came in zip(sweep.trials, outcomes, strict=True) if came.status not in OVER]
    carry_out_all = _carrier(launcher if left else "basic", points[0].config.launcher, sweep, ranks)
    with Board(sweep, outcomes, live=_is_live(launcher)) as board, _to_the_end(board):
        carry_out_all(Queue(left, board.begins, board.ended))
    show_end(sweep, board.outcomes)
    return sum(came.status not in OVER for came in board.outcomes)


def _search(point: Point, launcher: str, ranks: Ranks) -> int:
    from vitrine.sweeps.ranking import conclude, described
    from vitrine.sweeps.search import Search, folder_of

    folder = folder_of(point)
    one = Trial(0, point.config.run, {}, folder)  # what each of them needs of a machine
    carry_out_all = _carrier(launcher, point.config.launcher, Sweep(folder, [one], [], []), ranks)
    search = Search(point, folder)
    sweep = replace(search.sweep, more=lambda: described(search))
    with Board(sweep, sweep.outcomes(), live=_is_live(launcher)) as board:
        search.begins, search.ended = board.begins, board.ended
        with _to_the_end(board):
            carry_out_all(search)
    return conclude(search)


def _is_live(launcher: str) -> bool:
    return launcher != "basic" and sys.stdout.isatty()


@contextmanager
def _to_the_end(board: Board) -> Iterator[None]:
    """Say how to go on where it is stopped, and write down what became of the trials."""
    try:
        yield
    except Interrupted as stop:
        raise type(stop)(f"{stop.reason}; the same command goes on with what is left") from None
    except KeyboardInterrupt:
        raise Interrupted(f"{Interrupted.reason}; the same command goes on with what is left") from None
    finally:
        board.conclude()


def _carrier(launcher: str, settings: LauncherConfig, sweep: Sweep, ranks: Ranks) -> Callable[[Source], None]:
    """What carries out the trials of a queue, once it is certain that it can.

    Raises:
        ConfigError: it can not.
    """
    if launcher == "basic":
        return partial(_one_after_the_other, ranks=ranks)
    if (started := launched()) is not None:
        problem = f"{started.by} has started ranks that train each trial together"
        raise ConfigError([Fault("hydra/launcher", launcher, problem, "hydra/launcher=basic")])
    os.environ[provenance.COMMAND] = provenance.command()  # what the processes of trials record
    if launcher == "process":
        return partial(process.carry_out_all, free=process.places(settings, sweep.trials))
    from vitrine.sweeps.launchers import slurm as cluster

    return partial(cluster.carry_out_all, scheduler=cluster.scheduler(launcher, settings, sweep))


def _one_after_the_other(queue: Source, ranks: Ranks) -> None:
    """``hydra/launcher=basic``: in this process."""
    time_from = provenance.process_started_at()
    before: list[Trial] = []
    while not queue.done:
        if no_time_for_another(before, time_from):
            raise OutOfTime
        if (trial := queue.ask()) is None:
            time.sleep(0.2)
            continue
        try:
            queue.tell(trial, carry_out(trial, time_from=time_from, ranks=ranks))
            before.append(trial)
        except Busy:
            queue.put_back(trial)
