"""The configuration of an earlier run with something changed in it, as if the whole had been typed at once.

A value of the run that follows from others where nothing is typed (``model.image_size: ${data.image_size}``) goes on
following them: ``like=RUN data=cifar10`` fits the model to the new images. All else is as it was.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra.core.config_loader import ConfigLoader
from hydra.core.default_element import GroupDefault
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vitrine.errors import ConfigError, Fault

NOT_TAKEN = ("like", "resume")  # how the run was asked for


def like(name: str, values: Mapping[str, Any], words: Sequence[str], loader: ConfigLoader) -> DictConfig:
    """The run's configuration with ``words`` applied to it.

    Args:
        name: of the configuration in conf/ that the run was made of.
        values: the run's configuration, nested plain values.
        words: overrides that Hydra can compose, groups among them.
        loader: Hydra's.

    Raises:
        ConfigError: the run has a key or a value that this version has not.
    """
    assert isinstance(loader, ConfigLoaderImpl)
    typed = [word for word in words if not word.startswith("hydra")]
    config = hydra.compose(name)
    _restore(config, {key: value for key, value in values.items() if key not in NOT_TAKEN})
    before, after = (loader.compute_defaults_list(name, some, RunMode.RUN) for some in ([], typed))
    repository = CachingConfigRepository(loader.repository)
    # A file counts if its group was typed, or if the file of a typed one asks for it, as recipes do; not if it is there
    # whenever nothing is typed.
    primary = repository.load_config(name)
    assert primary is not None
    standard = {f"{one.group}/{one.value}" for one in primary.defaults_list or () if isinstance(one, GroupDefault)}
    chosen = {word.partition("=")[0] for word in typed}
    files = [
        one
        for one in after.defaults
        if one.override_key in chosen or (one not in before.defaults and one.config_path not in standard)
    ]
    config.merge_with(loader._compose_config_from_defaults_list(files, repository))
    loader._apply_overrides_to_config(after.config_overrides, config)
    return config


def _restore(config: DictConfig, values: Mapping[str, Any]) -> None:
    """Set ``values`` in ``config``, but where they follow from the others anyway."""
    found, following = [], []
    for parent, key, value in _leaves(config, values, ""):
        try:
            if OmegaConf.is_interpolation(parent, key.rpartition(".")[2]):
                following.append((parent, key, value))
            else:
                OmegaConf.update(config, key, value)
        except OmegaConfBaseException as error:
            problem = f"the run was made by another version: {str(error.msg or error).splitlines()[0]}"
            found.append(Fault(key, "", problem))
    if found:
        raise ConfigError(found)
    while differing := [(key, value) for parent, key, value in following if not _is(parent, key, value)]:
        for key, value in differing:
            OmegaConf.update(config, key, value)


def _leaves(config: DictConfig, values: Mapping[str, Any], prefix: str) -> Iterator[tuple[DictConfig, str, Any]]:
    """Every value with its dotted key and the section it belongs in; a section that is off as a whole is one value."""
    for name, value in values.items():
        inner = config._get_node(name)
        if isinstance(value, Mapping) and isinstance(inner, DictConfig) and not inner._is_none():
            yield from _leaves(inner, value, f"{prefix}{name}.")
        else:
            yield config, f"{prefix}{name}", value


def _is(parent: DictConfig, key: str, value: Any) -> bool:
    try:
        present = parent[key.rpartition(".")[2]]
    except OmegaConfBaseException:
        return False
    return (OmegaConf.to_container(present) if OmegaConf.is_config(present) else present) == value
