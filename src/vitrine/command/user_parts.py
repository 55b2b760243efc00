"""Parts of a user's own on the command line: ``position=my_lab.fourier.Fourier model.position_options.bands=8``.

A dotted name is no file of its config group. So the override of the group becomes one of the key that names the part,
before Hydra sees it. What a dotted name is, and how it is imported, is in config/parts.py.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import cache
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf, open_dict

from vitrine.config.keys import leaves
from vitrine.config.model import OF_ANY_MODEL
from vitrine.config.parts import DOTTED, PartError, is_dotted, load, options_field
from vitrine.config.schema import DataConfig
from vitrine.config.sweep import TrainCommand
from vitrine.errors import Fault
from vitrine.text import nearest

# The choice of a group that a part of the user's stands beside, where the group also sets other keys. No choice leaves
# these keys at the schema's default.
BESIDE = {"optimizer": "adamw", "schedule": "constant", "augment": "none", "logger": "csv", "loss": "cross_entropy"}
NO_CHOICE = ("model", "data")
DATA = {"epochs": 10, "mean": [0.5], "std": [0.5], "flip": False}  # for data sets that do not say
MODEL_GROUPS = ("depth", "norm_placement", "patch")  # set keys of Vision Transformers; parts' groups do, too


@cache
def part_keys() -> dict[str, str]:
    """Return the key that names a part, by config group: ``model.position`` for ``position``, and so on."""
    found = {}
    for key, field in leaves(TrainCommand):
        if "part" in field.metadata:
            found[key.rpartition(".")[0] if field.name in ("name", "parts") else field.name] = key
    return found


def is_part(group: str, value: object) -> bool:
    """Whether ``group=value`` names a part of the user's."""
    return group in part_keys() and is_dotted(value)


def names_part(override: str) -> bool:
    """Whether an override chooses a part, built-in or the user's, by its group or its key."""
    name = override.lstrip("+").partition("=")[0]
    return name in part_keys() or name in part_keys().values()


def is_option(key: str) -> bool:
    """Whether ``key`` is an option of a part: ``model.position_options.bands``."""
    return any(key.startswith(f"{options}.") for options in options_keys())


def for_hydra(overrides: Iterable[str]) -> list[str]:
    """Return overrides that Hydra can compose, for some that may name parts of the user's or their options."""
    return [composable for override in overrides for composable in _for_hydra(override)]


