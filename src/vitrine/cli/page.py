"""Write a page to try a trained model: one HTML file that opens from disk, without a network or a server.

vitrine page outputs/runs/RUN                      # writes page.html in the run folder
vitrine page outputs/runs/RUN --to digits.html     # elsewhere
vitrine page outputs/runs/RUN --dtype float16      # half as large, with rounded weights
vitrine page outputs/runs/RUN --calibrate          # with the probabilities of predict calibrate=true
vitrine page outputs/runs/RUN --data-root DIR      # whose pictures are now in DIR
"""

from collections.abc import Sequence
from pathlib import Path

from vitrine.cli.arguments import (
    add_calibrate,
    add_data_root,
    add_target,
    add_trust,
    errors_in_one_line,
    make_parser,
)
from vitrine.text import file_size, printable


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, write, print the path."""
    parser = make_parser("page", __doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="run folder")
    parser.add_argument("--to", type=Path, metavar="FILE", help="the page (page.html in the run folder)")
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32", help="of the weights (float32)")
    add_calibrate(parser)
    add_data_root(parser)
    add_target(parser)
    add_trust(parser)
    options = parser.parse_args(arguments)
    with errors_in_one_line(exit_code=1):
        from vitrine.runs import RunRecord

        RunRecord.open(options.run)  # before torch is imported
        from vitrine.inference.page.page import write_page

        page = write_page(
            options.run,
            options.to,
            dtype=options.dtype,
            data_root=options.data_root,
            trust=options.trust,
            target=options.target,
            calibrate=options.calibrate,
        )
        for note in page.notes:
            print(printable(note))
        print(printable(f"written to {page.path} ({file_size(page.size)})"))
