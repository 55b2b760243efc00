"""The configuration of an earlier run, to start another run from (``like=RUN``) or to resume it (``resume=RUN``).

A value that is computed from others in ``conf/`` (``model.image_size: ${data.image_size}``) is still computed:
``like=RUN data=cifar10`` adapts the model to the new images. All other values are the run's, but with ``like=RUN`` not
its ``paths``: a new run goes where other new runs go.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import reduce
from operator import getitem
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra.core.config_loader import ConfigLoader
from hydra.core.default_element import GroupDefault, ResultDefault
from hydra.types import RunMode
from omegaconf import DictConfig, Node, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from vitrine.command.plain_values import load_file, values_in
from vitrine.command.sources import from_files, sources
from vitrine.command.user_parts import NO_CHOICE, is_option, options_keys, part_keys, without_replaced
from vitrine.config.keys import hints, without_none
from vitrine.config.parts import is_dotted
from vitrine.config.schema import TrainConfig
from vitrine.config.serialize import interpolations
from vitrine.config.sweep import TrainCommand, facts_of
from vitrine.errors import ConfigError, Fault
from vitrine.runs.flatten import flatten

ANOTHER_VERSION = "the run was made by another version"


def inherited_base(
    name: str, values: Mapping[str, Any], choices: Sequence[str], parts: Sequence[str], loader: ConfigLoader
) -> DictConfig:
    """Return a run's configuration ``values``, changed by ``choices`` from groups and by overrides of ``parts``.

    What the run's other choice of a group has set is not kept: ``augment=none`` turns ``augment=strong`` off.

    Raises:
        ConfigError: the run has a key or a value that this version lacks.
    """
    assert isinstance(loader, ConfigLoaderImpl)
    chosen = [choice for choice in choices if not choice.startswith("hydra")]
    of_run = _of_a_run(values)
    removed = [choice for choice in chosen if choice.startswith("~")]
    config = deepcopy(from_files("train", [*removed, *_rates_of(of_run, chosen)])[0])
    before, after = (loader.compute_defaults_list(name, overrides, RunMode.RUN) for overrides in ([], chosen))
    repository = CachingConfigRepository(loader.repository)
    # A file counts if its group was chosen, or if a chosen file asks for it, as recipes do; not if it is always there.
    primary = repository.load_config(name)
    assert primary is not None
    always = [entry for entry in primary.defaults_list or () if isinstance(entry, GroupDefault)]
    standard = {f"{entry.group}/{entry.value}" for entry in always}
    groups = {choice.partition("=")[0] for choice in chosen}
    files = [
        entry
        for entry in after.defaults
        if _group(entry) in groups or (entry not in before.defaults and entry.config_path not in standard)
    ]
    changed = loader._compose_config_from_defaults_list(files, repository)
    kept = without_replaced(of_run, [*_parts_in(changed), *parts])
    dropped = _of_other_choices(kept, changed, files, parts, loader)
    rest = _without(kept, dropped)
    if "optimizer" in dropped:  # finetune.head_lr is computed from its name
        rest["optimizer"] = {key: value for key, value in of_run.get("optimizer", {}).items() if key == "name"}
    _restore(config, rest)
    if dropped:
        plain: Any = OmegaConf.to_container(from_files("train", chosen)[0])
        for key in dropped:
            if not is_option(key):
                OmegaConf.update(config, key, reduce(getitem, key.split("."), plain))
    with open_dict(config):  # options of parts have keys that the schema lacks
        config.merge_with(changed)
    return config


def _rates_of(values: Mapping[str, Any], chosen: Sequence[str]) -> list[str]:
    """Return the choices of a run whose files compute learning rates, of groups of which nothing is ``chosen``."""
    taken = {choice.lstrip("~+").partition("=")[0] for choice in chosen}
    names = {group: (values.get(group) or {}).get("name") for group in ("optimizer", "finetune") if group not in taken}
    return [f"{group}={name}" for group, name in names.items() if name in sources().choices(group)]


def _parts_in(config: DictConfig) -> list[str]:
    """Return the parts that ``config`` chooses, built-in or the user's, as overrides."""
    values = flatten(OmegaConf.to_container(config))  # type: ignore[arg-type]
    return [f"{group}={values[key]}" for group, key in part_keys().items() if key in values]


def _group(entry: ResultDefault) -> str:
    return (entry.config_path or "").partition("/")[0]


