"""How to read a table: sentences that stand below it."""

from collections.abc import Sequence

from vitrine.compare.load import RunResult
from vitrine.compare.table import Table, is_group
from vitrine.text import listed

MAX_KEYS = 12  # in a sentence; of further ones, their number
MAX_VALUES = 4


def notes(table: Table) -> list[str]:
    """Return the sentences below a table."""
    runs = [run for row in table.rows for run in row.runs.values()]
    return [
        f"also changed by {listed(behind)}: {listed(keys, MAX_KEYS)}"
        for behind, keys in confounded_keys(table).items()
        if is_set_by(behind, runs)
    ]


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
