"""Hydra's flags: which of them a command takes, and what to type in place of the others."""

from argparse import ArgumentError, Namespace, _VersionAction
from collections.abc import Sequence
from importlib.metadata import version

from hydra._internal.utils import get_args_parser

from vitrine.command.overrides import MEANT, MEANT_OF_A_RUN
from vitrine.command.resolvers import SCHEMAS
from vitrine.config.keys import keys
from vitrine.errors import ConfigError, Fault
from vitrine.runs.provenance import program
from vitrine.text import nearest

INFOS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


def parse_flags(arguments: Sequence[str], command: str = "train") -> Namespace:
    """Parse the flags and overrides of ``command``, in any order.

    Returns:
        What Hydra's parser gives: ``overrides``, ``multirun``, ``cfg``, ``package``, ``resolve``, ``info``, ``help``,
        ``hydra_help``, ``shell_completion``, ``config_dir``, ``config_name`` and the flags that are refused.

    Raises:
        ConfigError: a flag is unknown, lacks its value, or cannot be used.
    """
    parser = get_args_parser()
    parser.exit_on_error = False
    for action in parser._actions:
        if isinstance(action, _VersionAction):
            action.version = f"vitrine {version('vitrine')}"
    named = ["--info=all" if _is_bare_info(arguments, index) else word for index, word in enumerate(arguments)]
    try:
        flags, unknown = parser.parse_known_intermixed_args(named)
    except ArgumentError as error:
        flag = (error.argument_name or "").split("/")[0]
        raise ConfigError([Fault(flag, "", error.message)]) from None
    found = [_unknown(word, command) for word in unknown]
    found += _refused(flags)
    if found:
        raise ConfigError(found)
    return flags


def _is_bare_info(arguments: Sequence[str], index: int) -> bool:
    """Whether the word is ``--info`` without one of its values behind it."""
    return arguments[index] in ("--info", "-i") and not (set(arguments[index + 1 : index + 2]) & set(INFOS))


def flag_names() -> list[str]:
    """The long names of all flags."""
    actions = get_args_parser()._actions
    return [option for action in actions for option in action.option_strings if option.startswith("--")]


def _unknown(word: str, command: str) -> Fault:
    bare = word.lstrip("-")
    if "=" in bare:
        return Fault(word, "", "there is no such flag; overrides are typed without dashes", bare)
    name, meant = bare.replace("-", "_"), MEANT if command == "train" else MEANT_OF_A_RUN
    key = name if name in keys(SCHEMAS[command]) else meant.get(name)
    problem = "there is no such flag; see --help and --hydra-help. Overrides are typed without dashes, as key=value"
    return Fault(word, "", problem, key or nearest(word, flag_names()))


def _refused(flags: Namespace) -> list[Fault]:
    found = []
    if flags.config_path is not None:
        problem = "would replace vitrine's own conf/; --config-dir=DIR adds a folder of yours to it"
        found.append(Fault("--config-path", flags.config_path, problem, f"--config-dir={flags.config_path}"))
    if flags.experimental_rerun is not None:
        problem = "runs keep no pickled configuration; like=RUN repeats a run, resume=RUN continues it"
        found.append(Fault("--experimental-rerun", flags.experimental_rerun, problem, f"{program('train')} like=RUN"))
    if flags.config_name is not None and any(word.startswith(("like=", "resume=")) for word in flags.overrides):
        problem = "has no effect with like= or resume=, which take the configuration of a run"
        found.append(Fault("--config-name", flags.config_name, problem))
    if flags.package is not None and flags.cfg is None:
        problem = "prints a part of the configuration, together with --cfg"
        found.append(Fault("--package", flags.package, problem, f"--cfg job --package {flags.package}"))
    if flags.resolve and flags.cfg is None and not flags.help:
        found.append(Fault("--resolve", "", "belongs to --cfg or --help", "--cfg job --resolve"))
    return found
