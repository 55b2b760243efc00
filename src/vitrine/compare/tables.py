"""The comparison as a table: for the terminal, in Markdown, in LaTeX."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table as Grid
from rich.text import Text

from vitrine.compare.comparison import Compared, Summary
from vitrine.compare.costs import COSTS, Cost, counted
from vitrine.compare.findings import Comparison, probability
from vitrine.compare.metric import NONE

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
    NONE: "--",
}


@dataclass(frozen=True)
class Heading:
    """A column: its title, and whether numbers stand in it."""

    title: str
    number: bool = True


def headings(compared: Compared) -> list[Heading]:
    """Choices, then numbers; a number that no row has is left out."""
    metric = compared.metric
    unit = f" ({metric.unit.strip()})" if metric.unit else ""
    chosen = compared.table.columns or ["configuration"]
    titles = ["n", f"{metric.title}{unit}", "best", "worst"]
    if compared.findings.comparisons:
        titles += [f"difference{' (points)' if metric.is_accuracy else unit}", "p (Holm)", "g"]
    titles += [cost.heading for cost in _costs(compared)]
    if compared.target is not None:
        titles.append(f"s to {100 * compared.target:g} %")
    return [*(Heading(name, number=False) for name in chosen), *map(Heading, titles)]


def cells(compared: Compared, summary: Summary) -> list[str]:
    """A row's cells, one for each heading."""
    metric, mean = compared.metric, summary.interval
    values = [summary.row.values[name] for name in compared.table.columns] or [summary.row.label]
    values += [str(mean.count), _with_half(metric.number(mean.mean), metric.number(mean.half))]
    values += [metric.number(summary.best), metric.number(summary.worst)]
    if compared.findings.comparisons:
        found = {id(one.row): one for one in compared.findings.comparisons}
        values += _against(compared, found.get(id(summary.row)))
    values += [NONE if (value := cost.of(summary)) is None else counted(value) for cost in _costs(compared)]
    if compared.target is not None:
        values.append(_reached(summary))
    return values


def terminal(compared: Compared) -> Grid:
    """For a terminal, by rich."""
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings(compared):
        grid.add_column(heading.title, justify="right" if heading.number else "left", overflow="fold")
    for summary in compared.summaries:
        grid.add_row(*map(Text, cells(compared, summary)))
    return grid


def markdown(compared: Compared) -> str:
    """A GitHub table."""
    titles = headings(compared)
    lines = [_line([one.title for one in titles])]
    lines.append(_line(["--:" if one.number else "---" for one in titles]))
    lines += [_line([cell.replace("|", "\\|") for cell in cells(compared, one)]) for one in compared.summaries]
    return "\n".join(lines)


def latex(compared: Compared) -> str:
    r"""A tabular for a paper; needs ``\usepackage{booktabs}``."""
    titles = headings(compared)
    lines = [f"\\begin{{tabular}}{{{''.join('r' if one.number else 'l' for one in titles)}}}", "\\toprule"]
    lines += [_latex_line([one.title for one in titles]), "\\midrule"]
    lines += [_latex_line(cells(compared, one)) for one in compared.summaries]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"])


def _costs(compared: Compared) -> list[Cost]:
    """Those of which any row has a number."""
    return [cost for cost in COSTS if cost.heading and any(cost.of(one) for one in compared.summaries)]


def _against(compared: Compared, one: Comparison | None) -> list[str]:
    if one is None:
        return ["baseline", "", ""]
    metric, difference = compared.metric, one.difference
    interval = f" [{metric.signed(difference.low)}, {metric.signed(difference.high)}]"
    effect = f"{difference.effect:.1f}" if abs(difference.effect) < 100 else NONE  # NaN and what does not spread
    signed = metric.signed(difference.mean) + ("" if math.isnan(difference.low) else interval)
    return [signed, probability(one.p), effect]


def _with_half(mean: str, half: str) -> str:
    return mean if half == NONE else f"{mean} ± {half}"


def _reached(summary: Summary) -> str:
    if summary.seconds is None:
        return "not reached"
    text = f"{summary.seconds.mean:.1f}"
    return text if summary.reached == len(summary.values) else f"{text} ({summary.reached} of {len(summary.values)})"


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _latex_line(texts: Sequence[str]) -> str:
    escaped = [re.sub("|".join(map(re.escape, LATEX)), lambda match: LATEX[match[0]], text) for text in texts]
    line = " & ".join(escaped) + r" \\"
    return re.sub(r"^[*\[]", r"{\g<0>}", line)  # after the line before they would be its option
