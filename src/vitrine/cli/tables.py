"""Tables that commands print."""

import sys
from collections.abc import Iterable, Sequence

from vitrine.text import one_line, print_table


def print_section(title: str, rows: Sequence[Sequence[str]], columns: Sequence[str] = ()) -> None:
    """Print a table under a title, unless it is empty."""
    if rows:
        print(f"\n{title}" if title else "", end="\n" if title else "")
        print_rows(columns, rows)


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: aligned in a terminal, tab-separated in files and pipes. Paths are never cut or broken."""
    columns, rows = [one_line(name) for name in columns], [[one_line(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        lines = [columns, *rows] if columns else rows
        print("\n".join("\t".join(line) for line in lines))
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(*map(escape, columns), box=None, pad_edge=False, show_header=bool(columns))
    for row in rows:
        table.add_row(*map(escape, row))
    print_table(table)
