"""How tokens know where they are: by what is added to them. Relations between tokens are in relation.py.

Most schemes are a table, added once, before the first block. A table's maker is a function from a ``ViTConfig`` to
an ``nn.Parameter`` where the table is learned, a plain float32 tensor where it is fixed, ``None`` where nothing is
added. ``TABLES`` maps the word of ``position=`` to its maker; a new scheme of this kind is one function and one line
there. ``ConvPosition`` (``conv``) reads places off the patches themselves, after the first block.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.config.vit import ViTConfig

INITIAL: dict[str, Callable[..., Tensor]] = {
    "small": lambda *shape: torch.randn(shape) * 0.02,
    "normal": lambda *shape: torch.randn(shape),
    "uniform": lambda *shape: torch.rand(shape),
}


def none(config: ViTConfig) -> None:
    """Nothing is added: the model sees a set of patches (arXiv:2010.11929, appendix D.4)."""
    return


def learned(config: ViTConfig) -> nn.Parameter:
    """(1, N, D): one learned vector for each token, prefix included (arXiv:2010.11929, section 3.1)."""
    return nn.Parameter(INITIAL[config.position_init](1, config.tokens, config.dim))


def learned2d(config: ViTConfig) -> nn.Parameter:
    """(2, grid, D): one learned vector for each row and each column, a patch's place being their sum.

    Prefix tokens have none. The factorised form of NaViT (arXiv:2307.06304, section 2.1).
    """
    return nn.Parameter(INITIAL[config.position_init](2, config.grid, config.dim))


def sincos1d(config: ViTConfig) -> Tensor:
    """(1, N, D): sine in even and cosine in odd channels of a token's place in the sequence.

    See arXiv:1706.03762, section 3.5. Channel pair k turns at 10000^(-2k/D) radians a token. The class token is at
    place 0; registers have none. An odd width ends in a sine.
    """
    places = torch.arange(config.tokens - config.registers)
    angles = _angles(places, torch.arange(0, config.dim, 2, dtype=torch.float64) / config.dim)
    table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, : config.dim].float()
    first = int(config.class_token)
    return torch.cat([table[:first], torch.zeros(config.registers, config.dim), table[first:]]).unsqueeze(0)


def sincos2d(config: ViTConfig) -> Tensor:
    """(1, N, D): sine and cosine of the patch's column, then of its row, in a quarter of the channels each.

    Channel k of a quarter turns at 10000^(-k / n) radians a patch. There are two published rules for n: D/4, as MoCo
    v3 (arXiv:2104.02057, section 4), which is the default; and D/4 - 1, as big_vision (arXiv:2205.01580), whose layout
    this is. Prefix tokens get zeros.
    """
    quarter = config.dim // 4
    last = quarter if config.sincos_frequencies == "moco_v3" else quarter - 1
    exponents = torch.arange(quarter, dtype=torch.float64) / last
    places = torch.arange(config.grid)
    columns, rows = places.repeat(config.grid), places.repeat_interleave(config.grid)
    x, y = _angles(columns, exponents), _angles(rows, exponents)
    table = torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1).float()
    return F.pad(table, (0, 0, config.prefix, 0)).unsqueeze(0)


TABLES: dict[str, Callable[[ViTConfig], nn.Parameter | Tensor | None]] = {
    "none": none,
    "learned": learned,
    "learned2d": learned2d,
    "sincos1d": sincos1d,
    "sincos2d": sincos2d,
}


def spread(table: Tensor, prefix: int) -> Tensor:
    """A table of rows and columns, as ``learned2d`` makes it, as a table of tokens: (2, grid, D) -> (1, N, D)."""
    rows, columns = table
    return F.pad((rows[:, None] + columns[None, :]).flatten(0, 1), (0, 0, prefix, 0)).unsqueeze(0)


class ConvPosition(nn.Module):
    """Adds to each patch a 3x3 depthwise convolution of the patches around it: ``conv``.

    The position encoding generator of CPVT (arXiv:2102.10882, section 3.2): zeros beyond the image's edge tell where
    the edge is. It stands after the first block; prefix tokens pass by.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.prefix, self.grid = config.prefix, config.grid
        self.proj = nn.Conv2d(config.dim, config.dim, kernel_size=3, padding=1, groups=config.dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        patches = x[:, self.prefix :]
        image = patches.transpose(1, 2).unflatten(2, (self.grid, self.grid))
        patches = patches + self.proj(image).flatten(2).transpose(1, 2)
        return torch.cat([x[:, : self.prefix], patches], dim=1)


def _angles(places: Tensor, exponents: Tensor) -> Tensor:
    """(N,), (K,) -> (N, K) float64: place times 10000^-exponent."""
    return torch.outer(places.double(), torch.exp(-math.log(10_000.0) * exponents))
