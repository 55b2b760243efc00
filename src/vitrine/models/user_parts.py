"""Modules of a user's own in a model, built from dotted names (docs/own_parts.md), and what is asked of each."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitrine.config import ViTConfig
from vitrine.config.parts import PartError, as_part_error, build, part_at
from vitrine.config.source_code import sources
from vitrine.models.intermediates import Recorder
from vitrine.text import did_you_mean, nearest

OF_KEPT_PATCHES = ("attention", "mlp", "norm", "pool")  # keys of parts that come after patch dropout


def user_module(
    config: ViTConfig, key: str, *arguments: Any, takes: Sequence[int], gives: Sequence[int], **keywords: Any
) -> nn.Module | None:
    """Return the user's module that ``key`` names, tried on zeros; ``None`` where it names a built-in part.

    With patch dropout, it is also tried on as many tokens as training keeps; an attention that takes ``indices`` is
    given theirs.

    Args:
        config: the model's.
        key: the field with the part's name: ``position``.
        arguments: what the part is called with, before its options.
        takes: shape of a tensor that the module must take.
        gives: shape of what it must give for that.
        **keywords: likewise by name.

    Raises:
        PartError: it gives no module, the module fails, its output has another shape or dtype, or it exempts what is no
            parameter from weight decay.
    """
    part = part_at(config, key)
    if part is None:
        return None
    module = build(part, *arguments, **keywords)
    if not isinstance(module, nn.Module):
        raise PartError(part.name, f"must give an nn.Module, not {type(module).__name__}")
    _check_exempted(part.name, module)
    module.eval()
    _try(part.name, module, takes, gives)
    if key in OF_KEPT_PATCHES and config.patch_dropout > 0:
        kept = config.prefix + config.kept_patches
        fewer, given = ([shape[0], kept, *shape[2:]] if len(shape) == 3 else shape for shape in (takes, gives))
        why = f", as with model.patch_dropout={config.patch_dropout:g}"
        has_indices = key == "attention" and forward_takes(module, "indices")
        indices: dict[str, Any] = {"indices": torch.arange(kept).expand(takes[0], kept)} if has_indices else {}
        _try(part.name, module, fewer, given, why, **indices)
    return module.train()


def _check_exempted(name: str, module: nn.Module) -> None:
    """Check what a part's ``no_weight_decay()`` names; installed code, as timm's, also names parameters that it lacks.

    So do modules of such code inside the part.
    """
    method = getattr(module, "no_weight_decay", set)
    if not callable(method):
        raise PartError(name, f"must have a method no_weight_decay(), not a {type(method).__name__} of that name")
    with as_part_error(name, "fails in no_weight_decay()"):
        exempted = set(method())
        inner = [(path, one) for path, one in module.named_modules() if path and hasattr(one, "no_weight_decay")]
        theirs = {f"{path}.{parameter}" for path, one in inner for parameter in one.no_weight_decay()}
    if not sources(name) or str(method.__module__).partition(".")[0] != name.partition(".")[0]:
        return
    known = [parameter for parameter, _ in module.named_parameters(remove_duplicate=False)]
    for unknown in sorted(exempted - theirs - {*known}):
        problem = f"exempts {unknown} from weight decay, which is not one of its parameters"
        raise PartError(name, problem + did_you_mean(nearest(unknown, known)))


def forward_takes(module: nn.Module, name: str) -> bool:
    """Whether a module's ``forward`` has an argument ``name``."""
    try:
        return name in inspect.signature(module.forward).parameters
    except (ValueError, TypeError):  # compiled code
        return False


def _try(
    name: str,
    module: nn.Module,
    takes: Sequence[int],
    gives: Sequence[int],
    why: str = "",
    values: Callable[..., Tensor] = torch.zeros,
    **keywords: Any,
) -> None:
    failing = as_part_error(name, f"fails on a tensor {tuple(takes)}{why}")
    with failing, torch.no_grad(), torch.random.fork_rng(devices=[]):
        given = values(*takes)
        output = module(given, **keywords)
    shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if shape != tuple(gives):
        raise PartError(name, f"must give a tensor {tuple(gives)} for one of {tuple(takes)}{why}, not {shape}")
    if output.dtype != given.dtype:
        raise PartError(name, f"must give {given.dtype}, not {output.dtype}")


def user_attention(config: ViTConfig, relation: nn.Module) -> nn.Module | None:
    """Return the user's attention, (B, N, D) -> (B, N, D); ``None`` where attention is vitrine's.

    Args:
        config: the model's.
        relation: relative positions (models/pos_embed.py).

    Raises:
        PartError: it cannot be used, or takes ``record`` and does not record ``weights``, (B, heads, N, N), not
            negative and with rows that sum to 1, as is tried on random numbers.
    """
    shape, maps = (2, config.tokens, config.dim), (2, config.heads, config.tokens, config.tokens)
    own = user_module(config, "attention", config.dim, config.heads, takes=shape, gives=shape, relation=relation)
    if own is None or not forward_takes(own, "record"):
        return own
    stored: dict[str, Tensor] = {}
    _try(config.attention, own.eval(), shape, shape, " with record", torch.randn, record=Recorder(stored))
    recorded = tuple(stored["weights"].shape) if "weights" in stored else "nothing"
    if recorded != maps:
        problem = f"takes record, and must call record('weights', weights) with a tensor {maps}"
        raise PartError(config.attention, f"{problem} for one of {shape}; it records {recorded}")
    weights = stored["weights"].float()
    sums = weights.sum(dim=-1)
    if weights.min() < 0 or (sums - 1).abs().max() > 0.01:
        given = f"from {weights.min():.3g} on, in rows that sum to {sums.min():.3g} to {sums.max():.3g}"
        problem = "must record attention weights as they are after the softmax, not negative, in rows that sum to 1"
        raise PartError(config.attention, f"{problem}; it records some {given}")
    return own.train()


def user_model(config: ViTConfig) -> nn.Module | None:
    """Return the user's whole model, (B, C, H, W) -> (B, num_classes); ``None`` where the model is vitrine's."""
    takes = (2, config.in_channels, *config.image_hw)
    sizes = {name: getattr(config, name) for name in ("image_size", "in_channels", "num_classes")}
    return user_module(config, "name", takes=takes, gives=(2, config.num_classes), **sizes)
