"""Compare runs: which configuration is better, and how certain that is. Needs run folders only.

vitrine compare outputs/sweeps/NAME                          # every configuration in it
vitrine compare RUN RUN --metric val/acc --baseline learned  # some runs, by another metric
vitrine compare outputs/sweeps/NAME --by position            # the main effect of one choice
vitrine compare outputs/sweeps/NAME data=digits              # only the runs with this value of a key
vitrine compare outputs/sweeps/NAME --across data            # on each data set: a column for each
vitrine compare outputs/sweeps/NAME --html report.html       # also as one page, with plots
vitrine compare outputs/sweeps/NAME --figures pdf,svg        # figures for a paper: figures/*.pdf, figures/*.svg
vitrine compare outputs/sweeps/NAME --csv table.csv          # the table's numbers, unrounded
vitrine compare wandb:ENTITY/PROJECT --group SWEEP           # from Weights & Biases
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from vitrine.cli.arguments import add_allow_changed_code, add_figures, add_trust, errors_in_one_line, make_parser
from vitrine.errors import RunError
from vitrine.files import refuse_link_out
from vitrine.runs.provenance import program
from vitrine.text import plural, print_table, printable

if TYPE_CHECKING:  # they import SciPy, for which --help and mistakes do not wait
    from vitrine.compare.across import AcrossComparison
    from vitrine.compare.comparison import Comparison
    from vitrine.compare.load import RunResults

STDOUT = Path("-")
COLUMN = 3.25  # inches


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, compare, print."""
    parser = _parser()
    options = parser.parse_intermixed_args(arguments)
    _check(parser, options)
    with errors_in_one_line():
        from vitrine.compare.across import compare_across
        from vitrine.compare.comparison import compare
        from vitrine.compare.looks import record_look
        from vitrine.compare.table_csv import check_table
        from vitrine.inference.html_page import check_page

        results = _load(options)
        how = {
            "metric": options.metric,
            "by": options.by,
            "baseline": options.baseline,
            "difference_of_interest": options.difference,
            "accept_changed_data": options.accept_changed_data,
            "fixed_images": options.fixed_images,
        }
        if options.html is not None:
            check_page(options.html)
        if options.csv not in (None, STDOUT):
            check_table(options.csv)
        if options.across:
            across = compare_across(results, options.across, **how)
            for found in across.comparisons.values():
                record_look(found.table)
            _print(across, options)
            return
        compared = compare(results, target=options.target, **how)
        folder = _figures_folder(options.paths, options.html) if options.figures else Path()
        record_look(compared.table)  # before anything is seen, as a closed pipe or Ctrl-C may end the rest
        if options.html is not None:  # before printing, which stops if the reader closes the pipe
            from vitrine.compare.report.page import write_report

            write_report(compared, options.html, options.paths)
            print(f"written to {options.html}", file=sys.stderr)
        if options.figures:
            from vitrine.compare.report.figures import write_figures

            files = write_figures(compared, folder, options.figures, options.width or COLUMN)
            print(f"{plural(len(files), 'file')} in {folder}", file=sys.stderr)
        _print(compared, options)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("compare", __doc__)
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH or KEY=VALUE",
        help="run folders, folders with runs at any depth, and values that runs must have",
    )
    parser.add_argument("--metric", help="metric to compare by; default: test/acc, or one that all runs have")
    parser.add_argument("--by", metavar="KEY", help="compare the main effect of this choice, over all other choices")
    parser.add_argument("--across", metavar="KEY", help="compare separately under each value of this key, such as data")
    parser.add_argument("--baseline", metavar="ROW", help="row to compare with, such as learned; default: the first")
    parser.add_argument(
        "--target", type=float, metavar="ACC", help="show the time to reach this validation accuracy, such as 0.97"
    )
    parser.add_argument(
        "--difference",
        type=float,
        metavar="D",
        help="difference that matters: plan seeds for it, or call rows equal within it; 0.002 is 0.2 points",
    )
    parser.add_argument(
        "--fixed-images", action="store_true", help="findings on these test images, instead of others of the same kind"
    )
    parser.add_argument("--group", help="with wandb: only the runs of this sweep")
    add_trust(parser, where="with --html: ")
    add_allow_changed_code(parser, where="with --html: ")
    parser.add_argument(
        "--accept-changed-data", action="store_true", help="compare runs that were measured on different images"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report, one HTML page")
    add_figures(parser, "figures for a paper")
    parser.add_argument("--width", type=float, metavar="INCHES", help=f"of figures; {COLUMN} is a column, 5.5 a page")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table's numbers, unrounded; - is stdout")
    parser.add_argument("--markdown", action="store_true", help="print table, findings and caveats in Markdown")
    parser.add_argument("--latex", action="store_true", help="print the table in LaTeX")
    return parser


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse options that do not fit, each in one line."""
    if options.target is not None and not 0 < options.target <= 1:
        parser.error(f"--target {options.target:g} is not an accuracy; give a number in (0, 1], such as 0.97")
    if options.difference is not None and not options.difference > 0:
        parser.error(f"--difference {options.difference:g} must be above 0")
    if options.width is not None and not options.figures:
        parser.error("--width is that of --figures, such as --figures pdf")
    if options.width is not None and not 2 <= options.width <= 20:
        parser.error(f"--width {options.width:g} is not between 2 and 20 inches")
    of_one = {"--html": options.html, "--figures": options.figures, "--target": options.target}
    if options.across and (given := next((name for name, value in of_one.items() if value), "")):
        parser.error(f"{given} is of one comparison: give a value of {options.across} instead, {options.across}=VALUE")


def _load(options: argparse.Namespace) -> "RunResults":
    filters = [text for text in options.paths if "=" in text and not Path(text).is_dir()]
    paths, group = [text for text in options.paths if text not in filters], options.group
    if not paths:
        raise RunError(f"give a folder with runs, too: {program('compare')} outputs/sweeps/NAME {' '.join(filters)}")
    projects = [path.removeprefix("wandb:") for path in paths if path.startswith("wandb:")]
    if not projects:
        if group is not None:
            raise RunError("--group needs wandb:ENTITY/PROJECT; on disk, give the sweep's folder: outputs/sweeps/NAME")
        from vitrine.compare.load import load_results

        return load_results(paths, filters, trust=options.trust, allow_changed_code=options.allow_changed_code)
    if len(paths) > 1:
        raise RunError("give one wandb:ENTITY/PROJECT, or paths; not both")
    if filters:
        raise RunError(f"{filters[0]} selects runs on disk; for W&B, give --group, or select the runs there")
    from vitrine.compare.load_wandb import load_wandb_results

    return load_wandb_results(projects[0], group)


def _figures_folder(paths: list[str], page: Path | None) -> Path:
    """Beside the page; else in the folder that was given, or of several or W&B, in the working directory."""
    local = [Path(path) for path in paths if Path(path).is_dir()]  # neither W&B's nor KEY=VALUE
    parent = page.parent if page is not None else local[0] if len(local) == 1 else Path()
    folder = parent / "figures"
    for given in local:
        refuse_link_out(folder, given)
    if folder.exists() and not folder.is_dir():
        raise RunError(f"cannot write {folder}: it is not a folder")
    return folder


def _print(compared: "Comparison | AcrossComparison", options: argparse.Namespace) -> None:
    from vitrine.compare.table_formats import latex, markdown, terminal

    if options.csv not in (None, STDOUT):
        from vitrine.compare.table_csv import write_csv

        write_csv(compared, options.csv)
        print(f"written to {options.csv}", file=sys.stderr)
    if options.markdown:
        print(markdown(compared))
    if options.latex:
        print(latex(compared))
    if options.csv == STDOUT:
        from vitrine.compare.table_csv import csv_text

        print(csv_text(compared), end="")
    if options.markdown or options.latex or options.csv == STDOUT:
        return
    print_table(terminal(compared))
    console = Console(highlight=False)
    for note in compared.notes:
        console.print(printable(note), markup=False, soft_wrap=True, style="dim")
    console.print()
    for sentence in compared.sentences:
        console.print(f"- {printable(sentence)}", markup=False, soft_wrap=True)
    for caveat in compared.caveats:
        console.print(f"! {printable(caveat)}", markup=False, soft_wrap=True, style="yellow")
