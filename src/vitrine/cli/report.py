"""Write the page of one run: results, mistakes, and what its model has learned; one file that needs no network.

vitrine report outputs/runs/RUN                        # writes report.html in the run folder
vitrine report outputs/runs/RUN --figures pdf,svg      # its figures, too, for a paper: figures/*.pdf, figures/*.svg
vitrine report outputs/runs/RUN --to digits.html       # elsewhere
vitrine report outputs/runs/RUN --data-root DIR        # whose pictures are now in DIR

Of several runs, vitrine compare FOLDER --html FILE writes a report.
"""

from collections.abc import Sequence
from pathlib import Path

from vitrine.cli.arguments import (
    add_allow_changed_code,
    add_data_root,
    add_figures,
    add_trust,
    errors_in_one_line,
    make_parser,
)
from vitrine.errors import RunError
from vitrine.runs import RunRecord
from vitrine.runs.provenance import program
from vitrine.text import file_size, plural, printable


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, write, print the paths."""
    parser = make_parser("report", __doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="run folder")
    parser.add_argument("--to", type=Path, metavar="FILE", help="the page (report.html in the run folder)")
    add_figures(parser, "each figure")
    add_data_root(parser)
    add_trust(parser)
    add_allow_changed_code(parser)
    options = parser.parse_args(arguments)
    with errors_in_one_line(exit_code=1):
        _check(options.run)
        from vitrine.explain.page import write_run_page

        page = write_run_page(
            options.run,
            options.to,
            formats=options.figures,
            data_root=options.data_root,
            trust=options.trust,
            allow_changed_code=options.allow_changed_code,
        )
        print(printable(f"written to {page.path} ({file_size(page.size)})"))
        if page.figures:
            print(printable(f"{plural(len(page.figures), 'file')} in {page.figures[0].parent}"))


def _check(folder: Path) -> None:
    """Raise RunError unless there is a run, before torch is imported; name the command for a folder of runs."""
    try:
        RunRecord.open(folder)
    except RunError as error:
        if folder.is_dir() and next(folder.glob("*/run.json"), None) is not None:
            compare = f"{program('compare')} {folder} --html report.html"
            raise RunError(f"{folder} holds several runs; {compare} compares them in one report") from None
        raise error from None
