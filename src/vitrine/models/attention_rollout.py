"""What a model looks at: attention, followed from the head's input back through all blocks to the patches."""

import torch
from torch import Tensor

from vitrine.models.vit import VisionTransformer


def rollout(maps: Tensor) -> Tensor:
    """Attention rollout (arXiv:2005.00928, section 3): how much of each input token is in each output token.

    Heads are averaged; the residual path counts as much as attention; layers are multiplied.

    Args:
        maps: (B, depth, heads, N, N), each row adding up to 1, as ``VisionTransformer.attention_maps`` gives them.

    Returns:
        (B, N, N), each row adding up to 1.
    """
    identity = torch.eye(maps.shape[-1], dtype=maps.dtype, device=maps.device)
    rolled = identity.expand(len(maps), -1, -1)
    for layer in ((maps.mean(dim=2) + identity) / 2).unbind(1):
        rolled = layer @ rolled
    return rolled


@torch.no_grad()
def looked_at(model: VisionTransformer, images: Tensor) -> Tensor:
    """How much of each patch is in what the head reads, by rollout; prefix tokens are left out.

    Args:
        model: in evaluation mode.
        images: (B, C, H, W), normalised.

    Returns:
        (B, grid, grid), each image's patches adding up to 1.
    """
    config = model.config
    kept = model.intermediates(images)
    rolled = rollout(torch.stack([kept[f"blocks.{index}.attn.weights"] for index in range(config.depth)], dim=1))
    if config.pool == "cls":
        read = rolled[:, 0]
    elif config.pool == "mean":
        read = rolled[:, config.prefix :].mean(dim=1)
    else:
        read = (kept["pool.weights"].mean(dim=1) @ rolled[:, config.prefix :])[:, 0]
    patches = read[:, config.prefix :]
    return (patches / patches.sum(dim=1, keepdim=True)).unflatten(1, (config.grid, config.grid))
