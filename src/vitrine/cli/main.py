"""``vitrine NAME ...`` and ``python -m vitrine NAME ...``: find the command and start it."""

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from vitrine.text import did_you_mean, nearest

# Each name with its module in this package and what it does.
COMMANDS = {
    "train": ("train", "train a model, or sweep over choices with -m"),
    "eval": ("evaluate", "test a run's checkpoint again"),
    "compare": ("compare", "which runs are better, and how sure that is"),
    "runs": ("runs", "list, show, compare, export and delete runs"),
    "sweeps": ("sweeps", "the progress of sweeps, and their best trials"),
    "wandb-sync": ("wandb_sync", "upload runs that were trained without a connection to W&B"),
    "wandb-workspace": ("wandb_workspace", "save a view of a W&B project that compares runs"),
    "pack": ("pack", "pack a data set into a few files, for machines without a network"),
    "channel-statistics": ("channel_statistics", "mean and standard deviation of a data set's channels"),
}
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
        print(overview())
    elif name == "--version":
        print(f"vitrine {version('vitrine')}")
    elif name in ("--shell-completion", "-sc"):
        from vitrine.cli.completion import complete

        complete(rest)
    elif name in COMMANDS:
        import_module(f"vitrine.cli.{COMMANDS[name][0]}").main(rest)
    else:
        print(f"vitrine: there is no command {name}{_hint(name) or '; see vitrine --help'}", file=sys.stderr)
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
