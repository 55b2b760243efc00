"""What all of the report's plots share: colours and marks of rows, how names and numbers are written."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitrine.compare.comparison import Compared
from vitrine.compare.metric import Metric
from vitrine.compare.statistics import Interval
from vitrine.compare.table import Row

# Told apart with any colour vision (by their symbols too), and at least 3:1 against the page in light and dark.
COLOURS = ("#2b7bba", "#d4651c", "#12937a", "#c2408f", "#8a7a12", "#8060c8", "#c93c3c", "#5f7f95")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "pentagon")
OTHER = "#8b9198"  # of rows beyond the colours


@dataclass(frozen=True)
class Plot:
    """A plot with what it says.

    Attributes:
        title: heading.
        words: what is to be seen in it, in a sentence.
        traces, layout: for plotly.
        numbers: the same as a table, headings first; empty where the page has it in its large table.
        choice: what the reader chooses by a menu, if this is one of several of the same heading.
    """

    title: str
    words: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    numbers: list[list[str]] = field(default_factory=list)
    choice: str = ""


class Looks:
    """What each row is drawn with: best rows in colours, in the order of their means; the baseline always."""

    def __init__(self, compared: Compared) -> None:
        rows = [one.row for one in compared.summaries]
        baseline = compared.findings.baseline
        coloured = rows[: len(COLOURS)]
        if baseline not in coloured:
            coloured = [*coloured[:-1], baseline]
        self.coloured = coloured
        self.others = [row for row in rows if row not in coloured]
        self._names = dict(zip(map(id, rows), distinct([row.brief for row in rows]), strict=True))

    def name(self, row: Row) -> str:
        """What a row is called in a sentence or beside a plot: short, and no other row's name."""
        return self._names[id(row)]

    def label(self, row: Row) -> str:
        """The same as plotly takes it."""
        return escaped(self.name(row))

    def of(self, row: Row) -> tuple[str, str, str]:
        """Colour, symbol and the word that the page knows the row by."""
        if row in self.coloured:
            index = self.coloured.index(row)
            return COLOURS[index], SYMBOLS[index], str(index)
        return OTHER, "circle", "others"


def escaped(name: str) -> str:
    """A name as it is read in plotly's own markup."""
    return name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def distinct(names: Sequence[str], most: int = 28) -> list[str]:
    """Names of about so many letters; those that would be cut to the same are numbered by their place."""
    cut = [name if len(name) <= most else f"{name[: most - 1]}…" for name in names]
    counts = Counter(cut)
    return [name if counts[name] == 1 else f"{place} {name}" for place, name in enumerate(cut)]


def written(interval: Interval, metric: Metric) -> str:
    """A mean with half its interval and unit."""
    half = "" if np.isnan(interval.half) else f" ± {metric.number(interval.half)}"
    return f"{metric.number(interval.mean)}{half}{metric.unit}"


def five_digits(values: np.ndarray) -> list[float]:
    """Values as short as a plot needs them."""
    return [float(f"{value:.5g}") for value in values]


def unit_of(metric: Metric) -> str:
    """As it follows an axis' title: `` (%)``."""
    return f" ({metric.unit.strip()})" if metric.unit else ""
