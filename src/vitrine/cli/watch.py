"""Watch a sweep or a run from another terminal: epoch, loss, metric, curve and time left of each trial.

vitrine watch                 # the newest sweep or run in outputs/
vitrine watch NAME            # a sweep by its name, or the folder of a sweep or run
vitrine watch --once          # prints the state and ends; so does a pipe
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from vitrine.cli.arguments import errors_in_one_line, make_parser
from vitrine.sweeps.watch import watch


def main(arguments: Sequence[str] | None = None) -> None:
    """Show until it has ended, or until Ctrl-C."""
    parser = make_parser("watch", __doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a sweep's name, or the folder of a sweep or run")
    parser.add_argument("--root", type=Path, default=Path("outputs"), help="paths.output_dir of the runs (outputs)")
    parser.add_argument("--once", action="store_true", help="print the state once")
    options = parser.parse_args(arguments)
    with errors_in_one_line(exit_code=1), suppress(KeyboardInterrupt):
        watch(options.root, options.name, once=options.once)
