"""Positions of tokens: absolute, added to the tokens, or relative, acting on queries and keys in attention.

A scheme of ``position=`` is one of these:

- a table, added to the tokens before the first block (``TABLES``): a function from a ``ViTConfig`` to an
  ``nn.Parameter`` if it is learned, a float32 tensor if it is fixed, ``None`` if nothing is added;
- a module that maps the tokens, once: :class:`ConvPosition` (``conv``) after the first block;
- a relation (``LEARNED_RELATIONS``, ``FIXED_RELATIONS``): a module that maps queries and keys, (B, heads, N, D/heads),
  to those that are compared, and to a bias of their scores, (heads, N, N) or ``None``. Where patch dropout leaves
  tokens out, it also takes the indices of the others in the whole sequence, (B, N) int64; the bias is then one for each
  image, (B, heads, N, N).

Patches are in raster order. Prefix tokens, the class token and registers, have no position in the image.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.config.model import ViTConfig

Grid = tuple[int, int]  # rows and columns of patches
INITIAL: dict[str, Callable[..., Tensor]] = {
    "small": lambda *shape: torch.randn(shape) * 0.02,
    "normal": lambda *shape: torch.randn(shape),
    "uniform": lambda *shape: torch.rand(shape),
}


def no_table(config: ViTConfig) -> None:
    """No positions: the model sees a set of patches (arXiv:2010.11929, appendix D.4)."""
    return


def learned(config: ViTConfig) -> nn.Parameter:
    """(1, N, D): a learned vector per token, prefix included (arXiv:2010.11929, section 3.1)."""
    return nn.Parameter(INITIAL[config.position_init](1, config.tokens, config.dim))


def learned2d(config: ViTConfig) -> nn.Parameter:
    """(rows + columns, D): a learned vector per row and per column; a patch gets their sum, prefix tokens get none.

    The factorised form of NaViT (arXiv:2307.06304, section 2.1). Of a square grid the shape is (2, rows, D).
    """
    rows, columns = config.grid
    shape = (2, rows) if rows == columns else (rows + columns,)
    return nn.Parameter(INITIAL[config.position_init](*shape, config.dim))


def sincos1d(config: ViTConfig) -> Tensor:
    """(1, N, D): sine in even and cosine in odd channels of a token's index in the sequence.

    See arXiv:1706.03762, section 3.5. Channel pair k has 10000^(-2k/D) radians per token. The class token has index 0;
    registers get zeros. An odd width ends in a sine.
    """
    indices = torch.arange(config.tokens - config.registers)
    angles = _angles(indices, torch.arange(0, config.dim, 2, dtype=torch.float64) / config.dim)
    table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, : config.dim].float()
    first = int(config.class_token)
    return torch.cat([table[:first], torch.zeros(config.registers, config.dim), table[first:]]).unsqueeze(0)


def sincos2d(config: ViTConfig) -> Tensor:
    """(1, N, D): sine and cosine of the patch's column, then of its row, in a quarter of the channels each.

    Channel k of a quarter has 10000^(-k / n) radians per patch. There are two published rules for n: D/4, as the code
    of MoCo v3 (arXiv:2104.02057; github.com/facebookresearch/moco-v3, vits.py), the default; and D/4 - 1, as big_vision
    (arXiv:2205.01580), whose layout this is. Prefix tokens get zeros.
    """
    quarter = config.dim // 4
    last = quarter if config.sincos_frequencies == "moco_v3" else quarter - 1
    exponents = torch.arange(quarter, dtype=torch.float64) / last
    rows, columns = _rows_and_columns(config.grid).unbind(1)
    x, y = _angles(columns, exponents), _angles(rows, exponents)
    table = torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1).float()
    return F.pad(table, (0, 0, config.prefix, 0)).unsqueeze(0)


TABLES: dict[str, Callable[[ViTConfig], nn.Parameter | Tensor | None]] = {
    "none": no_table,
    "learned": learned,
    "learned2d": learned2d,
    "sincos1d": sincos1d,
    "sincos2d": sincos2d,
}


def per_token(table: Tensor, grid: Grid, prefix: int) -> Tensor:
    """Turn a table of rows and columns, as from :func:`learned2d`, into one of tokens, (1, N, D)."""
    rows, columns = table.flatten(0, -2).split(grid)
    return F.pad((rows[:, None] + columns[None, :]).flatten(0, 1), (0, 0, prefix, 0)).unsqueeze(0)


class ConvPosition(nn.Module):
    """Position encoding generator of CPVT (arXiv:2102.10882, section 3.2): ``conv``.

    Adds to each patch a 3x3 depthwise convolution of the patches around it, after the first block. Padding with zeros
    shows where the image ends. Prefix tokens are not changed.

    Args:
        dim: width of a token, D.
        grid: rows and columns of patches.
        prefix: tokens in front of the patches.
    """

    def __init__(self, dim: int, grid: Grid, prefix: int = 0) -> None:
        super().__init__()
        self.prefix, self.grid = prefix, grid
        self.proj = nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        patches = x[:, self.prefix :]
        image = patches.transpose(1, 2).unflatten(2, self.grid)
        patches = patches + self.proj(image).flatten(2).transpose(1, 2)
        return torch.cat([x[:, : self.prefix], patches], dim=1)


# Queries and keys to compare, (B, heads, N, D/heads) each, and a bias to add to their scores: (heads, N, N), or
# (B, heads, K, K) at the indices (B, K) of K kept tokens.
Related = tuple[Tensor, Tensor, Tensor | None]


class NoRelation(nn.Module):
    """No relative positions."""

    def forward(self, q: Tensor, k: Tensor, indices: Tensor | None = None) -> Related:
        """Return queries and keys, (B, heads, N, D/heads), as they are, and no bias."""
        return q, k, None


class RelativeBias(nn.Module):
    """A learned bias per head and offset (arXiv:2103.14030, section 3.2; arXiv:2106.08254): ``relative``.

    Args:
        heads: number of attention heads.
        grid: rows and columns of patches.
        prefix: tokens in front of the patches.

    Attributes:
        table: (heads, 2 rows - 1, 2 columns - 1), by row and column of the query less those of the key; zero is in
            the middle.
        prefix: (heads, 3), or ``None`` without prefix tokens, as in BEiT: the bias of prefix queries for patches, of
            patch queries for the prefix, and among the prefix.
    """

    offsets: Tensor

    def __init__(self, heads: int, grid: Grid, prefix: int = 0) -> None:
        super().__init__()
        height, width = (2 * side - 1 for side in grid)
        self.table = nn.Parameter(torch.randn(heads, height, width) * 0.02)
        self.prefix = nn.Parameter(torch.randn(heads, 3) * 0.02) if prefix else None
        self.prefix_tokens, self.patches = prefix, grid[0] * grid[1]
        coordinates = _rows_and_columns(grid).long()
        down, right = (coordinates[:, None] - coordinates[None, :] + torch.tensor(grid) - 1).unbind(2)
        self.register_buffer("offsets", (down * width + right).flatten(), persistent=False)  # into the flattened table

    def forward(self, q: Tensor, k: Tensor, indices: Tensor | None = None) -> Related:
        """Return queries and keys, (B, heads, N, D/heads), as they are, and the bias, (heads, N, N)."""
        bias = self.table.flatten(1).index_select(1, self.offsets).unflatten(1, (self.patches, self.patches))
        if self.prefix is not None:
            for_patches, for_prefix, among = self.prefix[:, :, None, None].unbind(1)
            bias = torch.cat([for_prefix.expand(-1, self.patches, self.prefix_tokens), bias], dim=2)
            above = [
                among.expand(-1, self.prefix_tokens, self.prefix_tokens),
                for_patches.expand(-1, self.prefix_tokens, self.patches),
            ]
            bias = torch.cat([torch.cat(above, dim=2), bias], dim=1)
        return q, k, bias if indices is None else bias_between(bias, indices)

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters that weight decay does not act on."""
        return {"table"} if self.prefix is None else {"table", "prefix"}


