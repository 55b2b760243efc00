"""Searches whose trials are not trained: a formula of their suggested values gives their metrics.

All else is real: overrides, Optuna, the study on disk, locks and run folders. As a program it is a process of such a
search, to be killed or to share the search with another one: python searching.py FOLDER SECONDS OVERRIDE...
Without an interval among the overrides it is a sweep.
"""

import math
import sys
import time
from pathlib import Path

from vitrine.command.compose import points
from vitrine.config.serialize import to_plain
from vitrine.errors import Diverged
from vitrine.runs import RunRecord, provenance
from vitrine.runs.lock import RunLocked
from vitrine.runs.status import DONE
from vitrine.sweeps.queue import GridQueue
from vitrine.sweeps.search import Search, plan_search
from vitrine.sweeps.sweep import Sweep
from vitrine.sweeps.trial import locked, read_result

TWO = ["optimizer.lr=tag(log,interval(1e-4,1e-2))", "optimizer.weight_decay=tag(log,interval(1e-3,1))"]


def search(folder, *overrides):
    """The search of a command with these overrides, under ``folder``."""
    (point,) = points("train", [f"paths.output_dir={folder}", *overrides], multirun=True)
    return Search(point, plan_search(point))


def accuracy(config):
    """Best at lr = 1e-3, weight decay = 0.1; slightly different for each seed."""
    off = abs(math.log10(config.optimizer.lr) + 3) + 0.1 * abs(math.log10(config.optimizer.weight_decay) + 1)
    return 0.9 - 0.1 * off - 0.001 * config.seed


def train(trial, metrics_of=accuracy, seconds=0.0):
    """Write the run folder of a trained trial."""
    with locked(trial):
        if read_result(trial.folder).status in DONE:
            return
        with (trial.folder.parent / "trained.txt").open("a") as file:
            file.write(f"{trial.folder.name}\n")
        trial.folder.mkdir(exist_ok=True)
        record = RunRecord(trial.folder)
        record.start()
        record.write_config(to_plain(trial.config))
        time.sleep(seconds)
        metrics = metrics_of(trial.config)
        if isinstance(metrics, str):
            record.end("failed", metrics)
            return
        if isinstance(metrics, Diverged):
            code, _ = provenance.code_state()
            record.update(versions=provenance.versions(), code=code)
            record.end_with(metrics)
            return
        metrics = metrics if isinstance(metrics, dict) else {"val/acc": metrics}
        record.write_metrics({"val/loss": 1.0, "test/acc": 0.5, "train_seconds": 1.0} | metrics)
        record.update(parameters=1000 * trial.config.model.depth, speed={"images_per_second": 500.0})
        record.end("finished")


def run(queue, metrics_of=accuracy, seconds=0.0, most=math.inf):
    """Train the rest of a search, or at most ``most`` trials of it."""
    while not queue.done and most > 0:
        if (trial := queue.ask()) is None:
            time.sleep(0.05)
            continue
        queue.started(trial)
        try:
            train(trial, metrics_of, seconds)
        except RunLocked:
            queue.put_back(trial)
        else:
            queue.tell(trial, read_result(trial.folder))
            most -= 1
    return queue


def grid(folder, *overrides):
    """The trials of a sweep that is not a search."""
    return GridQueue(Sweep.plan(points("train", [f"paths.output_dir={folder}", *overrides], multirun=True)).trials)


if __name__ == "__main__":
    make = search if any(word.startswith("sweep=optuna") or "interval(" in word for word in sys.argv) else grid
    run(make(Path(sys.argv[1]), *sys.argv[3:]), seconds=float(sys.argv[2]))
