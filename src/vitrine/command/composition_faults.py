"""Faults of composed configurations: what Hydra and OmegaConf raise for a file, and values unlike their key's type."""

import dataclasses
import re
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vitrine.command.overrides import converted, type_name, unknown_choice, unknown_key
from vitrine.command.sources import as_choice, sources
from vitrine.config.keys import hints, keys, owner, section_problem, without_none
from vitrine.config.sweep import TrainCommand
from vitrine.errors import ConfigError, Fault
from vitrine.text import nearest

# Lines of Hydra's and OmegaConf's errors: names of classes, the key, shown by itself, and advice that fails here.
NOT_SHOWN = ("object_type", "reference_type", "full_key", "To append to your config")


@contextmanager
def as_faults() -> Iterator[None]:
    """Raise ConfigError for what Hydra or OmegaConf raise where a configuration is composed or resolved."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError([composition_fault(error)]) from None


def composition_fault(error: Exception) -> Fault:
    """Return an error that Hydra or OmegaConf raised for a configuration file as a fault."""
    if unmatched := re.search(r"To append to your default list use \+(\S+?)=(.*)", str(error)):
        return _not_chosen(unmatched[1], unmatched[2])
    cause = error.__context__ if isinstance(error, ConfigCompositionException) else error.__cause__
    causes = [str(one) for one in (error, cause) if one is not None]
    lines = dict.fromkeys(line.strip() for one in causes for line in one.splitlines() if line.strip())
    key = next(filter(None, (getattr(one, "full_key", None) for one in (cause, error))), "")
    problem = "; ".join(line for line in lines if not line.startswith(NOT_SHOWN))
    typed = re.match(r"Error merging override \++(\S+?)=(.*)", str(error))
    if typed and "Cannot merge DictConfig with ListConfig" in problem:
        return Fault(typed[1], typed[2], "cannot change a list of a file or run; give a whole list")
    if found := re.match(r"In '([^']+)': Could not (override|find|load) '([^']+)'", problem):
        return _in_defaults(*found.groups())
    file = re.match(r"In '((\w+)[^']*)'", problem)
    if not file or not isinstance(error, ConfigCompositionException) or not isinstance(cause, OmegaConfBaseException):
        return Fault(str(key) or "configuration", "", problem)
    if merged := re.match(r"Merge error: \w+ is not a subclass of (\w+)\. value: (.*)", str(cause)):
        for section, schema in _sections(_schema_of(cause)):
            if schema.__name__ == merged[1]:
                return Fault(section, merged[2], f"in {file[1]}.yaml: {section_problem(section, schema)}")
    if not key:
        return Fault(f"{file[1]}.yaml", "", str(cause).splitlines()[0])
    if key == file[2] != file[1]:  # its values came to lie under the name of its group
        line = "`# @package _global_`" if key == "experiment" else "`# @package model`, or `# @package _global_`"
        problem = f"a file of the group {key} begins with the line {line}, and sets groups in its `defaults`"
        return Fault(f"{file[1]}.yaml", "", problem)
    fault = _fault_of(str(key), problem, _schema_of(cause))
    return dataclasses.replace(fault, problem=f"in {file[1]}.yaml: {fault.problem}")


def _in_defaults(file: str, failed: str, name: str) -> Fault:
    """The fault of an entry in the ``defaults`` of ``file``; that of a choice may be in another file."""
    groups = sources().groups
    if failed == "override":
        problem = "there is nothing to override, as no file chooses from this group; leave out `override`"
        near = "" if name in groups else nearest(name, groups)
        return Fault(name, "", f"in {file}.yaml: {problem if name in groups else 'there is no such group'}", near)
    parents = [str(folder) for folder in PurePosixPath(name).parents if str(folder) in groups]
    if not parents:
        return Fault(f"{file}.yaml", "", f"its `defaults` name {name}, and there is no such file")
    group = parents[-1]
    fault = unknown_choice(group, name.removeprefix(f"{group}/"), sources().choices(group))
    where = "in the `defaults` of a file" if "/" not in file else f"in {file}.yaml"
    return dataclasses.replace(fault, problem=f"{where}: {fault.problem}")


def _not_chosen(group: str, given: str) -> Fault:
    """The fault of a group from which no file chooses in its defaults, so that there is no choice to replace."""
    if (near := as_choice(group, given)) != f"{group}={given}":
        return Fault(group, given, f"is a folder in the group {group.partition('/')[0]}", near)
    example = f"one in conf/experiment can, with `- /{group}: {given}`"
    return Fault(group, given, f"has no effect: no file chooses from this group in its `defaults`; {example}")


def section_is_off(override: str, section: str) -> Fault:
    """An override inside a section that is off, such as logger.wandb.mode without logger=wandb."""
    key, _, value = override.partition("=")
    group, _, option = section.partition(".")
    ways = {"callbacks": f"callbacks=[default,{option}]", "augment": f"{section}={{}} {override}"}
    return Fault(key, value, f"{section} is off; turn it on with {ways.get(group, f'{group}={option}')}")


def unlike_their_type(config: Any, prefix: str = "") -> Iterator[Fault]:
    """Yield a fault for each list, dict or section of ``config`` that an interpolation made something else."""
    schema: Any = type(config)
    for name, hint in hints(schema).items():
        value, inner = getattr(config, name), without_none(hint)
        if dataclasses.is_dataclass(value):
            yield from unlike_their_type(value, f"{prefix}{name}.")
        elif dataclasses.is_dataclass(inner) and value is not None:
            yield Fault(f"{prefix}{name}", str(value), section_problem(f"{prefix}{name}", inner))
        elif typing.get_origin(inner) in (list, dict):
            try:
                converted(schema, name, value)
            except OmegaConfBaseException:
                yield Fault(f"{prefix}{name}", str(value), f"must be {type_name(hint)}")


def _fault_of(key: str, problem: str, schema: type) -> Fault:
    """The fault of a key in a file: there is none, or its value has another type."""
    section, leaf = owner(schema, key)
    if section is None:
        return unknown_key(key, [*keys(schema)])
    hint = hints(section)[leaf]
    given = re.search(r"Value '(.*)' of type|value: (.*)", problem)
    inner = without_none(hint)
    wrong = section_problem(key, inner) if dataclasses.is_dataclass(inner) else f"must be {type_name(hint)}"
    return Fault(key, (given[1] or given[2]) if given else "", wrong)


def _sections(schema: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the key and the type of every section of ``schema``."""
    for name, hint in hints(schema).items():
        inner = without_none(hint)
        if dataclasses.is_dataclass(inner):
            yield f"{prefix}{name}", inner
            yield from _sections(inner, f"{prefix}{name}.")


def _schema_of(cause: BaseException | None) -> type:
    """The schema of the configuration that an error of OmegaConf is about."""
    node = getattr(cause, "parent_node", None)
    found = OmegaConf.get_type(node._get_root()) if node is not None else None
    return found if dataclasses.is_dataclass(found) else TrainCommand
