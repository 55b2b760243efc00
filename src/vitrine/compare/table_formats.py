"""Format the table of a comparison, or of one across a key: terminal, Markdown, LaTeX, and cells for the report."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table as Grid
from rich.text import Text

from vitrine.compare.across import MARKS, AcrossComparison, AcrossRow
from vitrine.compare.comparison import Comparison, RowSummary
from vitrine.compare.costs import COSTS, Cost
from vitrine.compare.findings import BaselineComparison
from vitrine.compare.metric import MISSING, format_p
from vitrine.text import one_line

LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": "$<$",
    ">": "$>$",
    "▲": r"$\uparrow$",
    "▼": r"$\downarrow$",
    MISSING: "--",
}
MARKDOWN = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


Compared = Comparison | AcrossComparison


@dataclass(frozen=True)
class Heading:
    """The heading of a column, and whether its cells are numbers."""

    title: str
    number: bool = True


@dataclass(frozen=True)
class TableCell:
    """The text of a cell, and whether it is set in bold."""

    text: str
    bold: bool = False


def headings(compared: Comparison) -> list[Heading]:
    """Return the headings: columns of the table, then numbers, without those that no row has."""
    metric = compared.metric
    columns = [one_line(name) for name in compared.table.columns] or ["configuration"]
    titles = ["n", metric.heading, "best", "worst"]
    if compared.findings.comparisons:
        titles += [metric.difference_heading, "p (corrected)"]
    titles += [cost.heading for cost in _costs(compared)]
    if compared.target is not None:
        titles.append(f"s to {100 * compared.target:g} %")
    return [*(Heading(name, number=False) for name in columns), *map(Heading, titles)]


def cells(compared: Comparison, summary: RowSummary) -> list[str]:
    """Return a row's cells, one per heading."""
    metric, mean = compared.metric, summary.interval
    values = [one_line(summary.row.values[name]) for name in compared.table.columns] or [summary.row.label]
    values += [str(mean.count), metric.interval(mean)]
    values += [metric.number(summary.best), metric.number(summary.worst)]
    if compared.findings.comparisons:
        values += _difference_cells(compared, compared.findings.comparison_of(summary.row))
    values += [cost.text_of(summary) for cost in _costs(compared)]
    if compared.target is not None:
        values.append(_time_to_target(summary))
    return values


def across_headings(across: AcrossComparison) -> list[Heading]:
    """Return the headings of a table across a key: columns that differ between rows, then the key's values."""
    columns = [one_line(name) for name in across.columns] or ["configuration"]
    return [
        *(Heading(name, number=False) for name in columns),
        *(Heading(one_line(value)) for value in across.comparisons),
    ]


def across_cells(across: AcrossComparison, row: AcrossRow) -> list[TableCell]:
    """Return a row's cells, one per heading: mean and interval under each value, bold if it may be the best."""
    names = [one_line(row.values[name]) for name in across.columns] or [row.label]
    found = [TableCell(name) for name in names]
    for value in across.comparisons:
        summary = row.summaries.get(value)
        mean = None if summary is None else summary.interval
        text = MISSING if mean is None else across.metric.interval(mean)
        mark = MARKS.get(across.verdict(row, value), "")
        found.append(TableCell(f"{mark} {text}".lstrip(), bold=across.may_be_best(row, value)))
    return found


def terminal(compared: Compared) -> Grid:
    """Return the table for a terminal, as a rich table."""
    titles, rows = _table(compared)
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in titles:
        grid.add_column(Text(heading.title), justify="right" if heading.number else "left")
    for row in rows:  # a pipe has no bold
        grid.add_row(*(Text(f"*{cell.text}", "bold") if cell.bold else Text(cell.text) for cell in row))
    return grid


def markdown(compared: Compared) -> str:
    """Return the table, the findings and the caveats in GitHub's Markdown."""
    titles, rows = _table(compared)
    lines = [_markdown_line([_markdown_text(heading.title) for heading in titles])]
    lines.append(_markdown_line(["--:" if heading.number else "---" for heading in titles]))
    for row in rows:
        texts = [_markdown_text(cell.text) for cell in row]
        lines.append(
            _markdown_line(f"**{text}**" if cell.bold else text for text, cell in zip(texts, row, strict=True))
        )
    lines += ["", *map(_markdown_item, compared.notes)] if compared.notes else []
    lines += ["", *map(_markdown_item, compared.sentences)]
    lines += [_markdown_item(f"caveat: {caveat}") for caveat in compared.caveats]
    return "\n".join(lines)


def split_command(sentence: str) -> tuple[str, str]:
    """Split a finding into what it says and the command that it ends with, empty if there is none."""
    said, *command = re.split(r": (?=(?:python|vitrine) )", sentence, maxsplit=1)
    return said, command[0] if command else ""


def latex(compared: Compared) -> str:
    r"""Return the table as a LaTeX tabular, which needs ``\usepackage{booktabs}``; notes below it are comments."""
    titles, rows = _table(compared)
    lines = [f"\\begin{{tabular}}{{{''.join('r' if heading.number else 'l' for heading in titles)}}}", "\\toprule"]
    lines += [_latex_line([TableCell(heading.title) for heading in titles]), "\\midrule"]
    lines += map(_latex_line, rows)
    comments = [f"% {one_line(note)}" for note in compared.notes]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", *comments])


def _table(compared: Compared) -> tuple[list[Heading], list[list[TableCell]]]:
    if isinstance(compared, AcrossComparison):
        return across_headings(compared), [across_cells(compared, row) for row in compared.rows]
    return headings(compared), [list(map(TableCell, cells(compared, summary))) for summary in compared.summaries]


def _costs(compared: Comparison) -> list[Cost]:
    """Costs that any row has."""
    return [cost for cost in COSTS if cost.heading and any(cost.range_of(row) for row in compared.summaries)]


def _difference_cells(compared: Comparison, tested: BaselineComparison | None) -> list[str]:
    if tested is None:
        return ["baseline", ""]
    metric, difference = compared.metric, tested.difference
    interval = f" [{metric.signed(difference.low)}, {metric.signed(difference.high)}]"
    signed = metric.signed(difference.mean) + ("" if math.isnan(difference.low) else interval)
    return [signed, format_p(difference.corrected)]


def _time_to_target(summary: RowSummary) -> str:
    if summary.seconds_to_target is None:
        return "not reached"
    text, runs = f"{summary.seconds_to_target.mean:.1f}", len(summary.values)
    return text if summary.reached_target == runs else f"{text} ({summary.reached_target} of {runs})"


def _markdown_text(text: str) -> str:
    """Escape HTML, links, images and the bars between cells."""
    return re.sub(r"[\\|<>&\[\]]", lambda found: MARKDOWN.get(found[0]) or f"\\{found[0]}", text)


def _markdown_item(sentence: str) -> str:
    said, command = split_command(one_line(sentence))
    shown = _markdown_text(command) if "`" in command else f"`{command}`"
    return f"- {_markdown_text(said)}" + (f": {shown}" if command else "")


def _markdown_line(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _latex_line(row: Sequence[TableCell]) -> str:
    escaped = [re.sub("|".join(map(re.escape, LATEX)), lambda match: LATEX[match[0]], cell.text) for cell in row]
    texts = [rf"\textbf{{{text}}}" if cell.bold else text for text, cell in zip(escaped, row, strict=True)]
    line = " & ".join(texts) + r" \\"
    return re.sub(r"^[*\[]", r"{\g<0>}", line)  # after a line break, they would be its option
