"""The commands that Hydra composes: parse flags, compose and check, then print or run.

A configuration is composed and checked once, before torch is imported and before anything is written, so that a
mistake costs a second and leaves nothing behind. In a multirun every trial is checked before the first one starts.
"""

import os
import re
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vitrine.cli.flags import parse_flags
from vitrine.cli.show import show_config, show_help, show_info
from vitrine.command.compose import Point, as_composed, launcher, points
from vitrine.command.output_dirs import place
from vitrine.command.sources import Sources, composing
from vitrine.distributed.rendezvous import first_to_report, meet, silence_other_ranks
from vitrine.errors import ConfigError, Fault, Interrupted, VitrineError
from vitrine.files import naming_full_disk
from vitrine.signals import end_with_reader, exit_soon, interrupting
from vitrine.text import report

# How often a thread of GNU OpenMP looks for the others at the end of a parallel part before it lets the system run
# something else. By default it does so for milliseconds, in which it keeps the processor from the threads that it waits
# for: beside one busy program, a step takes 1.4 times as long. Alone, these fewer looks cost 5 % (docs/speed.md).
SPINS = "3000"


@dataclass(frozen=True)
class Command:
    """A command whose configuration Hydra composes.

    Attributes:
        name: ``train``, ``eval`` or ``predict``.
        run_one: carries out a single run.
        run_all: carries out the runs of ``-m`` with a launcher; returns how many failed.
    """

    name: str
    run_one: Callable[[Point], None]
    run_all: Callable[[list[Point], str], int]


def run_command(command: Command, arguments: Sequence[str] | None = None) -> None:
    """Carry out ``command``; exits with the error's code, such as 2 for an invalid configuration.

    Ends quietly if the reader of a pipe has ended.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = SPINS  # before torch is imported
    show_traceback = any(map(_asks_for_traceback, arguments))
    with interrupting() as received:
        try:
            meet()
            silence_other_ranks()
            _check_text(arguments)
            flags = parse_flags(arguments, command.name)
            chosen = Sources.choose(flags.config_dir, flags.config_name, command.name)
            with naming_full_disk(), composing(chosen):
                try:
                    _carry_out(command, flags, chosen)
                except VitrineError:
                    show_traceback |= _is_set_to_show_traceback(command, flags)
                    raise
        except (VitrineError, Interrupted) as error:
            if received and isinstance(error, ConfigError):  # a library has made one of the signal's exception
                error = Interrupted(Interrupted.reason)
            _exit_with(error, error.exit_code, show_traceback)
        except BrokenPipeError:
            if not _reader_has_ended():
                raise
            sys.stderr.close()  # vitrine predict ... | head
        except BaseException as error:  # Lightning turns Ctrl-C into SystemExit, and other libraries into errors
            if not (received or isinstance(error, KeyboardInterrupt)):
                raise
            _exit_with(Interrupted(Interrupted.reason), Interrupted.exit_code, show_traceback=False)


def _asks_for_traceback(argument: str) -> bool:
    """Whether an override turns tracebacks on, whatever is wrong with the others."""
    name, _, value = argument.lstrip("+").partition("=")
    if name == "debug":
        return "traceback" in re.split(r"[\[\],]", value)
    return name in ("debug.traceback", "traceback") and value.lower() in ("true", "on", "yes", "1")


def _is_set_to_show_traceback(command: Command, flags: Namespace) -> bool:
    """Whether the configuration turns tracebacks on, as one of the user's files may; False if it cannot be read."""
    with suppress(VitrineError, HydraException, OmegaConfBaseException):
        config = as_composed(command.name, flags.overrides, multirun=flags.multirun)
        return bool(OmegaConf.select(config, "debug.traceback" if command.name == "train" else "traceback"))
    return False


def _check_text(arguments: Sequence[str]) -> None:
    """Raise ConfigError where an argument has bytes that are not UTF-8, which no configuration file can hold."""
    problem = "is not valid UTF-8: rename the file or folder, or give a relative path from inside it"
    found = []
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            found.append(Fault(argument, "", problem))
    if found:
        raise ConfigError(found)


def _carry_out(command: Command, flags: Namespace, chosen: Sources) -> None:
    if flags.help or flags.hydra_help or flags.shell_completion or flags.info or flags.cfg:
        end_with_reader()
    if flags.help or flags.hydra_help:
        show_help(command.name, flags)
    elif flags.shell_completion:
        from vitrine.cli.completion import complete

        complete(flags.overrides)
    elif flags.info:
        show_info(command.name, flags)
    else:
        if chosen.folder is not None and not chosen.typed and os.environ.get("RANK", "0") == "0":
            report(f"configuration files of {chosen.folder} are used too")
        if flags.cfg:
            show_config(command.name, flags)
            return
        made = points(command.name, flags.overrides, multirun=flags.multirun)
        if command.name == "train":
            made = place(made, multirun=flags.multirun)
        if flags.multirun:
            chosen_launcher = launcher(flags.overrides) if command.name == "train" else "basic"
            sys.exit(1 if command.run_all(made, chosen_launcher) else 0)
        command.run_one(made[0])


def _reader_has_ended() -> bool:
    """Whether standard output has lost its reader; writes an empty line to find out."""
    try:
        print(flush=True)
    except BrokenPipeError:
        return True
    return False


def _exit_with(error: BaseException, code: int, show_traceback: bool) -> NoReturn:
    if show_traceback:
        traceback.print_exception(error)
    elif first_to_report(str(error)):
        with suppress(OSError):  # the terminal may be closed, or standard error a file on a full disk
            report(error)
    if isinstance(error, Interrupted):
        exit_soon(code)
    sys.exit(code)
