"""What sweeps have come to: finished, running, failed and left trials, the best so far, the time left.

vitrine sweeps                # all under outputs/sweeps
vitrine sweeps NAME           # one, trial by trial; NAME may be a path
vitrine sweeps --root DIR     # where paths.output_dir was DIR
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from vitrine.cli.arguments import make_parser
from vitrine.errors import RunError
from vitrine.sweeps.progress import show_table, value_told
from vitrine.sweeps.summary import Overview, find
from vitrine.sweeps.sweep import Best


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = make_parser("sweeps", __doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a sweep's folder, or its name")
    parser.add_argument("--root", type=Path, default=Path("outputs"), help="paths.output_dir of the sweeps")
    options = parser.parse_args(arguments)
    try:
        found = find(options.root / "sweeps", options.name)
    except RunError as error:
        sys.exit(f"vitrine: {error}")
    if options.name is None:
        show_all(found)
    else:
        show(found[0])


def show_all(found: list[Overview]) -> None:
    """A line for each sweep."""
    table = _table("sweep", "trials", "finished", "pruned", "running", "failed", "left", "best", "with", "time left")
    for one in found:
        counts, best = one.counts, one.best
        told = [counts[status] for status in ("finished", "pruned", "running", "failed")]
        numbers = [len(one.outcomes), *told, len(one.outcomes) - sum(told)]
        reached, configuration = _best(best)
        reached = reached and f"{one.metric} {reached}"
        time_left = str(one.left) if one.left is not None else ""
        table.add_row(escape(one.folder.name), *map(str, numbers), reached, configuration, time_left)
    show_table(table)
    for one in found:
        if one.problem:
            print(f"vitrine: {one.problem}", file=sys.stderr)


def show(sweep: Overview) -> None:
    """Each trial of one sweep."""
    if sweep.problem:
        sys.exit(f"vitrine: {sweep.problem}")
    table = _table(*sweep.keys, sweep.metric, "seconds", "state")
    for varies, came in zip(sweep.varies, sweep.outcomes, strict=True):
        reached = value_told(came.metrics[sweep.metric]) if sweep.metric in came.metrics else ""
        state = f"{came.status}: {came.error}" if came.error else "left" if came.status == "new" else came.status
        cells = [varies.get(key, "") for key in sweep.keys]
        table.add_row(*map(escape, cells), reached, f"{came.seconds:.1f}" if came.seconds else "", escape(state))
    show_table(table)
    if best := sweep.best:
        reached, configuration = _best(best)
        print(f"\nbest on validation: {configuration or 'what was trained'} ({sweep.metric} {reached})")
        print(f"  {best.command(sweep.common)}")
    if sweep.left is not None:
        print(f"time left: {sweep.left}")


def _best(best: Best | None) -> tuple[str, str]:
    if best is None:
        return "", ""
    return value_told(best.mean), escape(",".join(f"{key}={value}" for key, value in best.varies.items()))


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    return table
