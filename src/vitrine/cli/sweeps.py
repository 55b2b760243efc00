"""List sweeps, or the trials of one: finished, running, failed and left trials, the best so far, the time left.

vitrine sweeps                # all under outputs/sweeps
vitrine sweeps NAME           # one, trial by trial; NAME may be a path
vitrine sweeps --root DIR     # where paths.output_dir was DIR
"""

from collections.abc import Sequence
from pathlib import Path

from vitrine.cli.arguments import errors_in_one_line, make_parser
from vitrine.sweeps.summary import find_sweeps, print_overview, print_trials


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = make_parser("sweeps", __doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="folder or name of a sweep")
    parser.add_argument("--root", type=Path, default=Path("outputs"), help="paths.output_dir of the sweeps")
    options = parser.parse_args(arguments)
    with errors_in_one_line(exit_code=1):
        found = find_sweeps(options.root / "sweeps", options.name)
        if options.name is None:
            print_overview(found)
        else:
            print_trials(found[0])
