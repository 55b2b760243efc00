"""Overrides as typed on the command line, checked separately, so that all faults are reported at once.

Hydra stops at the first fault. This module checks each override without the others: does its group have that choice,
does its key exist, does its value have the key's type? Limits and combinations are checked later, on the whole.
"""

import dataclasses
import os
import re
import typing
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Sweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from vitrine.command.grammar import sweep_fault, syntax_fault
from vitrine.command.hydra_settings import OUTPUT_DIRS, hydra_faults
from vitrine.command.sources import as_choice, as_meant, sources
from vitrine.command.user_parts import is_option, is_part
from vitrine.config.fields import as_float, is_number_or, not_a_number, not_a_size
from vitrine.config.keys import (
    defaults,
    hints,
    is_size_field,
    keys,
    keys_where,
    kind,
    owner,
    section_problem,
    without_none,
    word_of,
)
from vitrine.config.predict import PredictConfig
from vitrine.config.schema import EvalConfig, TrainConfig
from vitrine.config.size import is_size, plain_size
from vitrine.config.sweep import TrainCommand
from vitrine.errors import Fault
from vitrine.redact import SECRET_PROBLEM, contains_secret, is_secret_name, redact

_HYDRA = ("hydra", "hydra/")
PATH_KEYS = {key for schema in (TrainCommand, EvalConfig, PredictConfig) for key in keys_where(schema, path=True)}
PATH_KEYS |= {*OUTPUT_DIRS}
CLOSE = 5  # similar keys or choices that a message lists

# Names that users of other libraries type, and keys whose last part several sections have.
MEANT = {
    "image_size": "data.image_size",
    "img_size": "data.image_size",
    "in_channels": "data.in_channels",
    "num_classes": "data.num_classes",
    "patch_size": "model.patch_size",
    "epochs": "trainer.max_epochs",
    "num_epochs": "trainer.max_epochs",
    "learning_rate": "optimizer.lr",
    "wd": "optimizer.weight_decay",
    "gpus": "trainer.devices",
    "embed_dim": "model.dim",
    "num_heads": "model.heads",
    "checkpoint": "resume",
    "ckpt_path": "resume",
    "dataset": "data",
    "_target_": "model",
    "limit_train_batches": "debug.limit_batches",
    "limit_val_batches": "debug.limit_batches",
    "limit_test_batches": "debug.limit_batches",
}
MEANT_OF_A_RUN = {"ckpt_path": "run"}  # by eval and predict, which resume nothing
# Groups that choose a number, and the key that takes any number.
KEY_OF_GROUP = {"patch": "model.patch_size", "depth": "model.depth"}
OF_SEVERAL = ("augment", "callbacks", "debug", "experiment", "logger")  # groups whose choices can be combined
# The value to type in place of deleting a group.
INSTEAD_OF_DELETING = {"callbacks": "callbacks=default", "logger": "logger=csv", "augment": "augment=none"}


def check_overrides(arguments: Iterable[str], schema: type, loader: ConfigLoader) -> tuple[list[str], list[Fault]]:
    """Split ``arguments`` into those that can be composed and the faults of the others."""
    parser = OverridesParser.create(config_loader=loader)
    groups = sources().groups if issubclass(schema, TrainConfig) else frozenset()
    known = groups | set(keys(schema))
    sound, faults = [], []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if contains_secret(argument) or (value and name.lstrip("+~") not in known and _is_secret_key(name)):
            faults.append(Fault(redact(name), "", SECRET_PROBLEM))
            continue
        try:
            override = parser.parse_override(argument)
        except HydraException as error:
            faults.append(syntax_fault(argument, error))
            continue
        override.config_loader = loader  # glob(..) asks it for the options of a group
        if not override.key_or_group:
            faults.append(Fault(argument, "", "is not of the form key=value"))
            continue
        found = list(_faults(override, schema, loader, groups))
        faults += found
        if not found:
            sound.append(argument)
        elif name in groups and (meant := as_meant(name, value, found)):  # further keys are checked against it
            sound += quote([meant])
    return sound, faults


