"""Decisions whose trials are not trained, like the searches of searching.py.

As a program it is a process of such a decision, to be killed or to share it with another one: python deciding.py FOLDER
SECONDS OVERRIDE...
"""

import sys
from pathlib import Path

from helpers.searching import run
from vitrine.command.compose import points
from vitrine.runs import RunRecord
from vitrine.sweeps.decide import SeedQueue, plan_decision
from vitrine.sweeps.trial import read_result

__all__ = ["FOUR", "THREE", "decide", "finish", "read_result"]

THREE = ["position=learned,rope,none"]
FOUR = ["position=learned,rope,none,sincos2d"]


def decide(folder, *overrides):
    """The queue of a command with these overrides, under ``folder``."""
    arguments = [f"paths.output_dir={folder}", "sweep=decide", *overrides]
    found = points("train", arguments, multirun=True)
    return SeedQueue(found, plan_decision(found))


def finish(trial, metrics, *, images):
    """Write the record of a trained trial."""
    record = RunRecord(trial.folder)
    record.start()
    record.update(images={"train": 10, "val": images, "test": images})
    record.write_metrics(metrics)
    record.end("finished")


def _accuracy(config):
    return 0.9 + 0.001 * (7 * config.seed % 5) + (0.01 if config.model.position == "rope" else 0.0)


if __name__ == "__main__":
    run(decide(Path(sys.argv[1]), *sys.argv[3:]), _accuracy, seconds=float(sys.argv[2]))
