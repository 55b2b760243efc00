"""Tab completion of commands, groups, choices, keys and paths, in Hydra's way.

``eval "$(vitrine --shell-completion install=bash)"`` turns it on for ``vitrine``, and
``eval "$(python train.py --shell-completion install=bash)"`` for ``python train.py``. The shell then asks
``--shell-completion query=bash`` for suggestions, with what is typed so far in ``COMP_LINE``.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hydra._internal.core_plugins.bash_completion import BashCompletion
from hydra._internal.core_plugins.fish_completion import FishCompletion
from hydra._internal.core_plugins.zsh_completion import ZshCompletion
from hydra.core.config_loader import ConfigLoader
from hydra.errors import HydraException
from hydra.plugins.completion_plugin import CompletionPlugin
from omegaconf.errors import OmegaConfBaseException

from vitrine.cli import COMMANDS
from vitrine.cli.flags import flag_names
from vitrine.command.overrides import PATH_KEYS, quote
from vitrine.command.resolvers import SCHEMAS
from vitrine.command.sources import Sources, composing, primary_config, sources
from vitrine.command.user_parts import for_hydra
from vitrine.errors import ConfigError, Fault

SHELLS: dict[str, Callable[[ConfigLoader], CompletionPlugin]] = {
    "bash": BashCompletion,
    "zsh": ZshCompletion,
    "fish": FishCompletion,
}
ACTIONS = ("install", "uninstall", "query")


def complete(arguments: Sequence[str]) -> None:
    """Print what ``--shell-completion`` asks for, such as ``install=bash``.

    Raises:
        ConfigError: there is no such action or shell.
    """
    action, _, shell = arguments[0].partition("=") if len(arguments) == 1 else ("", "", "")
    if action not in ACTIONS or shell not in SHELLS:
        ways = " or ".join(f"{action}={'|'.join(SHELLS)}" for action in ACTIONS[:2])
        raise ConfigError([Fault("--shell-completion", " ".join(arguments), f"takes {ways}", "install=bash")])
    if action == "query":
        print(("\n" if shell == "fish" else " ").join(suggestions(os.environ.get("COMP_LINE", ""))))
        return
    with composing() as loader:
        getattr(SHELLS[shell](loader), action)()


def suggestions(line: str) -> list[str]:
    """What may come next in a command line; ``line`` ends where the cursor is."""
    started, *typed = line.split() or [""]
    last = "" if not typed or line.endswith(" ") else typed.pop()
    if Path(started).name.startswith("python"):
        name = Path(typed.pop(0)).stem if typed else ""
    elif not typed:
        return [name for name in COMMANDS if name.startswith(last)]
    else:
        name = typed.pop(0)
    if name not in SCHEMAS:
        return []
    if last.startswith("-"):
        return [flag for flag in flag_names() if flag.startswith(last)]
    with composing(Sources.choose(_value_of("--config-dir", typed) or _value_of("-cd", typed))) as loader:
        overrides = quote([word for word in typed if "=" in word and not word.startswith("-")])
        multirun = ["-m"] if {"-m", "--multirun"} & set(typed) else []  # Hydra refuses values to sweep without it
        try:
            return _Completion(loader).suggest(name, [*multirun, *for_hydra(overrides)], last)
        except (HydraException, OmegaConfBaseException, AssertionError):  # of what is typed so far, or a key's value
            return []


class _Completion(BashCompletion):
    """Hydra's completion, with the choices in folders inside a group and the paths of keys that take one."""

    def suggest(self, name: str, arguments: list[str], last: str) -> list[str]:
        """Completions of the word ``last``, which comes after ``arguments``."""
        key, equals, value = last.partition("=")
        if equals and key in PATH_KEYS:
            found = self.complete_files(value if "/" in value else f"./{value}")  # a bare name is no path to Hydra
            return sorted(f"{key}={path if '/' in value else path.removeprefix('./')}" for path in found)
        return self._query(primary_config(name), " ".join([*arguments, last]))

    def _query_config_groups(self, word: str, config_name: str | None, words: list[str]) -> tuple[list[str], bool]:
        group, equals, given = word.partition("=")
        if equals and group.lstrip("+") in sources().groups:
            found = sources().choices(group.lstrip("+"))
            return [f"{group}={option}" for option in found if option.startswith(given)], True
        matched, exact = super()._query_config_groups(word, config_name=config_name, words=words)
        if equals:
            return matched, exact
        return [f"{name.removesuffix('/').removesuffix('=')}=" if name != "hydra/" else name for name in matched], exact


def _value_of(flag: str, words: Sequence[str]) -> str | None:
    for index, word in enumerate(words):
        if word == flag and index + 1 < len(words):
            return words[index + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None