class Alibi2d(nn.Module):
    """A bias that falls with the distance of two patches, at a fixed rate per head: ``alibi2d``.

    ALiBi (arXiv:2108.12409, section 3) with the Euclidean distance on the grid, as in CROMA (arXiv:2311.00566,
    section 3). Prefix tokens have no bias.

    Args:
        heads: number of attention heads.
        grid: rows and columns of patches.
        prefix: tokens in front of the patches.
    """

    bias: Tensor

    def __init__(self, heads: int, grid: Grid, prefix: int = 0) -> None:
        super().__init__()
        coordinates = _rows_and_columns(grid)
        distances = torch.linalg.vector_norm(coordinates[:, None] - coordinates[None, :], dim=2)
        bias = -torch.tensor(alibi_slopes(heads)).reshape(-1, 1, 1) * distances
        self.register_buffer("bias", F.pad(bias, (prefix, 0, prefix, 0)), persistent=False)

    def forward(self, q: Tensor, k: Tensor, indices: Tensor | None = None) -> Related:
        """Return queries and keys, (B, heads, N, D/heads), as they are, and the bias, (heads, N, N)."""
        return q, k, self.bias if indices is None else bias_between(self.bias, indices)


def bias_between(bias: Tensor, indices: Tensor) -> Tensor:
    """Pick the bias between the tokens at ``indices`` (B, K) of the sequence: (heads, N, N) -> (B, heads, K, K)."""
    pairs = indices[:, :, None] * bias.shape[2] + indices[:, None, :]
    return bias.flatten(1).index_select(1, pairs.flatten()).unflatten(1, pairs.shape).transpose(0, 1)


