"""Checked configurations from the overrides of a command line.

Everything typed is composed once, by Hydra from ``conf/``, and checked once: all faults of all runs are reported
together, before torch is imported and before anything is written. What is returned is what the command then runs.
``fit`` and ``resume`` check again, in a millisecond, because a configuration can be made or changed in Python.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from vitrine.command.composer import Composer, Variants
from vitrine.command.composition_faults import as_faults
from vitrine.command.hydra_settings import choice_faults, unused_settings
from vitrine.command.multirun import Point, fixed_overrides, runs_of_multirun, several_values, single_run
from vitrine.command.overrides import check_overrides, quote
from vitrine.command.resolvers import SCHEMAS
from vitrine.command.sources import Sources, compose_files, composing, conf, sources
from vitrine.command.user_parts import for_hydra
from vitrine.config import TrainConfig
from vitrine.config.keys import optional_section
from vitrine.errors import ConfigError, Fault

__all__ = ["Point", "Variants", "as_composed", "checked_overrides", "compose", "composing", "conf", "hydra_settings"]
__all__ += ["launcher", "points"]


def compose(overrides: Sequence[str] = (), *, config_dir: str | Path | None = None) -> TrainConfig:
    """Return the configuration that ``train.py`` trains with ``overrides``: ``compose(["model=vit_nano"])``.

    Whether runs can be written to ``paths.output_dir`` is left to :func:`vitrine.fit`.

    Args:
        overrides: as typed after ``train.py``.
        config_dir: folder with configuration files of your own, as ``--config-dir``.

    Raises:
        ConfigError: it is invalid; the error has all faults.
    """
    if isinstance(overrides, str) or not all(isinstance(override, str) for override in overrides):
        near = f"compose({overrides.split()})" if isinstance(overrides, str) else ""
        raise ConfigError([Fault("overrides", str(overrides), "must be a list of strings", near)])
    with composing(Sources.choose(config_dir) if config_dir is not None else None):
        (point,) = points("train", list(overrides), multirun=False, check_output=False)
    config: TrainConfig = point.config.run
    return config


def points(
    command: str, arguments: list[str], *, multirun: bool, check_devices: bool = True, check_output: bool = True
) -> list[Point]:
    """Return the runs that the overrides ``arguments`` of ``train`` or ``eval`` ask for, all checked.

    ``check_devices`` is whether the GPUs that they ask for must be there, ``check_output`` whether training must be
    able to write to ``paths.output_dir``. Where ``hydra.*`` may name another folder, ``output_dirs.place`` checks it.

    Raises:
        ConfigError: with the faults of all runs.
    """
    with composing() as loader:
        sound, found = check_overrides(quote(arguments), SCHEMAS[command], loader)
        refused = {fault.key.partition("=")[0] for fault in found}
        overrides = OverridesParser.create(config_loader=loader).parse_overrides(sound)
        check_output &= not sources().mention_hydra and not any(text.startswith("hydra.") for text in arguments)
        composer = Composer(command, loader, check_output=check_output)
        if command == "train" and sources().mention_hydra:  # else there is nothing to compose
            found += _unused_settings(composer, fixed_overrides(overrides))
        count = len(found)
        asked = (runs_of_multirun if multirun else single_run)(composer, overrides, found)
        # A refused key has its default here: further faults of it would be of that value.
        found[count:] = [fault for fault in found[count:] if fault.key not in refused]
    on_gpus = [point.config for point in asked if command == "train" and point.config.trainer.accelerator == "gpu"]
    checked = check_devices and on_gpus and not found
    if checked and not (multirun and launcher(arguments) == "slurm"):  # its jobs run on other machines
        found += _missing_devices(on_gpus)
    if found:
        raise ConfigError(found)
    return asked


def launcher(arguments: list[str]) -> str:
    """Return the launcher that ``hydra/launcher`` chooses for a multirun, typed or in a configuration file.

    Raises:
        ConfigError: vitrine cannot use it.
    """
    with composing() as loader:
        overrides = OverridesParser.create().parse_overrides(quote(arguments))
        choices = Composer("train", loader).settings(fixed_overrides(overrides)).runtime.choices
    if found := [*choice_faults("hydra/launcher", choices), *choice_faults("hydra/sweeper", choices)]:
        raise ConfigError(found)
    return str(choices["hydra/launcher"])


def hydra_settings(command: str, overrides: Sequence[str]) -> DictConfig:
    """Return the composed configuration with its node ``hydra``; values in sections that can be off are left out.

    Raises:
        ConfigError: Hydra cannot compose it.
    """
    outside = [override for override in overrides if not optional_section(SCHEMAS[command], override.partition("=")[0])]
    with composing():
        if command != "train":  # a key may have the name of a group, which Hydra would look for
            outside = [override for override in outside if override.partition("=")[0] not in sources().groups]
        with as_faults():
            return compose_files(command, for_hydra(outside))


def checked_overrides(command: str, arguments: list[str]) -> list[str]:
    """Return the overrides as Hydra can read them.

    Raises:
        ConfigError: an override is wrong whatever the others are.
    """
    with composing() as loader:
        sound, found = check_overrides(quote(arguments), SCHEMAS[command], loader)
    if found:
        raise ConfigError(found)
    return sound


def as_composed(command: str, arguments: list[str], *, multirun: bool = False) -> DictConfig:
    """Return the configuration that would be run, its limits not checked; of a multirun, what all runs share.

    Raises:
        ConfigError: it cannot be composed.
    """
    checked = checked_overrides(command, arguments)
    with composing() as loader:
        overrides = OverridesParser.create(config_loader=loader).parse_overrides(checked)
        if not multirun and (several := [override for override in overrides if override.is_sweep_override()]):
            raise ConfigError(several_values(command, several))
        composed, found = Composer(command, loader).composed(fixed_overrides(overrides))
    if found:
        raise ConfigError(found)
    return composed


def _unused_settings(composer: Composer, overrides: Sequence[str]) -> list[Fault]:
    """Return the settings of Hydra in a user's files that have no effect; none where these cannot be composed."""
    with suppress(ConfigError):
        settings = composer.settings(overrides)
        with composing(Sources()) as loader:
            return unused_settings(settings, Composer("train", loader).settings([]))
    return []


def _missing_devices(on_gpus: Sequence[TrainConfig]) -> list[Fault]:
    """Return a fault where a configuration that asks for GPUs by name lacks one. Imports torch."""
    from vitrine.distributed.hardware import choose_hardware, gpus, missing_gpu

    if not gpus():  # reported once, not for each trial
        return [missing_gpu(on_gpus[0].data.name, conf() / "experiment")]
    found: list[Fault] = []
    for config in on_gpus:
        try:
            choose_hardware(config)
        except ConfigError as error:
            found += error.faults
    return found