def without_replaced(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return the configuration ``values`` of a run without the user's parts that ``overrides`` replace, and options."""
    kept = {section: dict(inner) if isinstance(inner, Mapping) else inner for section, inner in values.items()}
    sections = {section: inner for section, inner in kept.items() if isinstance(inner, dict)}
    chosen = dict(override.lstrip("+").partition("=")[::2] for override in overrides)
    for group, key in part_keys().items():
        section, _, name = key.partition(".")
        stored = sections.get(section, {})
        given = chosen.get(key, chosen.get(group))
        if given is not None and given != stored.get(name):
            stored.pop(options_field(name), None)
            if is_dotted(stored.get(name)):
                stored.pop(name)
            if group in NO_CHOICE and is_dotted(given):
                kept.pop(section, None)
    return kept


def without_replaced_options(base: DictConfig, config: DictConfig) -> DictConfig | None:
    """Return ``base``, of files, without the options of its user's parts that are not in ``config`` any more.

    ``None`` if there are none. Options without a part in ``base`` stay: they may be meant for one that is typed.
    """
    gone = []
    for key, options in zip(part_keys().values(), options_keys(), strict=True):
        if given := OmegaConf.select(base, options):
            before, now = OmegaConf.select(base, key), OmegaConf.select(config, key)
            if OmegaConf.is_list(before):
                replaced = {*_class_names(before)} - {*_class_names(now or ())}
                gone += [(options, name) for name in given if name in replaced]
            elif is_dotted(before) and before != now:
                gone += [(options, name) for name in given]
    if not gone:
        return None
    kept = deepcopy(base)
    with open_dict(kept):
        for options, name in gone:
            del OmegaConf.select(kept, options)[name]
    return kept


def _class_names(parts: Iterable[Any]) -> Iterator[str]:
    return (str(name).rpartition(".")[2] for name in parts)


def untrusted(composed: DictConfig, overrides: Iterable[str], allowed: Callable[[str], bool]) -> dict[str, str]:
    """Return the parts of the user's that a composed configuration names without permission, by their keys.

    Names come from a run's folder or from files that were found. Those in ``overrides`` are permitted, and those that
    are ``allowed``.
    """
    named = {*part_keys(), *part_keys().values()}
    typed: set[str] = set()
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key in named:  # a dotted name elsewhere, as in the path after like=, permits nothing
            typed |= set(_entries(value))
    found: dict[str, str] = {}
    for key in part_keys().values():
        value = OmegaConf.select(composed, key)
        for name in value if OmegaConf.is_list(value) else [value]:
            if is_dotted(name) and name not in typed and not allowed(name):
                found[key] = ",".join(filter(None, [found.get(key), str(name)]))
    return found


def names_in_values(key: str, values: Iterable[str]) -> list[str]:
    """Return the dotted names in ``values`` of an override, if its key or group chooses a part."""
    return [match[0] for value in values for match in DOTTED.finditer(value) if names_part(key)]


def complete_data(data: DictConfig) -> list[Fault]:
    """Set the keys of a user's data set that have no value from the attribute ``config`` of its part, if it has one.

    Returns:
        What keeps it from being imported, the keys that must be given, and those in ``config`` that it cannot state.
    """
    found, stated = _described(data.name)
    defaults = {field.name: field.default for field in dataclasses.fields(DataConfig)}
    missing = [name for name in defaults if OmegaConf.is_missing(data, name)]
    known = DATA | stated
    for name in [name for name in missing if name in known]:
        data[name] = known[name]
        missing.remove(name)
    if not found:
        problem = f"is needed by data={data.name}: data.{{0}}=VALUE, or a dict {data.name}.config with '{{0}}' in it"
        found = [Fault(f"data.{name}", "", problem.format(name)) for name in missing]
    for name in missing:  # stands in, so that the rest is checked all the same
        data[name] = {"image_size": 8, "patch_size": 8}.get(name, 2)
    allowed = [name for name, default in defaults.items() if default == MISSING and name not in ("name", "root")]
    for key in [key for key in stated if key not in allowed]:
        problem = f"its attribute config has {key}; it can have {', '.join(allowed)}"
        near = f"data.{key}={stated[key]}" if key in defaults else nearest(str(key), allowed)
        found.append(Fault("data.name", data.name, problem, near))
    return found


def _described(name: str) -> tuple[list[Fault], dict[str, Any]]:
    """Return why the data set ``name`` has no description of its images, and that description."""
    try:
        stated = getattr(load(name), "config", {})
    except PartError as error:
        return [Fault("data.name", name, error.problem, error.near and f"data={error.near}")], {}
    if isinstance(stated, Mapping):
        return [], dict(stated)
    return [Fault("data.name", name, f"its attribute config must be a dict, not {type(stated).__name__}")], {}


def keys_of_vits(model: str, overrides: Iterable[str]) -> list[Fault]:
    """Return a fault for each override that sets something of Vision Transformers, where ``model`` is another one."""
    groups = {*MODEL_GROUPS, *(group for group, key in part_keys().items() if key.startswith("model."))} - {"model"}
    shared = {*OF_ANY_MODEL} - {"patch_size"}  # which is stored, as the data's, and not passed to the model
    found = []
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        section, _, name = key.partition(".")
        if key in groups or (section == "model" and name and name.partition(".")[0] not in shared):
            found.append(Fault(key, value.strip("'"), f"belongs to Vision Transformers, not to model={model}"))
    return found


def _for_hydra(override: str) -> Iterator[str]:
    name, _, value = override.partition("=")
    group = name.lstrip("+")
    if group not in part_keys():
        is_dict = is_option(group) or group in options_keys() or group == "sweep.space"
        if group == "loss.class_weights" and not (is_dict := value.startswith("{")):
            yield f"{group}=null"  # a list is not merged with a file's dict
        yield f"++{group}={value}" if is_dict else override  # which may have other entries
        return
    entries = _entries(value)
    own = [entry for entry in entries if is_dotted(entry)]
    if not own:
        yield override
        return
    key = part_keys()[group]
    if key.endswith(".parts"):
        if builtin := [entry for entry in entries if entry not in own]:
            yield f"{group}=[{','.join(builtin)}]"
        elif group in BESIDE:
            yield f"{group}={BESIDE[group]}"
        yield f"{key}=[{','.join(own)}]"
        return
    if group in BESIDE:
        yield f"{group}={BESIDE[group]}"
    elif group in NO_CHOICE:
        yield f"~{group}"
    if group == "optimizer":
        yield "optimizer.betas=null"  # whose learning rate and weight decay are adamw's, unless they are given
    yield f"{key}={value}"


def _entries(value: str) -> list[str]:
    """The entries of a list, or the one value."""
    return [entry.strip(" '\"") for entry in value.strip("[]").split(",")] if value.startswith("[") else [value]


@cache
def options_keys() -> tuple[str, ...]:
    """Return the keys that hold options of parts: ``model.position_options`` and so on."""
    found = []
    for key in part_keys().values():
        section, _, name = key.rpartition(".")
        found.append(f"{section}.{options_field(name)}")
    return tuple(found)