def quote(arguments: Iterable[str]) -> list[str]:
    """Return overrides with quotes and brackets where Hydra's grammar needs them and a user does not type them.

    Numbers that choose from a group (``patch=2``), a single value of a list (``tags=night``), paths with spaces or
    other characters that the grammar does not allow in a bare value, and words with letters outside ASCII. A leading
    ``~`` of a path becomes the home directory, as shells expand it only at the start of a word.
    """
    groups = sources().groups

    def quoted(override: str) -> str:
        name, _, value = override.partition("=")
        key = name.lstrip("+")
        if key in groups and re.fullmatch(r"[\w,/-]+", value):
            return f"{name}=" + ",".join(f"'{choice}'" if choice.isdigit() else choice for choice in value.split(","))
        if key == "run" and value[:1] == "[" and value[-1:] == "]":
            return f"{name}={_quoted_paths(value)}"
        if key in PATH_KEYS:
            return f"{name}={_quoted_path(value)}"
        if key in _list_keys() and value not in ("", "null") and not re.search(r"[\[\](){},'\"$\\]", value):
            return f"{name}=['{value}']"
        return f"{name}={_quoted_words(key, value)}" if not value.isascii() else override

    return [quoted(override) for override in arguments]


def value_text(override: Override) -> str:
    """Return the value of an override without quotes."""
    return (override.input_line or "").partition("=")[2].replace("'", "")


def _quoted_words(key: str, value: str) -> str:
    """Return a value with quotes around bare words with letters outside ASCII.

    Names in a mapping cannot have quotes: that of classes and their weights has them as a whole (config/loss.py).
    """
    if "\\" in value or "${" in value:
        return value
    if key == "loss.class_weights":
        return re.sub(r"(?<!['\"]){[^{}]*}", lambda found: "'" + found[0].replace("'", "\\'") + "'", value)
    if "{" in value:
        return value
    word = r"[^,()\[\]'\"]*"
    quoted_or_bare = rf"""'[^']*'|"[^"]*"|({word}[^\x00-\x7f]{word})"""
    return re.sub(quoted_or_bare, lambda found: f"'{found[1].strip()}'" if found[1] else found[0], value)


def _quoted_path(value: str) -> str:
    """Return a path, or several separated by commas, in the quotes that they need.

    A path in the home of an unknown user, ``~nobody/a``, stays without quotes, and is refused. In quotes, it would be a
    folder of this name.
    """
    value = _at_home(value)
    special = re.search(r"[^a-zA-Z0-9_/\\+.$%*@?|-]", value)
    if not special or re.search(r"['\"]|\$\\?\{|^~", value):
        return value
    if "," in value and not _exists(value):
        several = value.split(",")
        if "=" not in value or all(map(_exists, several)):
            return ",".join(map(_quoted_path, several)) if not re.match(r"\w+\(|\[", value) else value
    return f"'{value}'"


def _quoted_paths(value: str) -> str:
    """Return a list of paths, ``[a,b]``, in the quotes that they need; a path that exists may contain commas."""
    if re.search(r"['\"]|\$\\?\{", value):
        return value
    pieces, paths = value[1:-1].split(","), []
    while pieces:
        lengths = range(1, len(pieces) + 1)
        length = next((length for length in lengths if _exists(",".join(pieces[:length]).strip())), 1)
        paths.append(_at_home(",".join(pieces[:length]).strip()))
        del pieces[:length]
    return f"[{','.join(repr(path) for path in paths if path)}]"


def _exists(path: str) -> bool:
    """Whether there is such a file or folder; ``Path.exists`` raises OSError for a text as long as a list of runs."""
    return os.path.exists(_at_home(path))  # noqa: PTH110


def _at_home(path: str) -> str:
    """Return a path with the home directory in place of a leading ``~``; as it is if there is none."""
    return os.path.expanduser(path)  # noqa: PTH111 - Path.expanduser raises


@cache
def _list_keys() -> frozenset[str]:
    """The keys that take a list of strings."""
    return frozenset(key for key in keys(TrainCommand) if kind(TrainCommand, key) == list[str])


def _is_secret_key(name: str) -> bool:
    """Whether an unknown key has the name of a secret; those of a model name tokens, and ``key`` may be anything."""
    return is_secret_name(name) and not name.startswith("model.") and not name.endswith(".key")


