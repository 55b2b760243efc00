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
from vitrine.config.size import Sides, height_width, size_override
from vitrine.errors import ConfigError, Fault
from vitrine.models.pos_embed import Grid

RESIZABLE = ("conv", "linear")


def resize_weights(weights: Mapping[str, Tensor], old: ViTConfig, new: ViTConfig) -> dict[str, Tensor]:
    """Convert weights of a model of ``old`` for one of ``new``, which differs in sizes of images and patches only.

    Raises:
        ConfigError: the patches or the positions can't be resized.
    """
    sized = replace(old, image_size=new.image_size, patch_size=new.patch_size, patch_stride=new.patch_stride)
    if sized != new:
        raise ValueError("only image_size, patch_size and patch_stride can be resized")
    resized = dict(weights)
    if new.patch_size != old.patch_size:
        if old.patch_embed not in RESIZABLE:
            problem = f"of patch_embed={old.patch_embed} can't be resized; those of {' and '.join(RESIZABLE)} can"
            near = f"patch_size={size_override(old.patch_size)}"
            raise ConfigError([Fault("patch_size", size_override(new.patch_size), problem, near)])
        name = "patch_embed.proj.weight"
        patches = resized[name].reshape(old.dim, old.in_channels, *old.patch_hw)
        patches = resize_patches(patches, new.patch_hw)
        resized[name] = patches if old.patch_embed == "conv" else patches.flatten(1)
    for name, table in weights.items():
        if name == "pos_embed" and old.position == "learned":
            resized[name] = resize_positions(table, old.prefix, old.grid, new.grid)
        elif name == "pos_embed" and old.position == "learned2d":
            resized[name] = resize_rows_and_columns(table, old.grid, new.grid)
        elif name == "pos_embed" and new.grid != old.grid:
            raise ConfigError([Fault("position", old.position, "can't be resized")])
        elif old.position == "relative" and name.endswith("relation.table"):
            height, width = (2 * side - 1 for side in new.grid)
            resized[name] = resize_grid(table.unsqueeze(0), height, width)[0]
    return resized


def resize_positions(table: Tensor, prefix: int, old: Grid, new: Grid) -> Tensor:
    """Resize a learned table (1, prefix + rows * columns, D) to another grid, as timm's ``resample_abs_pos_embed``."""
    before, patches = table[:, :prefix], table[:, prefix:]
    image = patches.transpose(1, 2).unflatten(2, old)
    return torch.cat([before, resize_grid(image, *new).flatten(2).transpose(1, 2)], dim=1)


def resize_rows_and_columns(table: Tensor, old: Grid, new: Grid) -> Tensor:
    """Resize the table of ``position=learned2d`` along its rows, and along its columns."""
    vectors = table.flatten(0, -2).split(old)  # of rows, (rows, D), and of columns
    images = [part.T[None, :, None] for part in vectors]  # (1, D, 1, rows)
    resized = [resize_grid(image, 1, side)[0, :, 0].T for image, side in zip(images, new, strict=True)]
    return torch.stack(resized) if new[0] == new[1] else torch.cat(resized)


def resize_grid(image: Tensor, height: int, width: int) -> Tensor:
    """(B, C, H, W) -> (B, C, height, width), bicubic, with antialiasing."""
    if image.shape[2:] == (height, width):
        return image
    dtype = image.dtype
    image = F.interpolate(image.float(), size=(height, width), mode="bicubic", antialias=True)
    return image.to(dtype)


def resize_patches(weight: Tensor, size: Sides) -> Tensor:
    """(D, C, h, w) -> (D, C, *size), so that a resized patch gives the token of the original patch.

    PI-resize of FlexiViT (arXiv:2212.08013), by a pseudo-inverse: with B the matrix that resizes a patch, the new
    weights are the least-squares solution w' of B^T w' = w. Exact when patches grow.
    """
    old, size = weight.shape[2:], height_width(size)
    if old == size:
        return weight
    pixels = torch.eye(old.numel(), dtype=torch.float64, device=weight.device).reshape(-1, 1, *old)
    resizing = F.interpolate(pixels, size=size, mode="bicubic", antialias=True).flatten(1)  # pixels: old by new
    resized = weight.flatten(2).double() @ torch.linalg.pinv(resizing).T
    return resized.reshape(*weight.shape[:2], *size).to(weight.dtype)
