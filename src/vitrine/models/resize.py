"""Weights of a model for images or patches of another size.

Fixed positions are recomputed. Learned tables are interpolated; patch embeddings are resized so that a resized patch
gives the same token.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.config.model import ViTConfig
from vitrine.errors import ConfigError, Fault

RESIZABLE = ("conv", "linear")


def resize_weights(weights: Mapping[str, Tensor], old: ViTConfig, new: ViTConfig) -> dict[str, Tensor]:
    """Convert weights of a model of ``old`` for one of ``new``, which differs in sizes of images and patches only.

    Raises:
        ConfigError: the patches can't be resized.
    """
    sized = replace(old, image_size=new.image_size, patch_size=new.patch_size, patch_stride=new.patch_stride)
    if sized != new:
        raise ValueError("only image_size, patch_size and patch_stride can be resized")
    resized = dict(weights)
    if new.patch_size != old.patch_size:
        if old.patch_embed not in RESIZABLE:
            problem = f"of patch_embed={old.patch_embed} can't be resized; those of {' and '.join(RESIZABLE)} can"
            raise ConfigError([Fault("patch_size", str(new.patch_size), problem, f"patch_size={old.patch_size}")])
        name = "patch_embed.proj.weight"
        patches = resized[name].reshape(old.dim, old.in_channels, old.patch_size, old.patch_size)
        patches = resize_patches(patches, new.patch_size)
        resized[name] = patches if old.patch_embed == "conv" else patches.flatten(1)
    for name, table in weights.items():
        if name == "pos_embed" and old.position == "learned":
            resized[name] = resize_positions(table, old.prefix, new.grid)
        elif name == "pos_embed":  # learned2d
            resized[name] = resize_grid(table.transpose(1, 2).unsqueeze(2), 1, new.grid)[:, :, 0].transpose(1, 2)
        elif name.endswith("relation.table"):
            resized[name] = resize_grid(table.unsqueeze(0), 2 * new.grid - 1, 2 * new.grid - 1)[0]
    return resized


def resize_positions(table: Tensor, prefix: int, grid: int) -> Tensor:
    """Resize a learned table (1, prefix + old grid^2, D) to another grid, as timm's ``resample_abs_pos_embed``."""
    before, patches = table[:, :prefix], table[:, prefix:]
    side = round(patches.shape[1] ** 0.5)
    image = patches.transpose(1, 2).unflatten(2, (side, side))
    return torch.cat([before, resize_grid(image, grid, grid).flatten(2).transpose(1, 2)], dim=1)


def resize_grid(image: Tensor, height: int, width: int) -> Tensor:
    """(B, C, H, W) -> (B, C, height, width), bicubic, with antialiasing."""
    if image.shape[2:] == (height, width):
        return image
    dtype = image.dtype
    image = F.interpolate(image.float(), size=(height, width), mode="bicubic", antialias=True)
    return image.to(dtype)


def resize_patches(weight: Tensor, size: int) -> Tensor:
    """(D, C, P, P) -> (D, C, size, size), so that a resized patch gives the token of the original patch.

    The pseudo-inverse rule of FlexiViT (arXiv:2212.08013, section 3.4): with B the matrix that resizes a patch, the
    new weights are the least-squares solution w' of B^T w' = w. Exact when patches grow.
    """
    old = weight.shape[-1]
    if old == size:
        return weight
    pixels = torch.eye(old * old, dtype=torch.float64, device=weight.device).reshape(-1, 1, old, old)
    resizing = F.interpolate(pixels, size=(size, size), mode="bicubic", antialias=True).flatten(1)  # (P^2, size^2)
    resized = weight.flatten(2).double() @ torch.linalg.pinv(resizing).T
    return resized.reshape(*weight.shape[:2], size, size).to(weight.dtype)
