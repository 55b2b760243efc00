"""``python train.py -m``: the trials of a sweep carried out by the launcher that was chosen."""

import sys
import time
from collections.abc import Sequence

from vitrine.composition import Point
from vitrine.config.multirun import CLUSTERS, LauncherConfig
from vitrine.errors import Interrupted
from vitrine.sweeps import process
from vitrine.sweeps.board import Board, show_end
from vitrine.sweeps.queue import Queue
from vitrine.sweeps.sweep import Sweep
from vitrine.sweeps.trial import Busy, Trial, carry_out


def run(points: Sequence[Point], launcher: str) -> int:
    """Carry out what is left of the sweep that ``points`` make; gives how many of its trials failed.

    Raises:
        RunError: its folder is of another version, or cannot be written.
        ConfigError: the launcher is asked for more than this machine has.
        Interrupted: a signal asked to stop; the same command goes on.
    """
    sweep = Sweep.plan(points)
    apart = launcher != "basic"
    with Board(sweep, live=apart and sys.stdout.isatty()) as board:
        queue = Queue(sweep.trials, board.begins, board.ended)
        try:
            _carry_out(queue, launcher, points[0].config.launcher, sweep.trials)
        except Interrupted:
            board.outcomes = sweep.outcomes()
            sweep.write(board.outcomes)
            raise Interrupted("interrupted; the same command goes on with what is left") from None
    show_end(sweep, board.outcomes)
    return sum(came.status == "failed" for came in board.outcomes)


def _carry_out(queue: Queue, launcher: str, settings: LauncherConfig, trials: list[Trial]) -> None:
    if queue.done:
        return
    if launcher == "process":
        process.carry_out_all(queue, settings, trials)
    elif launcher in CLUSTERS:
        from vitrine.sweeps import cluster  # what it imports takes a while

        cluster.carry_out_all(queue, launcher, settings, trials[0].folder.parent)
    else:
        _one_after_the_other(queue)


def _one_after_the_other(queue: Queue) -> None:
    """``hydra/launcher=basic``: in this process."""
    while not queue.done:
        if (trial := queue.ask()) is None:
            time.sleep(0.2)
            continue
        try:
            queue.tell(trial, carry_out(trial))
        except Busy:
            queue.put_back(trial)
