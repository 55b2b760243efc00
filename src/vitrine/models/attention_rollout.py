"""Attention rollout: which patches a model attends to, followed from the head's input back through all blocks."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from vitrine.config.model import ViTConfig
from vitrine.models.vit import VisionTransformer

ROLLOUT_LIMIT = 2**26  # of one image: 256 MB

# By ``config.pool``: the head's input, (B, 1, N), from the rollout (B, N, N), its rows of patches, and intermediates.
POOLED: dict[str, Callable[[Tensor, Tensor, Mapping[str, Tensor]], Tensor]] = {
    "cls": lambda rolled, patches, intermediates: rolled[:, :1],
    "mean": lambda rolled, patches, intermediates: patches.mean(dim=1, keepdim=True),
    "map": lambda rolled, patches, intermediates: intermediates["pool.weights"].mean(dim=1) @ patches,
}


def rollout_problem(model: nn.Module) -> str:
    """Return why there is no attention rollout of an image, as a clause; "" if there is one."""
    if type(model) is not VisionTransformer:  # a class of the user's may compute otherwise
        return "the model is not a Vision Transformer of vitrine's"
    config = model.config
    if not model.records_attention:
        return f"attention={config.attention} records no weights"
    if config.pool not in POOLED:
        return f"pool={config.pool} does not show which tokens it reads"
    if (weights := config.depth * config.heads * config.tokens**2) > ROLLOUT_LIMIT:
        return f"the attention weights of an image take {4 * weights / 2**20:,.0f} MB, more than 256"
    return ""


def rollout(maps: Tensor, *, residual: bool = True) -> Tensor:
    """Attention rollout (arXiv:2005.00928, section 3): the share of each input token in each output token.

    Heads are averaged; the residual path counts as much as attention; layers are multiplied.

    Args:
        maps: (B, depth, heads, N, N), whose rows sum to 1, as from ``VisionTransformer.attention_maps``.
        residual: whether the blocks have a residual path.

    Returns:
        (B, N, N), whose rows sum to 1.
    """
    identity = torch.eye(maps.shape[-1], dtype=maps.dtype, device=maps.device)
    rolled = identity.expand(len(maps), -1, -1)
    layers = maps.mean(dim=2)
    for layer in ((layers + identity) / 2 if residual else layers).unbind(1):
        rolled = layer @ rolled
    return rolled


@torch.no_grad()
def attended_patches(model: VisionTransformer, images: Tensor) -> Tensor:
    """Share of each patch in the head's input, by attention rollout; prefix tokens are left out.

    Args:
        model: in evaluation mode, without a :func:`rollout_problem`.
        images: (B, C, H, W), normalised.

    Returns:
        (B, rows, columns); the patches of an image sum to 1.
    """
    config = model.config
    return rolled_out(model.intermediates(images), config)[:, 0].unflatten(1, config.grid)


def rolled_out(intermediates: Mapping[str, Tensor], config: ViTConfig) -> Tensor:
    """Share of each of P patches in the head's input, and in each patch after the last block, by attention rollout.

    Args:
        intermediates: of ``VisionTransformer.intermediates``, for B images.
        config: the model's, which has no :func:`rollout_problem`.

    Returns:
        (B, 1 + P, P), the head's input first; prefix tokens are left out, and rows sum to 1.
    """
    maps = torch.stack([intermediates[f"blocks.{index}.attn.weights"] for index in range(config.depth)], dim=1)
    rolled = rollout(maps, residual=config.residual)
    patches = rolled[:, config.prefix :]
    pooled = POOLED[config.pool](rolled, patches, intermediates)
    shares = torch.cat([pooled, patches], dim=1)[..., config.prefix :]
    return shares / shares.sum(dim=-1, keepdim=True)
