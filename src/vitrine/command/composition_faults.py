"""Faults of composed configurations: what Hydra and OmegaConf raise for a file, and values unlike their key's type."""

import dataclasses
import re
import typing
from collections.abc import Iterator
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from vitrine.command.overrides import converted, type_name
from vitrine.config.keys import hints, without_none
from vitrine.errors import Fault

# Lines of Hydra's and OmegaConf's errors: names of classes, the key, shown by itself, and advice that fails here.
NOT_SHOWN = ("object_type", "reference_type", "full_key", "To append to your config")


def composition_fault(error: Exception) -> Fault:
    """Return an error that Hydra or OmegaConf raised for a configuration file as a fault."""
    causes = [str(cause) for cause in (error, error.__cause__) if cause is not None]
    lines = dict.fromkeys(line.strip() for cause in causes for line in cause.splitlines() if line.strip())
    keys = (getattr(one, "full_key", None) for one in (error.__cause__, error))
    key = next(filter(None, keys), "configuration")
    shown = (line for line in lines if not line.startswith(NOT_SHOWN))
    problem = "; ".join(shown)
    if (file := re.match(r"In '(\w+)/", problem)) and "not in 'TrainCommand'" in problem:
        line = "`# @package _global_`" if file[1] == "experiment" else "`# @package model`, or `# @package _global_`"
        problem += f"; a file of the group {file[1]} begins with the line {line}, and sets groups in its `defaults`"
    return Fault(str(key), "", problem)


def section_is_off(override: str, section: str) -> Fault:
    """An override inside a section that is off, such as logger.wandb.mode without logger=wandb."""
    key, _, value = override.partition("=")
    group, _, option = section.partition(".")
    choice = f"[default,{option}]" if group == "callbacks" else option
    return Fault(key, value, f"{section} is off; turn it on with {group}={choice}")


def unlike_their_type(config: Any, prefix: str = "") -> Iterator[Fault]:
    """Yield a fault for each list or dict of ``config``, a dataclass, that is none: OmegaConf leaves interpolations."""
    for name, hint in hints(type(config)).items():
        value = getattr(config, name)
        if dataclasses.is_dataclass(value):
            yield from unlike_their_type(value, f"{prefix}{name}.")
        elif typing.get_origin(without_none(hint)) in (list, dict):
            try:
                converted(type(config), name, value)
            except OmegaConfBaseException:
                yield Fault(f"{prefix}{name}", str(value), f"must be {type_name(hint)}")
