"""Which runs are better, and how sure that is, from run folders alone.

vitrine compare outputs/sweeps/NAME                          # every run in it
vitrine compare RUN RUN --metric val/acc --baseline learned  # some, by another metric
vitrine compare outputs/sweeps/NAME --by position            # one choice, over all that the others chose
vitrine compare outputs/sweeps/NAME --html report.html       # the same with everything, as one page
vitrine compare wandb:ENTITY/PROJECT --group SWEEP           # from Weights & Biases
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from vitrine.cli.arguments import make_parser
from vitrine.compare.comparison import Compared, compare
from vitrine.compare.load import Gathered, gather
from vitrine.compare.tables import latex, markdown, terminal
from vitrine.errors import RunError, VitrineError


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, compare, print."""
    parser = make_parser("compare", __doc__)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a run folder, or one with runs anywhere under it")
    parser.add_argument("--metric", help="what to compare by; else test/acc, or what all runs have")
    parser.add_argument("--by", metavar="KEY", help="one choice only, over all that the others chose")
    parser.add_argument("--baseline", metavar="ROW", help="what to compare with, such as learned; else the first run")
    parser.add_argument("--target", type=float, metavar="ACC", help="also the time to this validation accuracy: 0.97")
    parser.add_argument(
        "--difference", type=float, metavar="D", help="say how many seeds would show it: 0.002 is 0.2 points"
    )
    parser.add_argument("--group", help="runs of one sweep only, with wandb:")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write everything as one page")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--latex", action="store_true", help="print the table in LaTeX")
    options = parser.parse_args(arguments)
    if options.target is not None and not 0 < options.target <= 1:
        parser.error(f"--target {options.target:g} is no accuracy; give a number above 0 and up to 1, such as 0.97")
    if options.difference is not None and not options.difference > 0:
        parser.error(f"--difference {options.difference:g} must be above 0")
    try:
        compared = compare(
            _found(options.paths, options.group),
            metric=options.metric,
            by=options.by,
            baseline=options.baseline,
            target=options.target,
            smallest=options.difference,
        )
        if options.html is not None:  # first: it is wanted also where nobody reads on
            from vitrine.compare.report.page import write_report

            write_report(compared, options.html, options.paths)
            print(f"written to {options.html}", file=sys.stderr)
        _show(compared, options)
        sys.stdout.flush()
    except VitrineError as error:
        print(f"vitrine: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read has seen enough: compare.py ... | head


def _found(paths: list[str], group: str | None) -> Gathered:
    remote = [path.removeprefix("wandb:") for path in paths if path.startswith("wandb:")]
    if not remote:
        if group is not None:
            raise RunError("--group is for wandb:ENTITY/PROJECT; a sweep on disk is a folder: outputs/sweeps/NAME")
        return gather(paths)
    if len(paths) > 1:
        raise RunError("give one wandb:ENTITY/PROJECT, or paths; not both")
    from vitrine.compare.load_wandb import fetch

    return fetch(remote[0], group)


def _show(compared: Compared, options: argparse.Namespace) -> None:
    if options.markdown:
        print(markdown(compared))
    if options.latex:
        print(latex(compared))
    if options.markdown or options.latex:
        return
    console = Console(highlight=False)
    table = terminal(compared)
    if not console.is_terminal:  # a file has no edge
        console.width = Console(width=10_000).measure(table).maximum
    console.print(table)
    console.print()
    said = [*compared.findings.words, *(words for one in compared.findings.comparisons for words in one.words)]
    for words in said:
        console.print(f"- {words}", markup=False, soft_wrap=True)
    for words in compared.caveats:
        console.print(f"! {words}", markup=False, soft_wrap=True, style="yellow")
