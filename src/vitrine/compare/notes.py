"""How to read a table: sentences that stand below it."""

import math
from collections.abc import Sequence

from vitrine.compare.load import RunResult
from vitrine.compare.statistics import ConfidenceInterval
from vitrine.compare.table import Table, is_group
from vitrine.text import listed

MAX_KEYS = 12  # in a sentence; of further ones, their number
MAX_VALUES = 4


def notes(table: Table, means: Sequence[ConfidenceInterval], method: str) -> list[str]:
    """Return the sentences below a table: what its means are, how they were compared, and what else differs.

    Args:
        table: the rows.
        means: of the rows.
        method: the test behind the differences; empty if nothing was tested.
    """
    runs = [run for row in table.rows for run in row.runs.values()]
    changed = [
        f"also changed by {listed(behind)}: {listed(keys, MAX_KEYS)}"
        for behind, keys in confounded_keys(table).items()
        if is_set_by(behind, runs)
    ]
    return [note for note in (_about_means(table, means), method, *changed) if note]


def _about_means(table: Table, means: Sequence[ConfidenceInterval]) -> str:
    """Say what ± and brackets are; empty if no mean has an interval."""
    if all(math.isnan(mean.low) for mean in means):
        return ""
    text = f"± is half the width of the 95 % confidence interval of the mean over {table.rows[0].repetitions}s"
    halves = [(mean.high - mean.mean, mean.mean - mean.low) for mean in means if not math.isnan(mean.low)]
    symmetric = all(math.isclose(above, below, rel_tol=1e-6, abs_tol=1e-12) for above, below in halves)
    brackets = "" if symmetric else "; where it is not symmetric, brackets hold its bounds"
    return f"{text} (Student's t), not a standard deviation{brackets}"


def confounded_keys(table: Table) -> dict[tuple[str, ...], list[str]]:
    """Return the keys that differ only together with columns, by these columns, each as ``key (value and value)``."""
    found: dict[tuple[str, ...], list[str]] = {}
    for key, values in table.confounded.items():
        found.setdefault(tuple(table.columns_behind(key)), []).append(f"{key} ({listed(values, MAX_VALUES)})")
    return found


def is_set_by(columns: Sequence[str], runs: Sequence[RunResult]) -> bool:
    """Whether keys that differ only together with these columns do so because of them.

    It is so for choices of config groups within one sweep, whose trials have all else in common.
    """
    commands = [str(run.facts.get("command", "")) for run in runs]
    sweeps = {run.parent or command for run, command in zip(runs, commands, strict=True)}  # at W&B, they have no folder
    are_trials = all({"-m", "--multirun"} & set(command.split()) for command in commands)
    return len(sweeps) == 1 and are_trials and all(map(is_group, columns))
