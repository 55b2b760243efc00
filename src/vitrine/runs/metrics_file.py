"""Write metrics.csv during training, row by row; a resumed run continues the file."""

import csv
import io
from collections.abc import Mapping
from typing import Any

from vitrine.files import naming_failed_write, write_text
from vitrine.runs.record import FIRST_COLUMNS, MAX_HISTORY, RunRecord
from vitrine.text import report
from vitrine.untrusted import MAX_VALUES

TRAINING_SHARE = 0.9  # of the limits; only rows of validation are added beyond
VALUE_BYTES = 64  # at most, of a value or of a column's name


class MetricsFile:
    """Append rows to the metrics.csv of a run. A new column is added to the earlier rows, too.

    Args:
        record: the run. If the file exists, rows up to ``step`` are kept; later rows are dropped, since a resumed run
            writes them again.
        step: optimiser steps completed.
    """

    def __init__(self, record: RunRecord, step: int = 0) -> None:
        self._record, self._path = record, record.path / "metrics.csv"
        self._rows: list[dict[str, Any]] = []
        for row in record.history():
            if row["step"] <= step:
                epoch = int(row.get("epoch", self._epoch))
                self._rows.append({**row, "epoch": epoch, "step": int(row["step"])})
        self._columns = list(FIRST_COLUMNS)
        self._values = sum(map(len, self._rows))
        self._warned = False
        self._rewrite()

    @property
    def seconds(self) -> float:
        """Training time at the last row kept, in seconds."""
        return float(self._rows[-1]["seconds"]) if self._rows else 0.0

    def append(self, row: Mapping[str, float]) -> None:
        """Append a row, which must have ``step`` and ``seconds``.

        One without ``epoch``, as callbacks of Lightning log them, gets that of the row before. One that would make the
        file longer than :meth:`RunRecord.history` reads is left out; rows without validation metrics earlier.

        Raises:
            RunError: the file cannot be written, or another process has taken the run over; ``DiskFull``: for lack of
                space.
        """
        self._record.check_claim()
        row = {"epoch": self._epoch, **row}
        if not self._has_room(row):
            return
        self._rows.append(row)
        self._values += len(row)
        with naming_failed_write(self._path):
            if set(row) <= set(self._columns):
                with self._path.open("a", newline="", encoding="utf-8") as file:
                    csv.DictWriter(file, self._columns).writerow(row)
                    self._size = file.tell()
            else:
                self._rewrite()

    def _has_room(self, row: Mapping[str, float]) -> bool:
        """Whether the file can take ``row``; warns the first time that it cannot."""
        share = 1.0 if any(name.startswith("val/") for name in row) else TRAINING_SHARE
        added = len(row) * VALUE_BYTES + len(set(row) - set(self._columns)) * len(self._rows)
        if self._values + len(row) <= share * MAX_VALUES and self._size + added <= share * MAX_HISTORY:
            return True
        if not self._warned:
            self._warned = True
            advice = "with a higher trainer.log_every_n_steps it would have fewer"
            report(f"{self._path} is nearly full, and gets no more rows of training; {advice}")
        return False

    @property
    def _epoch(self) -> int:
        return int(self._rows[-1]["epoch"]) if self._rows else 1

    def _rewrite(self) -> None:
        names = dict.fromkeys(name for row in self._rows for name in row)
        self._columns = list(dict.fromkeys([*FIRST_COLUMNS, *names]))
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(self._rows)
        write_text(self._path, text.getvalue())
        self._size = self._path.stat().st_size
