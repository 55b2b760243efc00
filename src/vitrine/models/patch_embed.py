"""Patch embedding: from images to tokens. ``PATCH_EMBEDS`` maps the choices of ``patch_embed=`` to constructors.

Patches are in raster order: left to right, then down.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.config.model import ViTConfig
from vitrine.config.size import Sides, height_width
from vitrine.models.layers import build_norm
from vitrine.models.user_parts import user_module


class ConvPatchEmbed(nn.Module):
    """A linear map of each patch, as a strided convolution (arXiv:2010.11929, equation 1): ``conv``.

    Args:
        in_channels: channels of the images, C.
        dim: width of a token, D.
        patch_size: side of a patch, in pixels, or its height and width.
        stride: pixels from one patch to the next, or down and right; ``None`` is ``patch_size``.
    """

    def __init__(self, in_channels: int, dim: int, patch_size: Sides, stride: Sides | None = None) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, dim, kernel_size=patch_size, stride=stride or patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, P, D)."""
        tokens: Tensor = self.proj(images)
        return tokens.flatten(2).transpose(1, 2)


class LinearPatchEmbed(nn.Module):
    """The map of :class:`ConvPatchEmbed` on flattened patches: ``linear``.

    Patches are flattened channel by channel, so that the weights are those of the convolution, reshaped. They start as
    those of a linear layer, which ``init=paper`` and ``trunc_normal`` draw otherwise than those of a convolution.
    Arguments are those of :class:`ConvPatchEmbed`.
    """

    def __init__(self, in_channels: int, dim: int, patch_size: Sides, stride: Sides | None = None) -> None:
        super().__init__()
        self.patch_size, self.stride = height_width(patch_size), height_width(stride or patch_size)
        self.proj = nn.Linear(in_channels * math.prod(self.patch_size), dim)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, P, D)."""
        return self.proj(flat_patches(images, self.patch_size, self.stride))


class ShiftedPatchEmbed(nn.Module):
    """Shifted patch tokenization (SPT, arXiv:2112.13492, section 3): ``shifted``.

    Patches of the image and of four copies that are shifted by half a patch along the diagonals, as in the paper's code
    (github.com/aanna0701/SPT_LSA_ViT, models/SPT.py).

    Args:
        in_channels, dim, patch_size, stride: as of :class:`ConvPatchEmbed`.
        norm: constructor of the normalisation of flattened patches, by its width 5 C h w.
    """

    def __init__(
        self,
        in_channels: int,
        dim: int,
        patch_size: Sides,
        stride: Sides | None = None,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.patch_size, self.stride = height_width(patch_size), height_width(stride or patch_size)
        width = 5 * in_channels * math.prod(self.patch_size)
        self.norm = norm(width)
        self.proj = nn.Linear(width, dim)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, P, D)."""
        (down, right), (height, width) = (side // 2 for side in self.patch_size), images.shape[2:]
        padded = F.pad(images, (right, right, down, down))
        shifted = [padded[:, :, y : y + height, x : x + width] for y in (0, 2 * down) for x in (0, 2 * right)]
        patches = flat_patches(torch.cat([images, *shifted], dim=1), self.patch_size, self.stride)
        return self.proj(self.norm(patches))


class ConvStemPatchEmbed(nn.Module):
    """Convolutional stem (arXiv:2106.14881, section 3): ``conv_stem``.

    3x3 convolutions of stride 2, whose channels double up to D, each with batch normalisation and a ReLU, then a 1x1
    convolution. Parameter names are those of torchvision's ``VisionTransformer``.

    Args:
        in_channels: channels of the images, C.
        dim: width of a token, D.
        patch_size: side of a patch, a power of 2; the image is halved as often as this power says.
    """

    def __init__(self, in_channels: int, dim: int, patch_size: int) -> None:
        super().__init__()
        halvings = round(math.log2(patch_size))
        channels = [in_channels, *(dim // 2 ** (halvings - 1 - index) for index in range(halvings))]
        self.proj = nn.Sequential()
        for index, (inputs, outputs) in enumerate(pairwise(channels)):
            conv = nn.Conv2d(inputs, outputs, kernel_size=3, stride=2, padding=1, bias=False)
            self.proj.add_module(f"conv_bn_relu_{index}", nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU()))
        self.proj.add_module("conv_last", nn.Conv2d(dim, dim, kernel_size=1))

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, P, D)."""
        tokens: Tensor = self.proj(images)
        return tokens.flatten(2).transpose(1, 2)


def flat_patches(images: Tensor, size: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Cut patches of h by w pixels, ``stride`` apart: (B, C, H, W) -> (B, P, C * h * w)."""
    patches = images.unfold(2, size[0], stride[0]).unfold(3, size[1], stride[1])  # (B, C, rows, columns, h, w)
    return patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def _sizes(config: ViTConfig) -> tuple[int, int, Sides, Sides]:
    return config.in_channels, config.dim, config.patch_hw, config.stride


PATCH_EMBEDS: dict[str, Callable[[ViTConfig], nn.Module]] = {
    "conv": lambda config: ConvPatchEmbed(*_sizes(config)),
    "linear": lambda config: LinearPatchEmbed(*_sizes(config)),
    "conv_stem": lambda config: ConvStemPatchEmbed(config.in_channels, config.dim, config.patch_hw[0]),  # squares only
    "shifted": lambda config: ShiftedPatchEmbed(*_sizes(config), partial(build_norm, config)),
}


def build_patch_embed(config: ViTConfig) -> nn.Module:
    """Return the patch embedding that ``config.patch_embed`` names, (B, C, H, W) -> (B, P, D)."""
    takes = (2, config.in_channels, *config.image_hw)
    own = user_module(config, "patch_embed", config, takes=takes, gives=(2, config.patches, config.dim))
    return PATCH_EMBEDS[config.patch_embed](config) if own is None else own
