"""How attention knows where two tokens stand to each other: by a bias on their score, or by turning them first.

A relation takes queries and keys (B, heads, N, D/heads) and gives them back, turned or not, with a bias (heads, N, N)
to add to the scores, or ``None``. The class token and registers have no place: they are not turned, and see, and are
seen by, all patches alike. ``relations`` builds one for each block; what is fixed is one object in all of them.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.config.vit import ViTConfig

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
