"""A comparison's table as CSV: its numbers as they are, in the units of metrics.json, for programs."""

import csv
import io
import math
from pathlib import Path
from typing import Any

from vitrine.compare.across import AcrossComparison
from vitrine.compare.comparison import Comparison, RowSummary, range_of
from vitrine.compare.costs import FLOPS, PARAMETERS
from vitrine.compare.findings import BaselineComparison
from vitrine.compare.table import ConfigurationRow
from vitrine.files import check_target, naming_failed_write, write_text
from vitrine.text import printable, without_formula

MEMORY = ("peak_memory", "peak_gpu_memory")  # bytes, the largest of the row's runs
MARK = b",metric,seeds,runs,mean,"  # in the heading since the first version


def check_table(path: Path) -> None:
    """Raise RunError for a file that cannot be written, is not named as CSV, or exists and holds no such table."""
    check_target(path, (".csv",), "table", MARK)


def write_csv(compared: Comparison | AcrossComparison, path: Path) -> None:
    """Write :func:`csv_text` to ``path``, atomically.

    Raises:
        RunError: the file cannot be written.
    """
    check_table(path)
    with naming_failed_write(path):
        write_text(path, csv_text(compared))


def csv_text(compared: Comparison | AcrossComparison) -> str:
    """Return a heading, and a line for each row of the table in its order; across a key, for each of its values.

    Accuracies and their differences are in [0, 1], losses in nats, times in seconds, memory in bytes. A number that the
    table does not have, or that is not one number, is an empty cell.
    """
    if isinstance(compared, AcrossComparison):
        lines = [
            {compared.key: value, **row.values, **_numbers(found, row.summaries[value])}
            for value, found in compared.comparisons.items()
            for row in compared.rows
            if value in row.summaries
        ]
    else:
        lines = [_numbers(compared, summary) for summary in compared.summaries]
    text, names = io.StringIO(), list(dict.fromkeys(name for line in lines for name in line))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_cell, names))
    writer.writerows([_cell(line.get(name)) for name in names] for line in lines)
    return text.getvalue()


def _numbers(compared: Comparison, summary: RowSummary) -> dict[str, Any]:
    """The cells of a row by their headings, which are the same for all rows."""
    mean, row = summary.interval, summary.row
    tested = compared.findings.comparison_of(row)
    found: dict[str, Any] = {name: row.typed(name) for name in compared.table.columns} or {"configuration": row.label}
    found |= {
        "metric": compared.metric.name,
        "seeds": mean.count,
        "runs": len(summary.values),
        "mean": mean.mean,
        "low": mean.low,
        "high": mean.high,
        "best": summary.best,
        "worst": summary.worst,
        **_against_baseline(compared, row, tested),
        "parameters": PARAMETERS.value_of(summary),
        "flops_per_image": FLOPS.value_of(summary),
        "images_per_second": summary.images_per_second,
        "train_seconds": summary.train_seconds,
        **{name: (range_of(list(row.runs.values()), name) or (None, None))[1] for name in MEMORY},
    }
    if compared.target is not None:
        reached = summary.seconds_to_target
        found |= {"seconds_to_target": reached and reached.mean, "reached_target": summary.reached_target}
    return found


def _against_baseline(compared: Comparison, row: ConfigurationRow, tested: BaselineComparison | None) -> dict[str, Any]:
    """What the table says of the difference, and whether the row may be the best; nothing in a table of one row."""
    if not compared.findings.comparisons:
        return {}
    names = ("difference", "difference_low", "difference_high", "p_corrected", "verdict")
    against: dict[str, Any] = {"is_baseline": row is compared.findings.baseline} | dict.fromkeys(names)
    if tested is not None:
        found = tested.difference
        numbers = (found.mean, found.low, found.high, found.corrected, tested.kind)
        against |= dict(zip(names, numbers, strict=True))
    candidates = compared.findings.candidates
    return against | {"may_be_best": row in candidates if candidates else None}


def _cell(value: Any) -> Any:
    """Text that no spreadsheet computes; no NaN and no infinity."""
    if isinstance(value, str):
        return without_formula(printable(value))
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, int) or (value is not None and math.isfinite(value)) else ""
