"""How to read a table: sentences that stand below it."""

import math
from collections.abc import Sequence
from pathlib import Path

from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.compare.table import ConfigurationRow, Table, is_group, repetitions_of
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
    changed = [
        f"also changed by {listed(behind)}: {listed(keys, MAX_KEYS)}"
        for behind, keys in confounded_keys(table).items()
        if is_set_by(behind, table)
    ]
    return [note for note in (_about_means(table, means), method, *changed) if note]


def _about_means(table: Table, means: Sequence[ConfidenceInterval]) -> str:
    """Say what ± and brackets are; empty if no mean has an interval."""
    if all(math.isnan(mean.low) for mean in means):
        return ""
    text = f"± is half the width of the 95 % confidence interval of the mean over {repetitions_of(table.rows)}"
    symmetric = all(mean.is_symmetric for mean in means if not math.isnan(mean.low))
    brackets = "" if symmetric else "; where it is not symmetric, brackets hold its bounds"
    return f"{text} (Student's t), not a standard deviation{brackets}"


def confounded_keys(table: Table) -> dict[tuple[str, ...], list[str]]:
    """Return the keys that differ only together with columns, by these columns, each as ``key (value and value)``."""
    found: dict[tuple[str, ...], list[str]] = {}
    for key, values in table.confounded.items():
        found.setdefault(tuple(table.columns_behind(key)), []).append(f"{key} ({listed(values, MAX_VALUES)})")
    return found


def is_set_by(columns: Sequence[str], table: Table) -> bool:
    """Whether keys that differ only together with these columns do so because of them.

    It is so for choices of config groups if one command trained all of them: its trials have all else in common. Those
    of another command in the same folder may differ in more.
    """
    trained: dict[tuple[Path | None, str], set[tuple[str, ...]]] = {}
    for row in table.rows:
        for run in row.runs.values():
            command = str(run.facts.get("command", ""))
            if {"-m", "--multirun"} & set(command.split()):
                trained.setdefault((run.parent, command), set()).add(_choices(row, columns))
    return all(map(is_group, columns)) and {_choices(row, columns) for row in table.rows} in trained.values()


def _choices(row: ConfigurationRow, columns: Sequence[str]) -> tuple[str, ...]:
    return tuple(row.values[column] for column in columns)
