"""Attention rollout: which patches a model attends to, followed from the head's input back through all blocks."""

import torch
from torch import Tensor

from vitrine.models.vit import VisionTransformer


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
        model: in evaluation mode, with built-in attention and pool.
        images: (B, C, H, W), normalised.

    Returns:
        (B, rows, columns); the patches of an image sum to 1.
    """
    config = model.config
    stored = model.intermediates(images)
    maps = torch.stack([stored[f"blocks.{index}.attn.weights"] for index in range(config.depth)], dim=1)
    rolled = rollout(maps, residual=config.residual)
    if config.pool == "cls":
        pooled = rolled[:, 0]
    elif config.pool == "mean":
        pooled = rolled[:, config.prefix :].mean(dim=1)
    else:
        pooled = (stored["pool.weights"].mean(dim=1) @ rolled[:, config.prefix :])[:, 0]
    patches = pooled[:, config.prefix :]
    return (patches / patches.sum(dim=1, keepdim=True)).unflatten(1, config.grid)
