"""``vitrine NAME ...`` and ``python -m vitrine NAME ...``: find the command and start it."""

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from vitrine.cli import COMMANDS
from vitrine.signals import end_with_reader
from vitrine.text import did_you_mean, nearest, report

EXAMPLES = """\
examples:
  vitrine train                                          a small ViT on the bundled digits, in a minute or two
  vitrine train model=vit_small data=cifar10 depth=6
  vitrine train -m position=learned,rope seed=0,1,2      every combination
  vitrine compare outputs/sweeps/NAME"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Start the command named by the first argument; exits with its code."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("--help", "-h", "help"):
        end_with_reader()
        print(overview())
    elif name == "--version":
        print(f"vitrine {version('vitrine')}")
    elif name in ("--shell-completion", "-sc"):
        from vitrine.cli.arguments import errors_in_one_line
        from vitrine.cli.completion import complete

        with errors_in_one_line():
            complete(rest)
    elif name in COMMANDS:
        import_module(f"vitrine.cli.{COMMANDS[name][0]}").main(rest)
    else:
        report(f"there is no command {name}{_hint(name) or '; see vitrine --help'}")
        sys.exit(2)


def overview() -> str:
    """The text of ``vitrine --help``."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {does}" for name, (_, does) in COMMANDS.items()]
    head = "Train Vision Transformers, sweep over their choices, compare and use them."
    usage = "usage: vitrine COMMAND ...        vitrine COMMAND --help explains one"
    return "\n".join([head, "", usage, "", "commands:", *lines, "", EXAMPLES])


def _hint(name: str) -> str:
    if re.match(r"[\w./@+~]+=|-m$|--(multirun|cfg)$|-c$", name):  # an override or a flag of training
        return did_you_mean(f"vitrine train {name}")
    return did_you_mean(nearest(name, COMMANDS))
