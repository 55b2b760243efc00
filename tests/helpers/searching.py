"""Searches whose trials are not trained: what they reach is a formula of what was chosen for them.

All else is as it is: the command's words, Optuna, the study on disk, the locks and the run folders. As a program it is
a process of such a search, to be killed or to share the search with another: python searching.py FOLDER SECONDS WORD...
"""

import math
import sys
import time
from pathlib import Path

from vitrine.command.compose import points
from vitrine.config.serialize import to_plain
from vitrine.runs import RunRecord
from vitrine.sweeps.search import Search, folder_of
from vitrine.sweeps.trial import OVER, Busy, held, outcome

TWO = ["optimizer.lr=tag(log,interval(1e-4,1e-2))", "optimizer.weight_decay=tag(log,interval(1e-3,1))"]


def search(folder, *words):
    """The search that these words ask for, under ``folder``."""
    (point,) = points("train", [f"paths.output_dir={folder}", *words], multirun=True)
    return Search(point, folder_of(point))


def accuracy(config):
    """Best at lr = 1e-3, weight decay = 0.1; a little by the seed."""
    off = abs(math.log10(config.optimizer.lr) + 3) + 0.1 * abs(math.log10(config.optimizer.weight_decay) + 1)
    return 0.9 - 0.1 * off - 0.001 * config.seed


def train(trial, reach=accuracy, seconds=0.0):
    """Leave the run folder that a training would."""
    with held(trial):
        if outcome(trial.folder).status in OVER:
            return
        with (trial.folder.parent / "trained.txt").open("a") as file:
            file.write(f"{trial.folder.name}\n")
        trial.folder.mkdir(exist_ok=True)
        record = RunRecord(trial.folder)
        record.start()
        record.write_config(to_plain(trial.config))
        time.sleep(seconds)
        reached = reach(trial.config)
        if isinstance(reached, str):
            record.end("failed", reached)
            return
        metrics = reached if isinstance(reached, dict) else {"val/acc": reached}
        record.write_metrics({"val/loss": 1.0, "test/acc": 0.5, "train_seconds": 1.0} | metrics)
        record.update(parameters=1000 * trial.config.model.depth, speed={"images_per_second": 500.0})
        record.end("finished")


def run(one, reach=accuracy, seconds=0.0, most=math.inf):
    """Carry out what is left of a search, or ``most`` trials of it."""
    while not one.done and most > 0:
        if (trial := one.ask()) is None:
            time.sleep(0.05)
            continue
        try:
            train(trial, reach, seconds)
        except Busy:
            one.put_back(trial)
        else:
            one.tell(trial, outcome(trial.folder))
            most -= 1
    return one


if __name__ == "__main__":
    run(search(Path(sys.argv[1]), *sys.argv[3:]), seconds=float(sys.argv[2]))