def _faults(override: Override, schema: type, loader: ConfigLoader, groups: frozenset[str]) -> Iterator[Fault]:
    name = override.key_or_group
    given = str(override.input_line).partition("=")[2]
    if isinstance(swept := override.value(), Sweep) and (fault := sweep_fault(name, given, swept)):
        yield fault
        return
    if name.startswith(_HYDRA):
        if not issubclass(schema, TrainConfig):
            yield Fault(name, "", "settings of Hydra have no effect on this command")
        else:
            yield from hydra_faults(override)
        return
    if override.package is not None:
        problem = "is not supported: each choice says in its file which keys it sets"
        yield Fault(f"{name}@{override.package}", "", problem, name)
        return
    if override.is_delete():
        yield _deleted(name, schema, groups)
        return
    if name in groups and (override.is_add() or override.is_force_add()):
        yield Fault(f"+{name}", "", "a choice from a group is made without +", as_choice(name, given))
        return
    if name in groups:
        choices = sources().choices(name)
        for value in _values(override):
            if isinstance(value, list) and name not in OF_SEVERAL:
                yield (_several_numbers if name in KEY_OF_GROUP else _several_choices)(name, value)
                continue
            for choice in value if isinstance(value, list) else [value]:
                given = "null" if choice is None else str(choice)
                if given not in choices and (given.endswith(".yaml") or not is_part(name, given)):
                    yield unknown_choice(name, given, choices)
        return
    known, added = [*keys(schema), *groups], override.is_add() or override.is_force_add()
    if owner(schema, name)[0] is None:
        if not is_option(name):  # an option is checked with its part
            yield unknown_key(name, known, added=added)
        return
    for value in _values(override):
        yield from _faults_of_value(name, value, schema, known, added=added)


def _faults_of_value(name: str, value: Any, schema: type, known: list[str], *, added: bool) -> Iterator[Fault]:
    section, leaf = owner(schema, name)
    if section is None:
        yield unknown_key(name, known, added=added)
        return
    if isinstance(value, str) and "${" in value:
        return
    inner = without_none(hints(section)[leaf])
    if dataclasses.is_dataclass(inner):
        for key, one in value.items() if isinstance(value, dict) else ():
            yield from _faults_of_value(f"{name}.{key}", one, schema, known, added=added)
        if not (value is None or isinstance(value, dict)):
            yield Fault(name, str(value), section_problem(name, inner))
        return
    try:
        converted(section, leaf, value)
    except OmegaConfBaseException:
        if is_size_field(section, leaf):
            yield not_a_size(name, value)
        elif word := word_of(section, leaf):
            yield not_a_number(name, value, word)
        else:
            yield Fault(name, str(value), f"must be {type_name(hints(section)[leaf])}")


def converted(section: type, leaf: str, value: Any) -> Any:
    """Return the value of a field of ``section`` as a configuration has it: converted to the field's type.

    Raises:
        OmegaConfBaseException: it cannot be.
    """
    if is_size_field(section, leaf):
        value, hint = plain_size(value), hints(section)[leaf]
        if not is_size(value) and (value is not None or without_none(hint) is hint):
            raise ValidationError(leaf)
        return value
    if word := word_of(section, leaf):
        value = as_float(value)
        if not is_number_or(word, value) and not (value is None and leaf in defaults(section)):
            raise ValidationError(leaf)
        return value
    node = _node(section)
    node[leaf] = value
    return None if OmegaConf.is_missing(node, leaf) else node[leaf]


@cache
def _node(section: type) -> DictConfig:
    return OmegaConf.structured(section)


def _values(override: Override) -> Iterator[Any]:
    """The value as plain Python, or each of them where the override sweeps."""
    if override.is_sweep_override():
        if override.is_discrete_sweep():  # none of an interval
            yield from map(Override._convert_value, override.sweep_iterator())
    else:
        yield override.value()


def sorted_choices(choices: Iterable[str]) -> list[str]:
    """Sort choices by name, and numbers by their value."""
    return sorted(choices, key=lambda choice: (int(choice), "") if choice.isdigit() else (0, choice))


def type_name(hint: Any) -> str:
    """Return what a value of this type is called: ``a list of numbers, such as [0.5], or null``."""
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    inner = without_none(hint)
    if typing.get_origin(inner) is list:
        item = names[typing.get_args(inner)[0]].removeprefix("a ")
        name = f"a list of {item}s, such as [{'0.5' if item == 'number' else 'a,b'}]"
    else:
        name = "a mapping, such as {a:1}" if typing.get_origin(inner) is dict else names.get(inner, str(inner))
    return name if inner is hint else f"{name}, or null"


