"""What a model does with some images: attention, rollout, and its tokens, as the sections on the model need them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrine.figure_style import evenly
from vitrine.models import VisionTransformer
from vitrine.models.attention_rollout import rolled_out
from vitrine.models.learned import attention_distances, similarities

FLOPS = 2e12  # of all images together: some seconds on a CPU
MAX_MEASURED = 128  # images of attention distance, as in arXiv:2010.11929, figure 7


@dataclass(frozen=True)
class Observed:
    """What a model of depth L with H heads does with an image of P patches.

    The first query is the one that the head of the model reads, "the image": the class token, or the mean over the
    patches. The others are the patches.

    Attributes:
        attention: (L, H, 1 + P, P), attention of each query to the patches; less than 1 in all, where prefix tokens
            get the rest.
        pool: (H, P), attention of the pool's query with ``pool=map``; ``None`` with other pools.
        rollout: (1 + P, P), attention rollout through all blocks; rows sum to 1.
        similarity: (1 + L, P, P), cosine similarities of the patches before the first block and after each.
        logits: (num_classes,).
    """

    attention: Tensor
    pool: Tensor | None
    rollout: Tensor
    similarity: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Measured:
    """Averages over images.

    Attributes:
        images: how many.
        distance: (L, H) mean attention distance, in pixels.
        similarity: (images, 1 + L) mean similarity of two different patches of an image.
    """

    images: int
    distance: np.ndarray
    similarity: np.ndarray


@torch.no_grad()
def observe(model: VisionTransformer, image: Tensor) -> Observed:
    """Look at one normalised image (C, H, W)."""
    config = model.config
    prefix, depth = config.prefix, config.depth
    stored = model.intermediates(image[None])
    weights = torch.stack([stored[f"blocks.{index}.attn.weights"][0] for index in range(depth)])
    patches = weights[:, :, prefix:]
    first = weights[:, :, :1] if config.pool == "cls" else patches.mean(dim=2, keepdim=True)
    return Observed(
        attention=torch.cat([first, patches], dim=2)[..., prefix:],
        pool=stored["pool.weights"][0, :, 0] if "pool.weights" in stored else None,
        rollout=rolled_out(stored, config)[0],
        similarity=similarities(_patches(stored, depth, prefix)),
        logits=stored["logits"][0],
    )


@torch.no_grad()
def measure(model: VisionTransformer, images: Tensor) -> Measured:
    """Average over normalised images (B, C, H, W)."""
    config = model.config
    distances, alike = [], []
    for image in images:
        stored = model.intermediates(image[None])
        names = [f"blocks.{index}.attn.weights" for index in range(config.depth)]
        distances.append(
            torch.stack([attention_distances(stored[name][0], config.grid, config.stride) for name in names])
        )
        likeness = similarities(_patches(stored, config.depth, config.prefix))
        count = likeness.shape[-1]
        pairs = max(1, count * (count - 1))
        alike.append((likeness.sum(dim=(1, 2)) - likeness.diagonal(dim1=1, dim2=2).sum(dim=1)) / pairs)
    return Measured(len(images), torch.stack(distances).mean(dim=0).numpy(), torch.stack(alike).numpy())


def how_many(flops_per_image: float) -> int:
    """Return how many images are measured: 128, or fewer for a large model."""
    return int(np.clip(FLOPS / max(flops_per_image, 1), 8, MAX_MEASURED))


def chosen_images(count: int, mistakes: Sequence[int], most: int) -> list[int]:
    """Return indices of images to look at: evenly spaced ones, then mistakes, if there are any."""
    wrong = list(mistakes[: most // 2])
    return list(dict.fromkeys([*evenly(count, most - len(wrong)), *wrong]))


def _patches(stored: dict[str, Tensor], depth: int, prefix: int) -> Tensor:
    """The patches of one image before the first block and after each, (1 + depth, P, D)."""
    names = ["embedded", *(f"blocks.{index}" for index in range(depth))]
    return torch.stack([stored[name][0, prefix:] for name in names])
