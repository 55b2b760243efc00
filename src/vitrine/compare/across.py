"""Compare configurations under each value of a key, such as on each data set: a column for each value."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitrine.compare.comparison import Comparison, RowSummary, compare
from vitrine.compare.load import RunResult, RunResults, as_typed
from vitrine.compare.metric import Metric, choose_metric
from vitrine.compare.table import ConfigurationRow, Table, counted, label_of, tabulate
from vitrine.errors import RunError
from vitrine.text import listed

Place = tuple[str, ...]  # of a row: its values in all columns

MARKS = {"better": "▲", "worse": "▼"}  # of verdicts, in cells


@dataclass(frozen=True)
class AcrossRow:
    """A configuration, with its numbers under each value of the key.

    Attributes:
        label: its name in a sentence.
        values: its value in each column.
        summaries: its numbers, by value of the key; there are none where it has no finished run.
    """

    label: str
    values: Mapping[str, str]
    summaries: Mapping[str, RowSummary]


@dataclass(frozen=True)
class AcrossComparison:
    """Comparisons by value of a key, and the rows that they share.

    Attributes:
        key: the key, by the name of its column in the table of all runs.
        metric: what rows are compared by.
        columns: names of the keys in which rows differ.
        rows: in the order of their runs.
        baseline: the row that others are compared with.
        comparisons: by value of the key, each on its own images.
        left_out: values under which no run is finished, in sentences.
    """

    key: str
    metric: Metric
    columns: list[str]
    rows: list[AcrossRow]
    baseline: AcrossRow
    comparisons: Mapping[str, Comparison]
    left_out: list[str]

    def verdict(self, row: AcrossRow, value: str) -> str:
        """Return what a row counts as against the baseline under a value; empty of the baseline, and if it has none."""
        summary = row.summaries.get(value)
        tested = None if summary is None else self.comparisons[value].findings.comparison_of(summary.row)
        return "" if tested is None else tested.kind

    def may_be_best(self, row: AcrossRow, value: str) -> bool:
        """Whether a row may be the best under a value, with 95 % confidence; false where that cannot be determined."""
        summary = row.summaries.get(value)
        return summary is not None and summary.row in self.comparisons[value].findings.candidates

    @property
    def sentences(self) -> list[str]:
        """A sentence for each row but the baseline: under which values it is better, worse, or neither."""
        found = []
        for row in self.rows:
            by_kind: dict[str, list[str]] = {}
            for value in self.comparisons:
                if kind := self.verdict(row, value):
                    by_kind.setdefault(kind, []).append(value)
            kinds = [f"{kind} with {self.key}={' and '.join(values)}" for kind, values in by_kind.items()]
            found += [f"{row.label} against {self.baseline.label}: {'; '.join(kinds)}"] if kinds else []
        return found

    @property
    def notes(self) -> list[str]:
        """How to read the table: what its cells are, then the notes of all comparisons."""
        counts = {summary.interval.count for row in self.rows for summary in row.summaries.values()}
        verdicts = {self.verdict(row, value) for row in self.rows for value in self.comparisons}
        marks = listed([f"{mark} {kind}" for kind, mark in MARKS.items() if kind in verdicts])
        signs = [f"{marks} than {self.baseline.label}"] if marks else []
        if any(self.may_be_best(row, value) for row in self.rows for value in self.comparisons):
            untold = [value for value, found in self.comparisons.items() if not found.findings.candidates]
            where = f", which cannot be determined with {self.key}={' and '.join(untold)}" if untold else ""
            signs.append(f"bold, and * in a terminal: may be the best, with 95 % confidence (Hsu, 1984){where}")
        about = [f"{self.metric.heading}, mean over {counted(counts, self._compared_rows)}", *signs]
        if signs:
            about.append("each column on its own, without correction for their number")
        return ["; ".join(about), *self._gathered({value: found.notes for value, found in self.comparisons.items()})]

    @property
    def caveats(self) -> list[str]:
        """What weakens the findings: the caveats of all comparisons."""
        doubts = {value: [*_failures(found), *found.caveats] for value, found in self.comparisons.items()}
        return [*self.left_out, *self._gathered(doubts)]

    @property
    def _compared_rows(self) -> list[ConfigurationRow]:
        return [summary.row for row in self.rows for summary in row.summaries.values()]

    def _gathered(self, lines: Mapping[str, Sequence[str]]) -> list[str]:
        """Each line once, after the values that it is about, unless these are all."""
        about: dict[str, list[str]] = {}
        for value, some in lines.items():
            for line in some:
                about.setdefault(line, []).append(value)
        return [
            line if len(values) == len(lines) else f"{self.key}={' and '.join(values)}: {line}"
            for line, values in about.items()
        ]


def compare_across(
    results: RunResults, key: str, *, metric: str | None = None, baseline: str | None = None, **options: Any
) -> AcrossComparison:
    """Compare the finished runs among ``results`` separately under each value of ``key``.

    Rows are the configurations that differ under some value. What differs only between values, such as the number of
    epochs on each data set, makes no rows.

    Args:
        results: runs, and damaged runs.
        key: a column of the table of all runs.
        metric: name of the metric; by default the one that :func:`vitrine.compare.comparison.compare` takes, under each
            value if it is the same, else for all.
        baseline: the row that others are compared with; by default the first that ran under every value.
        options: further options of :func:`vitrine.compare.comparison.compare`.

    Raises:
        RunError: no run is finished, runs do not differ in ``key``, no row or not the one named ran under every value,
            or a comparison is refused.
    """
    finished = [run for run in results.runs if run.status == "finished"]
    if not finished:
        compare(results)  # raises, with what there is instead
    everything = tabulate(finished)
    key = everything.column(key)
    values_of = {run.name: row.values for row in everything.rows for run in row.runs.values()}
    parts, lacking = _by_value(results, values_of, key)

    def compared(value: str, runs: RunResults, metric: str | None, named: str | None = None) -> Comparison:
        try:
            return compare(runs, metric=metric, baseline=named, **options)
        except RunError as error:
            raise RunError(f"{key}={value}: {error}") from None

    diverged = [value for value, runs in parts.items() if _all_diverged(runs, metric)]
    if len(diverged) < len(parts):
        parts = {value: runs for value, runs in parts.items() if value not in diverged}
    comparisons = {value: compared(value, runs, metric) for value, runs in parts.items()}
    chosen = next(iter(comparisons.values())).metric
    if any(found.metric != chosen for found in comparisons.values()):
        chosen = choose_metric(finished, None)
        comparisons = {value: compared(value, runs, chosen.name) for value, runs in parts.items()}
    columns = list(dict.fromkeys(column for found in comparisons.values() for column in found.table.columns))
    rows = {value: _by_place(found.table, columns, values_of) for value, found in comparisons.items()}
    first = {_place_of(found.findings.baseline, rows[value]) for value, found in comparisons.items()}
    reference = first.pop() if baseline is None and len(first) == 1 else _baseline(rows, columns, key, baseline)
    for value, some in rows.items():
        row = some[reference]
        if comparisons[value].findings.baseline is not row:
            runs = _with_first(parts[value], row)
            comparisons[value] = compared(value, runs, chosen.name, row.label if baseline else None)
    shared = _shared_rows(comparisons, rows, columns)
    left_out = [f"{key}={value}: no run is finished" for value in lacking]
    left_out += [f"{key}={value}: the metric is NaN or infinite in every run" for value in diverged]
    return AcrossComparison(key, chosen, columns, list(shared.values()), shared[reference], comparisons, left_out)


def _by_value(
    results: RunResults, values_of: Mapping[str, Mapping[str, str]], key: str
) -> tuple[dict[str, RunResults], list[str]]:
    """The runs under each value of the key, and the values without a finished run.

    A run that has not begun may not know its value: it is unfinished under each. Finished ones have ``values_of``.
    """
    values = {run.name: values_of[run.name][key] if run.name in values_of else _typed(run, key) for run in results.runs}
    parts = {
        value: replace(
            results,
            runs=[run for run in results.runs if values[run.name] in (value, "")],
            left_out=[run for run in results.left_out if _typed(run, key) in (value, "")],
        )
        for value in dict.fromkeys(known[key] for known in values_of.values())
    }
    return parts, sorted({*values.values()} - {*parts, ""})


def _with_first(results: RunResults, row: ConfigurationRow) -> RunResults:
    """The runs of a row before all others, which makes it the baseline."""
    names = {run.name for run in row.runs.values()}
    return replace(results, runs=sorted(results.runs, key=lambda run: run.name not in names))  # a stable sort


def _shared_rows(
    comparisons: Mapping[str, Comparison], rows: Mapping[str, Mapping[Place, ConfigurationRow]], columns: Sequence[str]
) -> dict[Place, AcrossRow]:
    """The rows of all comparisons together, by their places, which ``rows`` has by the key's value."""
    summaries = {
        value: {summary.row.label: summary for summary in found.summaries} for value, found in comparisons.items()
    }
    shared = {}
    for place in dict.fromkeys(place for some in rows.values() for place in some):
        numbers = {value: summaries[value][some[place].label] for value, some in rows.items() if place in some}
        values = dict(zip(columns, place, strict=True))
        shared[place] = AcrossRow(label_of(values), values, numbers)
    return shared


