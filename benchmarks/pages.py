"""Write measurements into Markdown pages: tables, and the generated part of a page that people write the rest of."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Lines of a Markdown table; floats are rounded to three significant digits."""
    cells = [[_rounded(cell) if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in [list(columns), ["---"] * len(columns), *cells]]


def write_between(page: Path, name: str, lines: Iterable[str]) -> None:
    """Replace what stands between ``<!-- NAME: written by ... -->`` and ``<!-- /NAME -->`` in a page.

    Raises:
        ValueError: the page has no such pair of markers, or more than one; the page is left unchanged.
    """
    markers = rf"(<!-- {name}: [^\n]*-->\n)(?:(?!<!-- /?{name}\b).)*(<!-- /{name} -->)"
    generated = "".join(f"{line}\n" for line in lines)
    text, count = re.subn(markers, lambda match: match[1] + generated + match[2], page.read_text(), flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{page} has {count} pairs of markers named {name}; exactly one is expected")
    page.write_text(text)


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"