def _deleted(name: str, schema: type, groups: frozenset[str]) -> Fault:
    """The fault of ``~name``."""
    if name in groups:
        return Fault(f"~{name}", "", "a group cannot be removed; choose another", INSTEAD_OF_DELETING.get(name, ""))
    section, leaf = owner(schema, name)
    hint = None if section is None else hints(section)[leaf]
    near = f"{name}=null" if without_none(hint) is not hint else ""
    return Fault(f"~{name}", "", "a key cannot be removed; set it to another value", near)


def _several_numbers(group: str, given: list[Any]) -> Fault:
    shown, key = str(given).replace(" ", "").replace("'", ""), KEY_OF_GROUP[group]
    section, leaf = owner(TrainConfig, key)
    if is_size_field(section, leaf) and is_size(plain_size(given)):
        return Fault(group, shown, f"chooses one number; the key {key} takes height and width", f"{key}={shown}")
    return Fault(group, shown, f"chooses one number; in a multirun, several are {group}={shown[1:-1]}")


def _several_choices(group: str, given: list[Any]) -> Fault:
    shown = ",".join(map(str, given))
    near = f"-m {group}={shown}" if len(given) > 1 else f"{group}={shown}" if given else ""
    return Fault(group, f"[{shown}]", "takes one choice; in a multirun, one of several at a time", near)


def unknown_choice(group: str, given: str, choices: list[str]) -> Fault:
    """Return the fault of a choice that is not among those of a group, with similar ones."""
    in_order = sorted_choices(choices)
    if group in KEY_OF_GROUP and given.isdigit():
        problem = f"the choices are {', '.join(in_order)}; the key {KEY_OF_GROUP[group]} takes other numbers"
        return Fault(group, given, problem, f"{KEY_OF_GROUP[group]}={given}" if int(given) else "")
    similar = get_close_matches(
        given.lower().removesuffix(".yaml"), choices, CLOSE, cutoff=0.6
    )  # choices are in lower case
    similar += [choice for choice in in_order if given in choice.split("/") and choice not in similar]
    if len(choices) > 2 * CLOSE:
        listed = f"the most similar are {', '.join(similar[:CLOSE])}" if similar else "--help lists them"
        problem = f"is not one of {len(choices)} choices; {listed}"
    else:
        problem = f"the choices are {', '.join(in_order)}" if choices else f"there is no file in conf/{group} to choose"
    return Fault(group, given, problem, f"{group}={similar[0]}" if similar else "")


def unknown_key(given: str, known: list[str], *, added: bool = False) -> Fault:
    """Return the fault of a key that is not among those ``known``, with similar ones."""
    similar = _similar_keys(given, known)
    problem = "there is no such key" if "." in given else "there is no such key or group"
    if added:
        problem += ", and none can be added"
    section = given.rpartition(".")[0]
    inside = [key.removeprefix(f"{section}.") for key in known if section and key.startswith(f"{section}.")]
    if inside:
        leaf = given.rpartition(".")[2]
        inside.sort(key=lambda name: -SequenceMatcher(None, leaf, name).ratio())
        problem += f"; {section} has {', '.join(inside[:CLOSE])}{', ...' if len(inside) > CLOSE else ''}"
    elif len(similar) > 1:
        problem += f"; similar ones are {', '.join(similar)}"
    elif not similar:
        problem += "; --help lists all"
    return Fault(given, "", problem, similar[0] if similar else "")


def _similar_keys(given: str, known: list[str]) -> list[str]:
    """Up to five keys or groups that may be meant, the likeliest first."""
    leaf = given.rpartition(".")[2]
    ending: dict[str, list[str]] = {}
    for key in known:
        ending.setdefault(key.rpartition(".")[2], []).append(key)
    meant = [names[leaf] for names in (MEANT, MEANT_OF_A_RUN) if names.get(leaf) in known]
    whole = get_close_matches(given, known, CLOSE, cutoff=0.6 if "." in given else 0.65)
    leaves = [key for name in get_close_matches(leaf, ending, CLOSE, cutoff=0.65) for key in ending[name]]
    exact = ending.get(leaf, [])
    return list(dict.fromkeys([*meant, *exact, *whole, *leaves]))[:CLOSE]
