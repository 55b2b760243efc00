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
from omegaconf import DictConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vitrine.command.user_parts import for_hydra, without_replaced
from vitrine.config.sweep import facts_of
from vitrine.errors import ConfigError, Fault


def like(name: str, values: Mapping[str, Any], words: Sequence[str], loader: ConfigLoader) -> DictConfig:
    """The run's configuration with ``words`` applied to it.

    Args:
        name: of the configuration in conf/ that the run was made of.
        values: the run's configuration, nested plain values.
        words: overrides, groups among them.
        loader: Hydra's.

    Raises:
        ConfigError: the run has a key or a value that this version has not.
    """
    assert isinstance(loader, ConfigLoaderImpl)
    typed = for_hydra(word for word in words if not word.startswith("hydra"))
    config = hydra.compose(name, [word for word in typed if word.startswith("~")])
    values = without_replaced(values, words)
    _restore(config, {key: value for key, value in values.items() if facts_of(key).describes_run})
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
    leaves = list(_leaves(config, values, ""))
    following = [leaf for leaf in leaves if _follows(*leaf[:2])]
    waiting = [leaf for leaf in leaves if leaf not in following]
    found: dict[str, Fault] = {}
    while waiting:
        for parent, key, value in waiting:
            try:
                if isinstance(value, Mapping):
                    parent.merge_with({key.rpartition(".")[2]: dict(value)})  # a section that nothing had turned on
                else:
                    OmegaConf.update(config, key, value)
            except OmegaConfBaseException as error:
                problem = f"the run was made by another version: {str(error.msg or error).splitlines()[0]}"
                found[key] = Fault(key, "", problem)
        waiting = [leaf for leaf in following if leaf[1] not in found and not _is(*leaf)]
    if found:
        raise ConfigError(list(found.values()))


def _leaves(config: DictConfig, values: Mapping[str, Any], prefix: str) -> Iterator[tuple[DictConfig, str, Any]]:
    """Every value with its dotted key and the section it belongs in; a section that is off as a whole is one value."""
    for name, value in values.items():
        inner = config._get_node(name, validate_access=False)
        sections = isinstance(inner, DictConfig) and not inner._is_none() and not name.endswith("options")
        if isinstance(value, Mapping) and isinstance(inner, DictConfig) and sections:
            yield from _leaves(inner, value, f"{prefix}{name}.")
        else:
            yield config, f"{prefix}{name}", value


def _follows(parent: DictConfig, key: str) -> bool:
    node = parent._get_node(key.rpartition(".")[2], validate_access=False)
    return isinstance(node, Node) and node._is_interpolation()


def _is(parent: DictConfig, key: str, value: Any) -> bool:
    try:
        present = parent[key.rpartition(".")[2]]
    except OmegaConfBaseException:
        return False
    return (OmegaConf.to_container(present) if OmegaConf.is_config(present) else present) == value
