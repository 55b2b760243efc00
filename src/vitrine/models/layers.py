"""Dropout (Srivastava et al., JMLR 15, 2014), with which a CPU keeps up.

PyTorch draws a random number for each value; on a CPU that can take longer than the layers before and after. Here four
values share one. On a GPU PyTorch's own is as fast as can be, and used.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.config.model import ViTConfig
from vitrine.models.user_parts import user_module

CHANCES = 2**16  # what a quarter of a random number distinguishes


class Dropout(nn.Dropout):
    """Zeroes values at random in training, and scales the others to keep the mean."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, and the same again."""
        return drop(x, self.p) if self.training else x


def drop(x: Tensor, rate: float) -> Tensor:
    """``x``, each value zeroed with chance ``rate``, in [0, 1), the others scaled to keep the mean.

    On a CPU the rate is rounded to a multiple of 2**-16, and the scale follows it.
    """
    if rate == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    dropped = min(round(rate * CHANCES), CHANCES - 1)
    numbers = torch.randint(-(2**63), 2**63 - 1, (-(-x.numel() // 4),))  # all 64 bits
    kept = numbers.view(torch.int16)[: x.numel()].ge_(dropped - CHANCES // 2)  # 1 or 0; bool is slow to convert
    return x * kept.view(x.shape).to(x.dtype).mul_(CHANCES / (CHANCES - dropped))


class PackedLinear(nn.Linear):
    """Several linear maps of the same input, their weights one above the other: one matrix product for all.

    Args:
        in_features: width of the input.
        out_features: width of the output of each map.
        maps: how many there are.
        bias: whether they have one.
    """

    def __init__(self, in_features: int, out_features: int, maps: int, bias: bool = True) -> None:
        super().__init__(in_features, maps * out_features, bias=bias)
        self.maps = maps


class HeadwiseLinear(nn.Module):
    """Several linear maps in each head, which see that head's slice of the channels only.

    Equal to a :class:`PackedLinear` whose maps are block-diagonal.

    Attributes:
        weight: (maps, heads, D/heads, D/heads), output before input channels.
        bias: (maps, heads, D/heads), or ``None``.
    """

    def __init__(self, dim: int, heads: int, maps: int, bias: bool = True) -> None:
        super().__init__()
        width = dim // heads
        self.weight = nn.Parameter(torch.empty(maps, heads, width, width))
        self.bias = nn.Parameter(torch.empty(maps, heads, width)) if bias else None
        bound = 1 / math.sqrt(width)  # what nn.Linear starts with
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (maps, B, heads, N, D/heads)."""
        heads, width = self.weight.shape[1:3]
        y = torch.einsum("bnhi,mhoi->mbhno", x.unflatten(2, (heads, width)), self.weight)
        return y if self.bias is None else y + self.bias[:, None, :, None].to(y.dtype)


NORMS: dict[str, Callable[..., nn.Module]] = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm}


def norm(config: ViTConfig, width: int) -> nn.Module:
    """The configured normalisation over the last dimension, ``width`` wide."""
    shape = (2, config.tokens, width)
    if (own := user_module(config, "norm", width, takes=shape, gives=shape, eps=config.norm_eps)) is not None:
        return own
    return NORMS[config.norm](width, eps=config.norm_eps)
