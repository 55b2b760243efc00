"""The argument parser of commands that do not go through Hydra, types of several arguments, and errors."""

import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from vitrine.errors import Interrupted, VitrineError
from vitrine.runs.nearest import newest_run
from vitrine.runs.provenance import program
from vitrine.text import did_you_mean, nearest, report

FORMATS = ("png", "pdf", "svg")


def make_parser(name: str, description: str | None) -> ArgumentParser:
    """A parser for ``vitrine NAME``, with its examples in the form in which the user started this command."""
    text = re.sub(r"^vitrine ([a-z-]+)", lambda match: program(match[1]), description or "", flags=re.MULTILINE)
    return _Parser(prog=program(name), description=text, formatter_class=RawDescriptionHelpFormatter)


class _Parser(ArgumentParser):
    """Names the newest run where none is given."""

    def error(self, message: str) -> NoReturn:
        asks_for_run = re.search(r"required:.*\bRUN\b", message)
        newest = newest_run(Path("outputs")) if asks_for_run else None
        super().error(message if newest is None else f"{message}; the newest run is {newest}")


def prefixes(text: str) -> list[str]:
    """Return the prefixes of ``my_lab,other_lab``; an empty one is an error, since every name begins with it."""
    found = [prefix.strip() for prefix in text.split(",")]
    if not all(found):
        raise ArgumentTypeError(f"{text!r} has an empty prefix; give names, such as my_lab,other_lab")
    return found


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def figure_formats(text: str) -> list[str]:
    """Parse ``pdf,svg``."""
    found = [name.strip() for name in text.split(",")]
    for name in found:
        if name not in FORMATS:
            hint = did_you_mean(nearest(name, FORMATS))
            raise ArgumentTypeError(f"{name!r} is not one of {', '.join(FORMATS)}{hint}")
    return list(dict.fromkeys(found))


def add_figures(parser: ArgumentParser, what: str) -> None:
    """Add ``--figures FORMAT,...``, which writes ``what``."""
    help = f"also write {what}: {', '.join(FORMATS)}"
    parser.add_argument("--figures", type=figure_formats, default=[], metavar="FORMAT,...", help=help)


def add_trust(parser: ArgumentParser, *, where: str = "") -> None:
    """Add ``--trust PREFIX,...``, which may be repeated; ``where`` begins its help."""
    parser.add_argument(
        "--trust",
        action="extend",
        type=prefixes,
        default=[],
        metavar="PREFIX,...",
        help=f"{where}code outside vitrine that runs may import, by the beginning of its dotted name",
    )


def add_allow_changed_code(parser: ArgumentParser, *, where: str = "") -> None:
    """Add ``--allow-changed-code``; ``where`` begins its help."""
    help = f"{where}use models although the code of their parts was edited"
    parser.add_argument("--allow-changed-code", action="store_true", help=help)


def add_target(parser: ArgumentParser) -> None:
    """Add ``--target NAME``."""
    help = "of a run with several targets, the one that the model answers (the first)"
    parser.add_argument("--target", default="", metavar="NAME", help=help)


def add_calibrate(parser: ArgumentParser) -> None:
    """Add ``--calibrate``."""
    help = "divide logits by a temperature that is fitted on the run's validation images"
    parser.add_argument("--calibrate", action="store_true", help=help)


def add_data_root(parser: ArgumentParser, use: str = "") -> None:
    """Add ``--data-root DIR``; ``use`` ends its help."""
    parser.add_argument("--data-root", metavar="DIR", help=f"where the data set is now{use}")


def add_config_dir(parser: ArgumentParser) -> None:
    """Add ``--config-dir DIR``."""
    help = "a folder with configuration files of your own (conf in the working directory)"
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help=help)


@contextmanager
def errors_in_one_line(exit_code: int = 2) -> Iterator[None]:
    """Exit with one line for an error that a user can fix, or for Ctrl-C; quietly if the reader of a pipe has ended.

    An error of the system that names a file is one that a user can fix.
    """
    try:
        yield
        sys.stdout.flush()
    except VitrineError as error:
        report(error)
        sys.exit(exit_code)
    except KeyboardInterrupt:
        report("interrupted")
        sys.exit(Interrupted.exit_code)
    except BrokenPipeError:
        sys.stderr.close()  # vitrine compare ... | head
    except OSError as error:
        if error.filename is None:
            raise
        report(f"cannot use {error.filename}: {error.strerror}")  # a folder that may not be entered, a name too long
        sys.exit(exit_code)