def alibi_slopes(heads: int) -> list[float]:
    """Return the slope of each head: 2^(-8/n), 2^(-16/n), ... to 2^-8 for n heads if n is a power of 2.

    For another number, those of the power of 2 below it, then every other one of the power above, as in the paper's
    code (github.com/ofirpress/attention_with_linear_biases).
    """
    below = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (index + 1) / below) for index in range(below)]
    return slopes + [2 ** (-4 * (index + 1) / below) for index in range(0, 2 * (heads - below), 2)]


class Rope(nn.Module):
    """Axial RoPE (arXiv:2403.13298, section 3.2): ``rope``. Scores depend on offsets only.

    Pairs of neighbouring channels of queries and keys are rotated: the first half of a head's pairs by the patch's
    column, the second by its row, pair i of a half by theta^(-i / (D/heads/4)) radians per patch. Prefix tokens are not
    rotated.

    Args:
        head_dim: width of a head, divisible by 4.
        grid: rows and columns of patches.
        prefix: tokens in front of the patches.
        theta: base of the frequencies.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, grid: Grid, prefix: int = 0, theta: float = 100.0) -> None:
        super().__init__()
        rows, columns = _rows_and_columns(grid).unbind(1)
        frequencies = rope_frequencies(head_dim, theta)
        angles = torch.cat([columns[:, None] * frequencies, rows[:, None] * frequencies], dim=1)
        angles = F.pad(angles, (0, 0, prefix, 0))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, q: Tensor, k: Tensor, indices: Tensor | None = None) -> Related:
        """Return queries and keys, (B, heads, N, D/heads), rotated, and no bias."""
        cos, sin = self.cos, self.sin
        if indices is not None:
            cos, sin = cos[indices].unsqueeze(1), sin[indices].unsqueeze(1)  # (B, 1, K, D/heads/2)
        return rotate(q, cos, sin), rotate(k, cos, sin), None


class RopeMixed(nn.Module):
    """RoPE-Mixed (arXiv:2403.13298, section 3.2): ``rope_mixed``. Each head and block learns its frequencies.

    A pair is rotated by a learned combination of column and row. Angles are in float32, whatever the model is in.

    Args:
        heads: number of attention heads.
        head_dim: width of a head, divisible by 4.
        grid: rows and columns of patches.
        prefix: tokens in front of the patches, which are not rotated.
        theta: base of the initial frequencies.

    Attributes:
        frequencies: (2, heads, D/heads/2) radians per patch, along columns and along rows. Starts as two axes at right
            angles, rotated at random in each head.
    """

    coordinates: Tensor

    def __init__(self, heads: int, head_dim: int, grid: Grid, prefix: int = 0, theta: float = 10.0) -> None:
        super().__init__()
        size = rope_frequencies(head_dim, theta)
        axis = 2 * math.pi * torch.rand(heads, 1)
        x = torch.cat([size * axis.cos(), size * (axis + math.pi / 2).cos()], dim=1)
        y = torch.cat([size * axis.sin(), size * (axis + math.pi / 2).sin()], dim=1)
        self.frequencies = nn.Parameter(torch.stack([x, y]))
        coordinates = F.pad(_rows_and_columns(grid).long(), (0, 0, prefix, 0))  # bfloat16 has no 257
        self.register_buffer("coordinates", coordinates, persistent=False)

    def forward(self, q: Tensor, k: Tensor, indices: Tensor | None = None) -> Related:
        """Return queries and keys, (B, heads, N, D/heads), rotated, and no bias."""
        rows, columns = self.coordinates.float().unsqueeze(2).unbind(1)
        x, y = self.frequencies.float().unsqueeze(2)
        angles = columns * x + rows * y  # (heads, N, D/heads/2)
        cos, sin = angles.cos().type_as(self.frequencies), angles.sin().type_as(self.frequencies)
        if indices is not None:
            cos, sin = rows_at(cos, indices), rows_at(sin, indices)
        return rotate(q, cos, sin), rotate(k, cos, sin), None

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters that weight decay does not act on."""
        return {"frequencies"}


