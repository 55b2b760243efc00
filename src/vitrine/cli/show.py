"""What a command prints instead of running: its help, its configuration, and what Hydra knows about it."""

import sys
from argparse import Namespace
from copy import deepcopy
from string import Template
from typing import Any

from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from vitrine.command.compose import as_composed, checked_overrides, hydra_settings, points
from vitrine.command.composition_faults import as_faults
from vitrine.command.overrides import sorted_choices
from vitrine.command.resolvers import SCHEMAS
from vitrine.command.sources import primary_config, sources
from vitrine.command.user_parts import for_hydra
from vitrine.errors import ConfigError, Fault
from vitrine.runs.provenance import program
from vitrine.text import as_override


@as_faults()
def show_help(name: str, flags: Namespace) -> None:
    """Print ``--help``, or ``--hydra-help``."""
    overrides = checked_overrides(name, flags.overrides)
    if flags.hydra_help:
        _hydra().hydra_help(None, get_args_parser(), Namespace(overrides=[]))
        return
    composed = hydra_settings(name, overrides)
    HydraConfig.instance().set_config(composed)
    keys = _hydra().get_sanitized_cfg(deepcopy(composed), "job")
    groups = sorted(group for group in sources().groups if "/" not in group)
    options = {group: sorted_choices(sources().choices(group)) for group in groups}
    choices = [f"{group}: {', '.join(options[group])}" for group in groups if options[group]]
    text = Template(composed.hydra.help.template).safe_substitute(
        APP_CONFIG_GROUPS="\n".join(choices), CONFIG=OmegaConf.to_yaml(keys, resolve=flags.resolve)
    )
    for command in SCHEMAS:
        text = text.replace(f"python {command}.py", program(command))
    print(text)


@as_faults()
def show_info(name: str, flags: Namespace) -> None:
    """Print ``--info``: the defaults list, the search path, the plugins."""
    overrides = checked_overrides(name, flags.overrides)
    hydra_settings(name, overrides)  # raises where Hydra would print a traceback
    _hydra().show_info(flags.info, primary_config(name), for_hydra(overrides), RunMode.RUN)


@as_faults()
def show_config(name: str, flags: Namespace) -> None:
    """Print ``--cfg``: what would be run; of a multirun the first run, and how many there are.

    Raises:
        ConfigError: the configuration cannot be composed, or has no such ``--package``.
    """
    overrides, heading = flags.overrides, ""
    if flags.multirun:
        made = points(name, overrides, multirun=True, check_devices=False)
        overrides = made[0].overrides
        varying = ", ".join(f"{key}={value}" for key, value in made[0].varies.items())
        heading = f"# run 1 of {len(made):,}: {varying}"
        if made[0].space:
            heading = f"# the start of a search over {', '.join(made[0].space)}"
    shown = _selected(_shown(name, overrides, flags.cfg), flags.package)
    if heading:
        print(heading)
    if not OmegaConf.is_config(shown):
        print(as_override(shown))
        return
    if flags.package not in (None, "_global_"):
        print(f"# @package {flags.package}")
    sys.stdout.write(OmegaConf.to_yaml(shown, resolve=flags.resolve))


def _shown(name: str, overrides: list[str], kind: str) -> DictConfig:
    """The configuration of the ``job``, of ``hydra`` itself, or ``all``."""
    job = as_composed(name, overrides)
    if kind == "job":
        return job
    composed = hydra_settings(name, checked_overrides(name, overrides))
    with open_dict(composed), open_dict(composed.hydra):
        for part in ("help", "hydra_help"):
            del composed.hydra[part]
        for key in list(composed):
            if key != "hydra":
                del composed[key]
    return OmegaConf.merge(composed, job) if kind == "all" else composed  # type: ignore[return-value]


def _selected(composed: DictConfig, package: str | None) -> Any:
    """The part of the configuration at the dotted key ``package``."""
    if package is None or package == "_global_":
        return composed
    absent = object()
    found = OmegaConf.select(composed, package, default=absent)
    if found is absent:
        raise ConfigError(
            [Fault("--package", package, f"is not in the configuration; it has {', '.join(map(str, composed))}")]
        )
    return found


def _hydra() -> Hydra:
    hydra = GlobalHydra.instance().hydra
    assert hydra is not None
    return hydra
