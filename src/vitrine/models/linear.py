"""Linear maps that are several in one. Each map counts as one of its own when weights are initialised."""

import math

import torch
from torch import Tensor, nn


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
