"""The argument parser of commands that do not go through Hydra, and types of arguments that several take."""

import re
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter

from vitrine.runs.provenance import program


def make_parser(name: str, description: str | None) -> ArgumentParser:
    """A parser for ``vitrine NAME`` whose help shows commands in the form in which the user started this one.

    Args:
        name: the subcommand, such as ``wandb-sync``.
        description: the module's docstring, with examples on lines that begin with ``vitrine NAME``.
    """
    text = re.sub(r"^vitrine ([a-z-]+)", lambda match: program(match[1]), description or "", flags=re.MULTILINE)
    return ArgumentParser(prog=program(name), description=text, formatter_class=RawDescriptionHelpFormatter)


def prefixes(text: str) -> list[str]:
    """Return the prefixes of ``my_lab,other_lab``; an empty one is an error, since every name begins with it."""
    found = [prefix.strip() for prefix in text.split(",")]
    if not all(found):
        raise ArgumentTypeError(f"{text!r} has an empty prefix; give names, such as my_lab,other_lab")
    return found
