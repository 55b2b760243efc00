"""Schemas and OmegaConf resolvers that ``conf/`` refers to; importing this module registers them."""

from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from vitrine.config import EvalConfig
from vitrine.config.predict import PredictConfig
from vitrine.config.size import height_width, is_size, plain_size
from vitrine.config.sweep import TrainCommand
from vitrine.errors import RunError
from vitrine.runs import RunRecord

# By command.
SCHEMAS: dict[str, type] = {"train": TrainCommand, "eval": EvalConfig, "predict": PredictConfig}


def divide(dividend: float, divisor: float) -> float:
    """``${divide:0.2,${model.dim}}``: a quotient. A divisor below 1 counts as 1: its own limit reports it."""
    return dividend / max(divisor, 1)


def if_set(value: object, then: object, otherwise: object) -> object:
    """``${if_set:${model.pretrained},learned,sincos2d}``: ``then`` if the value is not null, else ``otherwise``."""
    return otherwise if value is None else then


def if_true(condition: bool, then: object, otherwise: object) -> object:
    """``${if_true:${model.residual},0.1,0.0}``: ``then`` if the condition holds, else ``otherwise``."""
    return then if condition else otherwise


def by_name(name: str, cases: dict[str, object], otherwise: object) -> object:
    """``${by_name:${optimizer.name},{sgd:0.1,lamb:3e-3},1e-3}``: the value of a choice, or of all others."""
    return cases.get(name, otherwise)


def of_weights(source: str | None, key: str, published: object, otherwise: object) -> object:
    """``${of_weights:${model.pretrained},pool,cls,mean}``: a key's value in the model that training starts from.

    That of a run, or of a checkpoint in it, is in its folder. For published weights and other files it is
    ``published``; without any, ``otherwise``.
    """
    if source is None:
        return otherwise
    path = Path(source)
    try:
        model = RunRecord(path.parent.parent if path.suffix == ".ckpt" else path).config["model"]
    except (RunError, KeyError):  # what is wrong with a run is reported where its weights are checked
        return published
    return model.get(key, published) if isinstance(model, dict) else published


def outputs(num_classes: int, target_classes: list[int]) -> int:
    """``${outputs:${data.num_classes},${data.target_classes}}``: logits of a model, the classes of all targets."""
    return sum(target_classes) if target_classes else num_classes


def share(fraction: float, size: Any) -> int:
    """``${share:0.125,${data.image_size}}``: a fraction of a size's shorter side, rounded down, at least 1 pixel.

    What is no size counts as one pixel: its own limit reports it.
    """
    pixels = plain_size(OmegaConf.to_container(size) if OmegaConf.is_config(size) else size)
    return max(1, int(fraction * min(height_width(pixels)))) if is_size(pixels) else 1


def _register() -> None:
    for command, schema in SCHEMAS.items():
        ConfigStore.instance().store(name=f"{command}_schema", node=schema)
    for resolver in (divide, if_set, if_true, by_name, of_weights, outputs, share):
        OmegaConf.register_new_resolver(resolver.__name__, resolver, replace=True)


_register()
