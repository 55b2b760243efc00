"""How tokens know where they are. Every scheme here is a table that is added to the tokens.

A scheme is a function from a ``ViTConfig`` to its table (1, N, D), N counting the class token if there is one: an
``nn.Parameter`` where it is learned, a plain float32 tensor where it is fixed, ``None`` where nothing is added.
``TABLES`` maps the word of ``position=`` to its function; a new scheme of this kind is one function and one line there.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitrine.config.vit import ViTConfig


def none(config: ViTConfig) -> None:
    """Nothing is added: the model sees a set of patches (arXiv:2010.11929, appendix D.4)."""
    return


def learned(config: ViTConfig) -> nn.Parameter:
    """One learned vector for each token, the class token included, from N(0, 0.02) (arXiv:2010.11929, section 3.1)."""
    return nn.Parameter(torch.randn(1, config.tokens, config.dim) * 0.02)


def sincos1d(config: ViTConfig) -> Tensor:
    """Sine in even and cosine in odd channels of the token's place in the sequence (arXiv:1706.03762, section 3.5).

    Channel pair k turns at 10000^(-2k/D) radians a token. The class token is at place 0; an odd width ends in a sine.
    """
    angles = _angles(torch.arange(config.tokens), torch.arange(0, config.dim, 2, dtype=torch.float64) / config.dim)
    table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, : config.dim]
    return table.float().unsqueeze(0)


def sincos2d(config: ViTConfig) -> Tensor:
    """Sine and cosine of the patch's column, then of its row, in a quarter of the channels each.

    Channel k of a quarter turns at 10000^(-k / (D/4)) radians a patch, the frequencies of MoCo v3 (arXiv:2104.02057,
    section 4). The layout is that of arXiv:2205.01580. The class token gets zeros.
    """
    quarter = config.dim // 4
    exponents = torch.arange(quarter, dtype=torch.float64) / quarter
    places = torch.arange(config.grid)
    columns, rows = places.repeat(config.grid), places.repeat_interleave(config.grid)
    x, y = _angles(columns, exponents), _angles(rows, exponents)
    table = torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1).float()
    if config.class_token:
        table = torch.cat([torch.zeros(1, config.dim), table])
    return table.unsqueeze(0)


def _angles(places: Tensor, exponents: Tensor) -> Tensor:
    """(N,), (K,) -> (N, K) float64: place times 10000^-exponent."""
    return torch.outer(places.double(), torch.exp(-math.log(10_000.0) * exponents))


TABLES: dict[str, Callable[[ViTConfig], nn.Parameter | Tensor | None]] = {
    "none": none,
    "learned": learned,
    "sincos1d": sincos1d,
    "sincos2d": sincos2d,
}
