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

from vitrine.config.model import ViTConfig

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


Related = tuple[Tensor, Tensor, Tensor | None]


class NoRelation(nn.Module):
    """Scores are what queries and keys say."""

    def forward(self, q: Tensor, k: Tensor) -> Related:
        """Queries and keys as they are."""
        return q, k, None


class RelativeBias(nn.Module):
    """A learned bias per head for each offset between two patches (arXiv:2103.14030, section 3.2; arXiv:2106.08254).

    Attributes:
        table: (heads, 2 grid - 1, 2 grid - 1), by row and column of the query less the key's; zero is in the middle.
        prefix: (heads, 3), where there are tokens without a place: their bias for patches, that of patches for them,
            and that among themselves, as in BEiT.
    """

    offsets: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        span = 2 * config.grid - 1
        self.table = nn.Parameter(torch.randn(config.heads, span, span) * 0.02)
        self.prefix = nn.Parameter(torch.randn(config.heads, 3) * 0.02) if config.prefix else None
        self.before, self.patches = config.prefix, config.grid**2
        rows, columns = _places(config.grid).long().unbind(1)
        down, right = (one[:, None] - one[None, :] + config.grid - 1 for one in (rows, columns))
        self.register_buffer("offsets", (down * span + right).flatten(), persistent=False)  # into the table, flattened

    def forward(self, q: Tensor, k: Tensor) -> Related:
        """Queries and keys as they are, and the bias (heads, N, N)."""
        bias = self.table.flatten(1).index_select(1, self.offsets).unflatten(1, (self.patches, self.patches))
        if self.prefix is not None:
            for_patches, for_prefix, among = self.prefix[:, :, None, None].unbind(1)
            bias = torch.cat([for_prefix.expand(-1, self.patches, self.before), bias], dim=2)
            above = [among.expand(-1, self.before, self.before), for_patches.expand(-1, self.before, self.patches)]
            bias = torch.cat([torch.cat(above, dim=2), bias], dim=1)
        return q, k, bias


class Alibi2d(nn.Module):
    """The score falls with the distance between two patches, in each head at its own fixed rate.

    ALiBi (arXiv:2108.12409, section 3) with the Euclidean distance on the grid, as in CROMA (arXiv:2311.00566,
    section 3).
    """

    bias: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        places = _places(config.grid)
        distances = torch.linalg.vector_norm(places[:, None] - places[None, :], dim=2)
        bias = -torch.tensor(alibi_slopes(config.heads)).reshape(-1, 1, 1) * distances
        self.register_buffer("bias", F.pad(bias, (config.prefix, 0, config.prefix, 0)), persistent=False)

    def forward(self, q: Tensor, k: Tensor) -> Related:
        """Queries and keys as they are, and the bias (heads, N, N)."""
        return q, k, self.bias


def alibi_slopes(heads: int) -> list[float]:
    """The rate of each head: 2^(-8/n), 2^(-16/n), ... to 2^-8 for n heads if n is a power of 2.

    For another number, those of the power of 2 below it, then every other one of the power above, as in the paper's
    code (github.com/ofirpress/attention_with_linear_biases).
    """
    below = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (index + 1) / below) for index in range(below)]
    return slopes + [2 ** (-4 * (index + 1) / below) for index in range(0, 2 * (heads - below), 2)]


class Rope(nn.Module):
    """Turns channel pairs of queries and keys by angles that grow with the patch's place, so scores know offsets only.

    Axial RoPE of arXiv:2403.13298, section 3.2: of each head's pairs the first half turns with the column, the
    second with the row, pair i of a half at theta^(-i / (D/heads/4)) radians a patch. Pairs are neighbouring channels.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        rows, columns = _places(config.grid).unbind(1)
        turns = rope_frequencies(config)
        angles = torch.cat([columns[:, None] * turns, rows[:, None] * turns], dim=1)
        angles = F.pad(angles, (0, 0, config.prefix, 0))  # tokens without a place are turned by 0
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, q: Tensor, k: Tensor) -> Related:
        """Queries and keys, turned."""
        return turn(q, self.cos, self.sin), turn(k, self.cos, self.sin), None


class RopeMixed(nn.Module):
    """Like :class:`Rope`, but each head and block learns how fast its pairs turn with column and row together.

    RoPE-Mixed of arXiv:2403.13298, section 3.2. Angles are in float32 whatever the model is in.

    Attributes:
        frequencies: (2, heads, D/heads/2) radians a patch, along columns and along rows. Starts as two axes at right
            angles, turned at random in each head.
    """

    places: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        size = rope_frequencies(config)
        axis = 2 * math.pi * torch.rand(config.heads, 1)
        x = torch.cat([size * axis.cos(), size * (axis + math.pi / 2).cos()], dim=1)
        y = torch.cat([size * axis.sin(), size * (axis + math.pi / 2).sin()], dim=1)
        self.frequencies = nn.Parameter(torch.stack([x, y]))
        places = F.pad(_places(config.grid), (0, 0, config.prefix, 0))
        self.register_buffer("places", places, persistent=False)

    def forward(self, q: Tensor, k: Tensor) -> Related:
        """Queries and keys, turned."""
        rows, columns = self.places.float().unsqueeze(2).unbind(1)
        x, y = self.frequencies.float().unsqueeze(2)
        angles = columns * x + rows * y  # (heads, N, D/heads/2)
        cos, sin = angles.cos().type_as(self.frequencies), angles.sin().type_as(self.frequencies)
        return turn(q, cos, sin), turn(k, cos, sin), None


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair of neighbouring channels of ``x`` (.., N, C); ``cos`` and ``sin`` are (.., N, C/2)."""
    one, other = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([one * cos - other * sin, other * cos + one * sin], dim=-1).flatten(-2).type_as(x)


def rope_frequencies(config: ViTConfig) -> Tensor:
    """theta^(-i / n) for i < n, n being a quarter of a head's width; float32."""
    quarter = config.head_dim // 4
    return 1 / config.theta ** (torch.arange(quarter) / quarter)


def _places(grid: int) -> Tensor:
    """(P, 2) float32: row and column of each patch, in raster order."""
    along = torch.arange(grid, dtype=torch.float32)
    return torch.cartesian_prod(along, along)


Relation = Callable[[ViTConfig], nn.Module]
LEARNED: dict[str, Relation] = {"relative": RelativeBias, "rope_mixed": RopeMixed}
FIXED: dict[str, Relation] = {"rope": Rope, "alibi2d": Alibi2d}


def relations(config: ViTConfig) -> list[nn.Module]:
    """One for each block. Learned ones differ from block to block."""
    if config.position in LEARNED:
        return [LEARNED[config.position](config) for _ in range(config.depth)]
    fixed = FIXED[config.position](config) if config.position in FIXED else NoRelation()
    return [fixed] * config.depth
