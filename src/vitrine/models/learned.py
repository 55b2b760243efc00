"""What a trained model has learned: filters of its patches, positions, reach of its attention, likeness of patches."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.config.size import Sides, height_width
from vitrine.errors import RunError
from vitrine.models.patch_embed import ConvPatchEmbed, LinearPatchEmbed, ShiftedPatchEmbed
from vitrine.models.pos_embed import (
    Alibi2d,
    RelativeBias,
    Rope,
    RopeMixed,
    alibi_slopes,
    rope_frequencies,
)
from vitrine.models.vit import VisionTransformer

MAX_COMPARED = 2**13  # patches, each with each


@torch.no_grad()
def patch_filters(model: VisionTransformer, most: int = 28) -> tuple[Tensor, Tensor] | None:
    """Principal components of the patch embedding's filters (arXiv:2010.11929, figure 7, left).

    Of ``patch_embed=shifted``, the filters of the unshifted image.

    Returns:
        The first ``most`` components (K, C, h, w), each of norm 1, with its largest value positive;
        and their shares of the variance over filters, (K,). ``None`` if patches are not embedded by a linear map.
    """
    embed = model.patch_embed
    if not isinstance(embed, (ConvPatchEmbed, LinearPatchEmbed, ShiftedPatchEmbed)):
        return None
    shape = (model.config.in_channels, *model.config.patch_hw)
    filters = embed.proj.weight.float().flatten(1)[:, : shape[0] * shape[1] * shape[2]]
    _, sizes, components = torch.linalg.svd(filters - filters.mean(dim=0), full_matrices=False)
    largest = components.gather(1, components.abs().argmax(dim=1, keepdim=True))
    shares = sizes.square() / sizes.square().sum().clamp(min=1e-30)
    return (components * largest.sign()).unflatten(1, shape)[:most], shares[:most]


@torch.no_grad()
def position_similarities(model: VisionTransformer) -> Tensor | None:
    """Cosine similarities of the patches' position embeddings (arXiv:2010.11929, figure 7, centre).

    Returns:
        (P, P) in [-1, 1]; ``None`` for a model that adds no table of positions to its tokens.

    Raises:
        RunError: the model has more than ``MAX_COMPARED`` patches, whose similarities take more than 256 MB of memory.
    """
    if model.pos_embed is None:
        return None
    if (patches := model.config.patches) > MAX_COMPARED:
        raise RunError(f"it has {patches} patches, and positions of at most {MAX_COMPARED} are compared")
    return similarities(model.position_table()[:, model.config.prefix :])[0]


@torch.no_grad()
def offset_scores(model: VisionTransformer) -> Tensor | None:
    """What a positional scheme inside attention adds to a score, or multiplies it by, for each offset of two patches.

    ``relative`` and ``alibi2d``: the bias. ``rope`` and ``rope_mixed``: the score of a query and an equal key whose
    pairs of channels have the same length, relative to no offset: the mean cosine of their rotations.

    Returns:
        (blocks, heads, 2 rows - 1, 2 columns - 1) by row and column of the query less those of the key, zero in the
        middle. One block where all share it, and one head likewise. ``None`` for other schemes.
    """
    relations: list[Any] = [getattr(block.attn, "relation", None) for block in model.blocks]
    spans = [torch.arange(1 - side, side, dtype=torch.float32) for side in model.config.grid]
    down, right = torch.meshgrid(*spans, indexing="ij")
    if all(isinstance(relation, RelativeBias) for relation in relations):
        return torch.stack([relation.table.float() for relation in relations])
    if all(isinstance(relation, Alibi2d) for relation in relations):
        slopes = torch.tensor(alibi_slopes(model.config.heads))
        return -(slopes[:, None, None] * torch.hypot(down, right))[None]
    if all(isinstance(relation, Rope) for relation in relations):
        frequencies = rope_frequencies(model.config.head_dim, model.config.theta)
        cosines = [(offset[..., None] * frequencies).cos().mean(dim=-1) for offset in (down, right)]
        return ((cosines[0] + cosines[1]) / 2)[None, None]
    if all(isinstance(relation, RopeMixed) for relation in relations):
        x, y = torch.stack([relation.frequencies.float() for relation in relations], dim=1)[:, :, :, :, None, None]
        return (right * x + down * y).cos().mean(dim=2)
    return None


def attention_distances(weights: Tensor, grid: tuple[int, int], stride: Sides = 1) -> Tensor:
    """Mean distance of patches from the patches that they attend to (arXiv:2010.11929, figure 7, right).

    Distances are weighted by attention, and averaged over the patches of an image. What a patch attends to among the
    prefix tokens is left out: its other weights are scaled to sum to 1.

    Args:
        weights: (..., N, N), attention weights; the patches come last.
        grid: rows and columns of patches.
        stride: pixels from one patch to the next, or down and right.

    Returns:
        (...), in pixels.
    """
    rows, columns = grid
    pixels_down, pixels_right = height_width(stride)
    down = pixels_down * torch.arange(rows, dtype=weights.dtype).repeat_interleave(columns)
    right = pixels_right * torch.arange(columns, dtype=weights.dtype).repeat(rows)
    distances = torch.hypot(down[:, None] - down, right[:, None] - right)
    among = weights[..., -rows * columns :, -rows * columns :]
    return ((among * distances).sum(dim=-1) / among.sum(dim=-1).clamp(min=1e-12)).mean(dim=-1)


def similarities(vectors: Tensor) -> Tensor:
    """Cosine similarities of vectors (..., P, D): (..., P, P) in [-1, 1]; those of a zero vector are 0."""
    unit = F.normalize(vectors.float(), dim=-1, eps=1e-9)
    return unit @ unit.transpose(-2, -1)
