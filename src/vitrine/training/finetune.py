"""Fine-tuning: freezing, layers and their learning rates, and features that are computed once."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from vitrine.config import TrainConfig
from vitrine.config.finetune import FinetuneConfig
from vitrine.data.transforms.augment import build_augmentation
from vitrine.models import VisionTransformer

STEM = ("cls_token", "reg_token", "pos_embed", "pos_module", "patch_embed", "norm_pre")


def freeze(model: nn.Module, config: FinetuneConfig) -> list[nn.Module] | None:
    """Freeze what ``config`` does not train: no gradients, and so no optimiser state and no stored activations.

    Returns:
        The modules that are trained; ``None`` if all are.
    """
    if config.name == "full":
        return None
    assert isinstance(model, VisionTransformer)
    trained: list[nn.Module] = [model.head]
    if config.name == "last_blocks":
        assert config.blocks is not None  # the configuration is validated
        trained = [*model.blocks[-config.blocks :], model.norm, model.attn_pool, model.head]
    kept = {id(parameter) for module in trained for parameter in module.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in kept:  # of those that are, a part of the user's may keep some fixed
            parameter.requires_grad_(False)
    return trained


def layer_of(name: str, depth: int) -> int:
    """Return the layer of a parameter of a Vision Transformer with ``depth`` blocks.

    0 is patches, tokens and positions; 1 to ``depth`` are the blocks, the last one with the final norm; the pool and
    the head are ``depth + 1``. This is the numbering of timm's ``VisionTransformer``.
    """
    if name.startswith(STEM):
        return 0
    if name.startswith("blocks."):
        return int(name.split(".")[1]) + 1
    if name.startswith("pos_conv."):  # acts after the first block
        return 1
    return depth if name.startswith("norm.") else depth + 1


def groups_by_layer(
    parameters: Iterable[tuple[str, nn.Parameter]], config: FinetuneConfig, depth: int, lr: float
) -> Iterator[tuple[dict[str, Any], list[tuple[str, nn.Parameter]]]]:
    """Yield the settings of each layer and its named parameters, from the head downwards.

    The learning rate of a layer is ``lr`` times ``layer_decay`` for each layer above it (arXiv:2106.08254; timm's
    ``param_groups_layer_decay``); that of the head is ``head_lr``, if set. ``warmup``, if set, is that of the other
    layers; :func:`vitrine.training.schedules.build_schedule` reads it.
    """
    head = depth + 1
    layers: dict[int, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in parameters:
        layers.setdefault(layer_of(name, depth), []).append((name, parameter))
    for layer in sorted(layers, reverse=True):
        if layer == head:
            settings = {"lr": lr if config.head_lr is None else config.head_lr}
        else:
            settings = {"lr": lr * config.layer_decay ** (head - layer)}
            if config.warmup is not None:
                settings["warmup"] = config.warmup
        yield settings, layers[layer]


def has_constant_features(config: TrainConfig) -> bool:
    """Whether the head alone is trained, on images that are the same in each epoch."""
    if config.finetune.name != "linear_probe" or config.augment.parts:  # a part of the user's may draw by itself
        return False
    return not (build_augmentation(config.augment, config.data).num_draws or config.augment.mixes)
