"""Normalisation over a token's channels. ``NORMS`` maps the word of ``norm=`` to its module.

``layernorm`` takes off the mean and divides by the standard deviation (arXiv:1607.06450); ``rmsnorm`` only divides by
the root of the mean square, and has no bias (arXiv:1910.07467).
"""

from collections.abc import Callable

from torch import nn

from vitrine.config.vit import ViTConfig

NORMS: dict[str, Callable[..., nn.Module]] = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm}


def norm(config: ViTConfig, width: int) -> nn.Module:
    """The configured normalisation over the last dimension, ``width`` wide."""
    return NORMS[config.norm](width, eps=config.norm_eps)
