"""metrics.csv as it is written while a run is trained."""

import csv
from collections.abc import Mapping
from typing import Any

from vitrine.errors import RunError
from vitrine.files import write_text
from vitrine.runs.record import FIRST_COLUMNS, RunRecord


class MetricsFile:
    """metrics.csv of a run, appended to row by row. A column that appears later is added to the rows before.

    Args:
        record: the run; where it has the file, rows up to ``step`` are kept and later ones dropped, since a run that
            goes on from a checkpoint makes them again.
        step: optimiser steps done so far.
    """

    def __init__(self, record: RunRecord, step: int = 0) -> None:
        self._path = record.path / "metrics.csv"
        self._rows: list[dict[str, Any]] = [dict(row) for row in record.history() if row["step"] <= step]
        for row in self._rows:
            row.update(epoch=int(row["epoch"]), step=int(row["step"]))
        self._columns = list(FIRST_COLUMNS)
        self._rewrite()

    @property
    def seconds(self) -> float:
        """Training time that the kept rows have seen."""
        return float(self._rows[-1]["seconds"]) if self._rows else 0.0

    def append(self, row: Mapping[str, float]) -> None:
        """Add a row; ``epoch``, ``step`` and ``seconds`` must be in it.

        Raises:
            RunError: it can't be written, as on a full disk.
        """
        self._rows.append(dict(row))
        try:
            if set(row) <= set(self._columns):
                with self._path.open("a", newline="", encoding="utf-8") as file:
                    csv.DictWriter(file, self._columns).writerow(row)
            else:
                self._rewrite()
        except OSError as error:
            raise RunError(f"cannot write {self._path}: {error.strerror}") from error

    def _rewrite(self) -> None:
        names = dict.fromkeys(name for row in self._rows for name in row)
        self._columns = list(dict.fromkeys([*FIRST_COLUMNS, *names]))
        lines = [",".join(self._columns)]
        lines += [",".join(str(row.get(name, "")) for name in self._columns) for row in self._rows]
        write_text(self._path, "\r\n".join(lines) + "\r\n")
