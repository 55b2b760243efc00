"""Keys that a command line sets or varies, but that have no effect on any of its runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitrine.config.keys import leaves, value_at
from vitrine.config.model import LEARNED_TABLES
from vitrine.config.parts import is_dotted
from vitrine.config.schema import AUTO, TrainConfig
from vitrine.data.own_files import WITHOUT_ROOT, reads_root
from vitrine.errors import Fault


def idle_keys(given: Mapping[str, str], configs: Sequence[Any]) -> list[Fault]:
    """Return a fault for each key that has another value than its default, and no effect on any run.

    The value 0 alone, which turns something off, is no fault: ``model.drop_path=0 depth=1``.

    Args:
        given: typed or varied keys, and their values as typed; "" for those of a search.
        configs: of the runs; other commands have none.
    """
    found = []
    given = dict(given) | {f"{group}.name": choice for group, choice in given.items()}
    configs = [config for config in configs if isinstance(config, TrainConfig)]
    defaults = {key: field.default for key, field in leaves(TrainConfig) if key in _RULES and key in given}
    for key, default in defaults.items():
        rule, values = _RULES[key], {value_at(config, key) for config in configs}
        if values - {default} and values != {0} and all(map(rule.is_idle, configs)):
            value = given[key]
            instead = rule.instead.format(value) if value else rule.instead.removesuffix("={}")
            found.append(Fault(key.removesuffix(".name"), value, rule.problem, instead))
    return found


@dataclass(frozen=True)
class _Rule:
    """When a key has no effect, why, and what to type instead, if anything, where ``{}`` stands for its value."""

    is_idle: Callable[[TrainConfig], bool]
    problem: str
    instead: str = ""


def _is_probe_at_its_own_rate(config: TrainConfig) -> bool:
    own = config.finetune.head_lr not in (None, config.optimizer.lr)
    return config.finetune.name == "linear_probe" and own and config.optimizer.lr != AUTO


def _is_built_in(position: str) -> bool:
    return not is_dotted(position)  # a part of the user's is given all keys of the model


_RULES = {
    "optimizer.lr": _Rule(
        _is_probe_at_its_own_rate,
        "has no effect with finetune=linear_probe, which trains the head alone, at finetune.head_lr",
        "finetune.head_lr={}",
    ),
    "trainer.activation_checkpointing": _Rule(
        lambda config: config.finetune.name == "linear_probe",
        "has no effect with finetune=linear_probe, which trains no block",
        "trainer.activation_checkpointing=false",
    ),
    "model.position_init": _Rule(
        lambda config: _is_built_in(config.model.position) and config.model.position not in LEARNED_TABLES,
        "has no effect without a learned vector for each position",
        "position=learned",
    ),
    "model.sincos_frequencies": _Rule(
        lambda config: _is_built_in(config.model.position) and config.model.position != "sincos2d",
        "has no effect without position=sincos2d",
        "position=sincos2d",
    ),
    "model.class_token_init": _Rule(
        lambda config: not config.model.class_token,
        "has no effect with model.class_token=false",
        "model.class_token=true",
    ),
    "model.drop_path_shape": _Rule(
        lambda config: config.model.drop_path == 0,
        "has no effect with model.drop_path=0.0",
        "model.drop_path=0.1",
    ),
    "model.drop_path": _Rule(
        lambda config: config.model.depth == 1 and config.model.drop_path_shape == "linear",
        "has no effect with depth=1 and model.drop_path_shape=linear, which is 0 in the first block",
        "model.drop_path_shape=constant",
    ),
    "model.patch_dropout": _Rule(
        lambda config: config.model.patches == 1,
        "has no effect on images of one patch",
        "model.patch_dropout=0.0",
    ),
    **dict.fromkeys(
        ("distill.name", "distill.weight", "distill.temperature"),
        _Rule(lambda config: config.distill.teacher is None, "has no effect without a teacher", "distill.teacher=RUN"),
    ),
    "data.root": _Rule(lambda config: not reads_root(config.data), WITHOUT_ROOT),
    "augment.flip": _Rule(
        lambda config: not config.data.flip,
        "has no effect with data.flip=false: a mirrored image may show another class",
        "augment.flip=false",
    ),
}
