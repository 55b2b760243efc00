"""Colours and symbols of rows, labels and number formats, shared by all plots of the report."""

import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitrine.compare.comparison import Comparison
from vitrine.compare.table import ConfigurationRow
from vitrine.figure_style import COLOURS, shorten

# Of COLOURS, so that rows differ in symbols, too.
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "pentagon")
OTHER = "#8b9198"  # of rows without a colour of their own
LONGEST, LINE_LENGTH = 48, 28  # letters of a row's name, and of a line of it beside an axis


@dataclass(frozen=True)
class Plot:
    """A plot of the report.

    Attributes:
        title: its heading.
        caption: what it shows, in a sentence or two.
        traces, layout: for Plotly.
        numbers: the same data as a table, headings first; empty if the main table of the page has them.
        choice: its entry in the menu, if it is one of several plots under the same heading.
    """

    title: str
    caption: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    numbers: list[list[str]] = field(default_factory=list)
    choice: str = ""


def best_rows(compared: Comparison, most: int) -> list[ConfigurationRow]:
    """At most ``most`` rows: the best, and the baseline."""
    rows = [summary.row for summary in compared.summaries][:most]
    baseline = compared.findings.baseline
    return rows if baseline in rows else [*rows[:-1], baseline]


def lines(name: str, length: int = LINE_LENGTH) -> list[str]:
    """Break a name into as few lines of at most ``length`` characters as it takes, of about equal lengths."""
    fewest = len(textwrap.wrap(name, length, break_on_hyphens=False))
    longest = max(map(len, name.split()), default=1)
    least = longest if longest <= length else 1  # a word that fits is not broken
    tried = (textwrap.wrap(name, shorter, break_on_hyphens=False) for shorter in range(least, length + 1))
    return next(found for found in tried if len(found) <= fewest)


class RowStyles:
    """Colour, symbol and name of each row. The best rows and the baseline have colours of their own."""

    def __init__(self, compared: Comparison) -> None:
        rows = [summary.row for summary in compared.summaries]
        self.coloured = best_rows(compared, len(COLOURS))
        self.others = [row for row in rows if row not in self.coloured]
        self.baseline = compared.findings.baseline if compared.findings.comparisons else None
        self._parts = _classes_of_parts(rows)
        names = [self.value(row.short_label) for row in rows]
        self._names = dict(zip(rows, shorten(names, LONGEST), strict=True))

    def value(self, text: str) -> str:
        """Return a value, or several in a text, with own parts by their classes: ``Fourier`` of ``my_lab.Fourier``."""
        return DOTTED_NAMES.sub(lambda found: self._parts.get(found[0], found[0]), text)

    def name(self, row: ConfigurationRow) -> str:
        """Return the short name of a row, unique among the rows."""
        return self._names[row]

    def title(self, row: ConfigurationRow) -> str:
        """Return the name, ``learned (baseline)`` of the row that others are compared with."""
        return self.name(row) + " (baseline)" * (row is self.baseline)

    def label(self, row: ConfigurationRow) -> str:
        """Return the name for an axis: in lines, and escaped for Plotly."""
        return "<br>".join(map(escape, lines(self.name(row))))

    def style(self, row: ConfigurationRow) -> tuple[str, str, str]:
        """Return colour, symbol, and the key by which the page hides the row."""
        if row in self.coloured:
            index = self.coloured.index(row)
            return COLOURS[index], SYMBOLS[index], str(index)
        return OTHER, "circle", "others"

    def shown(self, count: int) -> str:
        """Return which rows a plot of predictions shows, ``count`` of the coloured ones; empty if it shows all rows."""
        total = len(self.coloured) + len(self.others)
        which = ["the best and the baseline"] if self.others else []
        which += ["where predictions are stored"] if count < len(self.coloured) else []
        are = "is" if count == 1 else "are"
        return f"Of {total} configurations, {count} {are} shown: {', '.join(which)}." if which else ""


DOTTED_NAMES = re.compile(r"\w+(?:\.\w+)+")


def _classes_of_parts(rows: Sequence[ConfigurationRow]) -> dict[str, str]:
    """The class of each part of a user's own, by its dotted name, where no other part or value is called so."""
    parts = {name for row in rows for run in row.runs.values() for name in run.facts.get("parts") or ()}
    classes = {name: name.rpartition(".")[2] for name in parts}
    counts = Counter([*classes.values(), *{value for row in rows for value in row.values.values()}])
    return {name: found for name, found in classes.items() if counts[found] == 1}


def escape(text: str) -> str:
    """Escape a text for Plotly's markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def five_digits(values: np.ndarray) -> list[float]:
    """Round values to five significant digits, to keep the page small."""
    return [float(f"{value:.5g}") for value in values]
