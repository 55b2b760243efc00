"""Layers that several parts of the model use: dropout of values and patches, linear maps in groups, normalisation."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.config.model import ViTConfig
from vitrine.models.user_parts import user_module

DROPOUT_LEVELS = 2**16  # values of the 16-bit random number that each value gets on a CPU


class Dropout(nn.Dropout):
    """Dropout (Srivastava et al., JMLR 15, 2014), faster than PyTorch's on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same shape."""
        return apply_dropout(x, self.p) if self.training else x


def apply_dropout(x: Tensor, rate: float) -> Tensor:
    """Return ``x``, each value zeroed with probability ``rate``, the others scaled to keep the mean.

    PyTorch draws one random number per value, which on a CPU can take longer than the layers around it. Here four
    values share a 64-bit number, and the rate is rounded to a multiple of 2**-16. Elsewhere PyTorch's dropout is used.

    Args:
        x: any shape.
        rate: in [0, 1).
    """
    if rate == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    dropped = min(round(rate * DROPOUT_LEVELS), DROPOUT_LEVELS - 1)
    numbers = torch.randint(-(2**63), 2**63 - 1, (-(-x.numel() // 4),))  # all 64 bits
    kept = numbers.view(torch.int16)[: x.numel()].ge_(dropped - DROPOUT_LEVELS // 2)  # 1 or 0: bool converts slowly
    return x * kept.view(x.shape).to(x.dtype).mul_(DROPOUT_LEVELS / (DROPOUT_LEVELS - dropped))


class PatchDropout(nn.Module):
    """PatchDropout (arXiv:2208.07220): in training, leaves patches out, at random in each image; prefix tokens stay.

    Args:
        kept: patches of an image that are kept.
        patches: patches of an image, P.
        prefix: tokens in front of the patches.
    """

    def __init__(self, kept: int, patches: int, prefix: int = 0) -> None:
        super().__init__()
        self.kept, self.patches, self.prefix = kept, patches, prefix

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the tokens that are kept, and their indices in the sequence.

        Args:
            tokens: (B, N, D).

        Returns:
            (B, K, D), and (B, K) int64, ascending; in evaluation all tokens, and ``None``.
        """
        if not self.training or self.kept == self.patches:
            return tokens, None
        images, length = tokens.shape[:2]
        drawn = torch.rand(images, self.patches, device=tokens.device).topk(self.kept, dim=1).indices
        prefix = torch.arange(self.prefix, device=tokens.device).expand(images, -1)
        indices = torch.cat([prefix, self.prefix + drawn.sort(dim=1).values], dim=1)
        rows = indices + length * torch.arange(images, device=tokens.device)[:, None]
        # Four times as fast as gather on a CPU, backward pass included.
        return tokens.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, indices.shape), indices


class PackedLinear(nn.Linear):
    """Several linear maps of the same input as one matrix product; their weights are stacked.

    Args:
        in_features: width of the input.
        out_features: width of the output of each map.
        maps: number of maps.
        bias: whether they have biases.
    """

    def __init__(self, in_features: int, out_features: int, maps: int, bias: bool = True) -> None:
        super().__init__(in_features, maps * out_features, bias=bias)
        self.maps = maps


class HeadwiseLinear(nn.Module):
    """Several linear maps per head, which see that head's slice of the channels only.

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
        bound = 1 / math.sqrt(width)  # as nn.Linear
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (maps, B, heads, N, D/heads)."""
        maps, heads, width = self.weight.shape[:3]
        x = x.unflatten(2, (heads, width)).permute(2, 0, 1, 3)  # (heads, B, N, D/heads)
        weight = self.weight.permute(1, 3, 0, 2).flatten(2)  # (heads, D/heads, maps * D/heads)
        if self.bias is None:
            y = torch.bmm(x.flatten(1, 2), weight)
        else:
            y = torch.baddbmm(self.bias.transpose(0, 1).flatten(1)[:, None], x.flatten(1, 2), weight)
        return y.view(*x.shape[:3], maps, width).permute(3, 1, 0, 2, 4)

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters that weight decay does not act on."""
        return set() if self.bias is None else {"bias"}


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation (arXiv:1502.03167) of each channel over all tokens of all images of a batch: ``batchnorm``.

    In evaluation by running averages, so that an image's result does not depend on the images beside it. A
    single token in training also uses them: it has no variance.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        tokens = x.reshape(-1, x.shape[-1])
        if self.training and len(tokens) == 1:
            averages = self.running_mean, self.running_var
            return F.batch_norm(tokens, *averages, self.weight, self.bias, eps=self.eps).view(x.shape)
        return super().forward(tokens).view(x.shape)


NORMS: dict[str, Callable[..., nn.Module]] = {
    "layernorm": nn.LayerNorm,
    "rmsnorm": nn.RMSNorm,
    "batchnorm": BatchNorm,
}


def build_norm(config: ViTConfig, width: int, between: tuple[int, ...] | None = None) -> nn.Module:
    """Return the normalisation that ``config.norm`` names, over the last dimension: (..., width) -> (..., width).

    ``between`` are the dimensions from the batch to the width; ``None`` is that of the model's tokens.
    """
    shape = (2, *((config.tokens,) if between is None else between), width)
    own = user_module(config, "norm", width, takes=shape, gives=shape, eps=config.norm_eps)
    return NORMS[config.norm](width, eps=config.norm_eps) if own is None else own