def rows_at(table: Tensor, indices: Tensor) -> Tensor:
    """Pick the rows of the tokens at ``indices`` (B, K) of the sequence: (heads, N, C) -> (B, heads, K, C)."""
    return table.index_select(1, indices.flatten()).unflatten(1, indices.shape).transpose(0, 1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of neighbouring channels of ``x``, (..., N, C), by angles with ``cos`` and ``sin`` (..., N, C/2)."""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2).type_as(x)


def rope_frequencies(head_dim: int, theta: float) -> Tensor:
    """Return theta^(-i / n) for i < n, where n is a quarter of a head's width; (head_dim / 4,) float32."""
    quarter = head_dim // 4
    return 1 / theta ** (torch.arange(quarter) / quarter)


Relation = Callable[[ViTConfig], nn.Module]
LEARNED_RELATIONS: dict[str, Relation] = {
    "relative": lambda config: RelativeBias(config.heads, config.grid, config.prefix),
    "rope_mixed": lambda config: RopeMixed(config.heads, config.head_dim, config.grid, config.prefix, config.theta),
}
FIXED_RELATIONS: dict[str, Relation] = {
    "rope": lambda config: Rope(config.head_dim, config.grid, config.prefix, config.theta),
    "alibi2d": lambda config: Alibi2d(config.heads, config.grid, config.prefix),
}


def build_relations(config: ViTConfig) -> list[nn.Module]:
    """Return the relation of each block: learned ones differ from block to block, a fixed one is shared."""
    if config.position in LEARNED_RELATIONS:
        return [LEARNED_RELATIONS[config.position](config) for _ in range(config.depth)]
    fixed = FIXED_RELATIONS[config.position](config) if config.position in FIXED_RELATIONS else NoRelation()
    return [fixed] * config.depth


def _angles(indices: Tensor, exponents: Tensor) -> Tensor:
    """(N,), (K,) -> (N, K) float64: index times 10000^-exponent."""
    return torch.outer(indices.double(), torch.exp(-math.log(10_000.0) * exponents))


def _rows_and_columns(grid: Grid) -> Tensor:
    """(P, 2) float32: row and column of each patch."""
    return torch.cartesian_prod(*(torch.arange(side, dtype=torch.float32) for side in grid))