def _all_diverged(runs: RunResults, metric: str | None) -> bool:
    finished = [run for run in runs.runs if run.status == "finished"]
    name = choose_metric(finished, metric).name
    return not any(math.isfinite(run.metrics[name]) for run in finished)


def _failures(compared: Comparison) -> list[str]:
    return [f"of {label}, {rate}" for label, rate in compared.findings.failed.items() if rate.failed]


def _typed(run: RunResult, column: str) -> str:
    """The value of a run that is in no row; empty if it is not known."""
    value = next((run.config[name] for name in (column, f"{column}.name") if name in run.config), "")
    return run.overrides.get(column) or as_typed(value)


def _by_place(
    table: Table, columns: Sequence[str], values_of: Mapping[str, Mapping[str, str]]
) -> dict[Place, ConfigurationRow]:
    """The rows of a table by their values in all ``columns``, also those in which only rows of other tables differ."""
    places = {}
    for row in table.rows:
        known = values_of.get(next(iter(row.runs.values())).name, {})
        places[tuple(known.get(column, row.values.get(column, "")) for column in columns)] = row
    return places


def _place_of(row: ConfigurationRow, rows: Mapping[Place, ConfigurationRow]) -> Place:
    return next(place for place, other in rows.items() if other is row)


def _baseline(
    rows: Mapping[str, Mapping[Place, ConfigurationRow]], columns: Sequence[str], key: str, name: str | None
) -> Place:
    """The place of the baseline: the row called ``name``, or the first that ran under every value."""
    places = dict.fromkeys(place for some in rows.values() for place in some)
    if name is not None:
        chosen = [(place, dict(zip(columns, place, strict=True))) for place in places]
        table = Table(list(columns), [ConfigurationRow(label_of(values), values, {}) for _, values in chosen], {}, [])
        found = table.row(name)
        place = next(place for place, values in chosen if values == found.values)
        if lacking := [value for value, some in rows.items() if place not in some]:
            raise RunError(f"baseline {found.label} has no finished run with {key}={' or '.join(lacking)}")
        return place
    everywhere = [place for place in places if all(place in some for some in rows.values())]
    if not everywhere:
        raise RunError(
            f"no configuration ran with every {key} ({' and '.join(rows)}), so there is none to compare with"
        )
    return everywhere[0]
