"""From images to tokens. ``PATCH_EMBEDS`` maps the word of ``patch_embed=`` to its module.

Patches are in raster order: left to right, then down.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.config.model import ViTConfig
from vitrine.models.layers import norm
from vitrine.models.user_parts import user_module


class ConvPatchEmbed(nn.Module):
    """Square patches, each through the same linear map, written as a strided convolution: ``conv``.

    Section 3.1 of arXiv:2010.11929, equation 1.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(config.in_channels, config.dim, kernel_size=config.patch_size, stride=config.stride)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, P, D)."""
        tokens: Tensor = self.proj(images)
        return tokens.flatten(2).transpose(1, 2)


class LinearPatchEmbed(nn.Module):
    """The same map as :class:`ConvPatchEmbed`, on patches flattened first: ``linear``.

    A patch is flattened channel by channel, so that the weights are a convolution's, reshaped.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.patch_size, self.stride = config.patch_size, config.stride
        self.proj = nn.Linear(config.in_channels * config.patch_size**2, config.dim)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, P, D)."""
        return self.proj(cut(images, self.patch_size, self.stride))


class ShiftedPatchEmbed(nn.Module):
    """Patches of the image and of four copies shifted by half a patch along the diagonals: ``shifted``.

    SPT of arXiv:2112.13492, section 3; the shift as in its code (github.com/aanna0701/SPT_LSA_ViT, models/SPT.py).
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.patch_size, self.stride = config.patch_size, config.stride
        width = 5 * config.in_channels * config.patch_size**2
        self.norm = norm(config, width)
        self.proj = nn.Linear(width, config.dim)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, P, D)."""
        half, (height, width) = self.patch_size // 2, images.shape[2:]
        padded = F.pad(images, (half, half, half, half))
        shifted = [padded[:, :, y : y + height, x : x + width] for y in (0, 2 * half) for x in (0, 2 * half)]
        patches = cut(torch.cat([images, *shifted], dim=1), self.patch_size, self.stride)
        return self.proj(self.norm(patches))


class ConvStemPatchEmbed(nn.Module):
    """A stack of small convolutions, each halving the image, in place of one large one: ``conv_stem``.

    arXiv:2106.14881, section 3: 3x3 convolutions of stride 2, their channels doubling up to D, each with batch
    normalisation and a ReLU, then a 1x1 convolution. Names as in torchvision's VisionTransformer.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        halvings = round(math.log2(config.patch_size))
        channels = [config.in_channels, *(config.dim // 2 ** (halvings - 1 - index) for index in range(halvings))]
        self.proj = nn.Sequential()
        for index, (inputs, outputs) in enumerate(pairwise(channels)):
            conv = nn.Conv2d(inputs, outputs, kernel_size=3, stride=2, padding=1, bias=False)
            self.proj.add_module(f"conv_bn_relu_{index}", nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU()))
        self.proj.add_module("conv_last", nn.Conv2d(config.dim, config.dim, kernel_size=1))

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, P, D)."""
        tokens: Tensor = self.proj(images)
        return tokens.flatten(2).transpose(1, 2)


def cut(images: Tensor, size: int, stride: int) -> Tensor:
    """Patches of ``size`` by ``size`` pixels, ``stride`` apart, flattened: (B, C, H, W) -> (B, P, C * size^2)."""
    patches = images.unfold(2, size, stride).unfold(3, size, stride)  # (B, C, rows, columns, size, size)
    return patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


PATCH_EMBEDS: dict[str, type[nn.Module]] = {
    "conv": ConvPatchEmbed,
    "linear": LinearPatchEmbed,
    "conv_stem": ConvStemPatchEmbed,
    "shifted": ShiftedPatchEmbed,
}


def patch_embed(config: ViTConfig) -> nn.Module:
    """The configured patch embedding, (B, C, H, W) -> (B, P, D)."""
    takes = (2, config.in_channels, config.image_size, config.image_size)
    own = user_module(config, "patch_embed", config, takes=takes, gives=(2, config.grid**2, config.dim))
    return PATCH_EMBEDS[config.patch_embed](config) if own is None else own
