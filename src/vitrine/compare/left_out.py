"""Trials of compared sweeps that a filter left out: the values of keys may have been chosen by their results."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from vitrine.compare.load import RunResult
from vitrine.compare.run_groups import MAX_LISTED
from vitrine.compare.table import ConfigurationRow, Table, configuration_key
from vitrine.config.sweep import DATA_KEYS
from vitrine.runs.status import FAILED
from vitrine.text import listed, plural


@dataclass(frozen=True)
class LeftOut:
    """What the sweeps of a table hold beside it, on the same data.

    Attributes:
        configurations: number of configurations without a row.
        rows: labels of rows that lack seeds or folds.
    """

    configurations: int = 0
    rows: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: Table, runs: Sequence[RunResult]) -> "LeftOut":
        """Look for rows and seeds of the table's sweeps among ``runs``, which a filter left out."""
        if not runs or len(table.rows) < 2:
            return cls()
        compared = [run for row in table.rows for run in row.runs.values()]
        sweeps = {run.parent for run in compared if run.parent is not None and (run.parent / "sweep.json").is_file()}
        data = set(map(_data, compared))
        left = {
            configuration_key(run.config, run.data)
            for run in runs
            if run.status in ("finished", *FAILED) and run.parent in sweeps and _data(run) in data
        }
        of_rows = {
            row.label: {configuration_key(run.config, run.data) for run in row.runs.values()} for row in table.rows
        }
        lacking = tuple(label for label, configurations in of_rows.items() if configurations & left)
        return cls(len(left.difference(*of_rows.values())), lacking)

    def withheld(self, *rows: ConfigurationRow) -> str:
        """Return why there is no verdict about ``rows``; empty if all of their seeds and folds are compared."""
        return "seeds or folds that ran are left out" if {row.label for row in rows} & {*self.rows} else ""

    @property
    def caveats(self) -> list[str]:
        """What this means, in sentences."""
        found = []
        if self.configurations:
            found.append(
                f"{plural(self.configurations, 'configuration')} of the sweep "
                f"{'is' if self.configurations == 1 else 'are'} left out: verdicts, intervals and p-values of "
                "differences allow for as many more rows, in case those shown were chosen by their results"
            )
        if self.rows:
            found.append(
                f"seeds or folds that ran are left out: {listed(self.rows, MAX_LISTED)}; they may have been chosen by "
                "their results, so there is no verdict"
            )
        return found


def _data(run: RunResult) -> Hashable:
    return tuple(str(run.config.get(key)) for key in DATA_KEYS)