def _of_other_choices(
    values: Mapping[str, Any],
    changed: DictConfig,
    files: Sequence[ResultDefault],
    parts: Sequence[str],
    loader: ConfigLoader,
) -> set[str]:
    """Return the keys and sections of a run's ``values`` that another choice of a group in ``files`` has set.

    A group with a section of its own stands for all of it. Of one that shares a section, these are the keys that
    ``changed``, the files' values, lack, where the run has the value of the file that it chose.
    """
    own_parts = {part.partition("=")[0] for part in parts if is_dotted(part.partition("=")[2])}
    run, found = flatten(values), set[str]()
    new = flatten(OmegaConf.to_container(changed))  # type: ignore[arg-type]
    for entry in files:
        group, section = _group(entry), entry.package or ""
        if section == group and group not in NO_CHOICE:
            found |= {section} & hints(TrainConfig).keys() - own_parts  # sweep= is not of a run
        elif section:
            read = {name: load_file(f"{group}/{name}", loader) for name in sources().choices(group)}
            sets = {f"{group}/{name}": values_in(file, section) for name, file in read.items() if file is not None}
            if any(run.get(key) != value for key, value in sets[entry.config_path or ""].items()):
                pairs = [pair for file in sets.values() if _is_choice(file, run) for pair in file.items()]
                found |= {key for key, value in pairs if key not in new and run.get(key) == value}
    return found


def _is_choice(file: Mapping[str, Any], run: Mapping[str, Any]) -> bool:
    """Whether a run chose a file of a group, by their values: it has the file's data set, or else all of its values.

    Values that are computed are left out.
    """
    values = {key: value for key, value in file.items() if key == "data.name"} or file
    return all(run.get(key) == value or "${" in str(value) for key, value in values.items())


def _without(values: Mapping[str, Any], dropped: Collection[str], prefix: str = "") -> dict[str, Any]:
    return {
        name: _without(value, dropped, f"{prefix}{name}.") if isinstance(value, Mapping) else value
        for name, value in values.items()
        if f"{prefix}{name}" not in dropped
    }


def _of_a_run(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a run folder that say what the run is; how it was launched or trusted is never taken.

    Raises:
        ConfigError: a key is no name, as ``[trust]``, which OmegaConf reads as ``trust``; a section is no mapping; or a
            value is an interpolation.
    """
    command = {field.name for field in dataclasses.fields(TrainCommand)}
    of_run = {field.name for field in dataclasses.fields(TrainConfig) if facts_of(field.name).describes_run}
    found = [*interpolations(values), *_unreadable(values, TrainConfig, "")]
    if found:
        raise ConfigError(found)
    return {key: value for key, value in values.items() if key in of_run or key not in command}


def _unreadable(values: Mapping[Any, Any], schema: Any, prefix: str) -> Iterator[Fault]:
    """Yield the keys that are no names, and the sections that are no mappings."""
    for name, value in values.items():
        section = without_none(hints(schema).get(name))
        if not (isinstance(name, str) and name.isidentifier()):
            yield Fault(f"{prefix}{name}", "", f"{ANOTHER_VERSION}: this is not the name of a key")
        elif dataclasses.is_dataclass(section) and isinstance(value, Mapping):
            yield from _unreadable(value, section, f"{prefix}{name}.")
        elif dataclasses.is_dataclass(section) and (value is not None or section is hints(schema)[name]):
            yield Fault(f"{prefix}{name}", str(value), f"{ANOTHER_VERSION}: this is a section of several keys")
        elif not prefix and name not in {field.name for field in dataclasses.fields(TrainCommand)}:
            yield Fault(name, "", f"{ANOTHER_VERSION}: there is no such key")


def _restore(config: DictConfig, values: Mapping[str, Any]) -> None:
    """Set ``values`` in ``config``, except where interpolations give them already."""
    leaves = list(_leaves(config, values, ""))
    following = [leaf for leaf in leaves if _follows(*leaf[:2])]
    waiting = [leaf for leaf in leaves if leaf not in following]
    found: dict[str, Fault] = {}
    while waiting:  # each leaf is set at most once
        following = [leaf for leaf in following if leaf not in waiting]
        for parent, key, value in waiting:
            try:
                if key in options_keys():
                    OmegaConf.update(config, key, dict(value), force_add=True)
                elif isinstance(value, Mapping):
                    parent.merge_with({key.rpartition(".")[2]: dict(value)})  # a section that nothing had turned on
                else:
                    OmegaConf.update(config, key, value)
            except OmegaConfBaseException as error:
                problem = f"{ANOTHER_VERSION}: {str(error.msg or error).splitlines()[0]}"
                found[key] = Fault(key, "", problem)
        waiting = [leaf for leaf in following if leaf[1] not in found and not _is(*leaf)]
    if found:
        raise ConfigError(list(found.values()))


def _leaves(config: DictConfig, values: Mapping[str, Any], prefix: str) -> Iterator[tuple[DictConfig, str, Any]]:
    """Yield every value with its section and dotted key; a section that is off counts as a value."""
    for name, value in values.items():
        inner = config._get_node(name, validate_access=False)
        has_keys = isinstance(value, Mapping) and f"{prefix}{name}" not in options_keys()
        if has_keys and isinstance(inner, DictConfig) and not inner._is_none():
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
