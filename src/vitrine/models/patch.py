"""From images to tokens: how an image is cut into patches and each patch made a vector."""

from torch import Tensor, nn


class ConvPatchEmbed(nn.Module):
    """Non-overlapping square patches, each through the same linear map, written as a strided convolution.

    Section 3.1 of arXiv:2010.11929, equation 1. Patches are in raster order: left to right, then down.
    """

    def __init__(self, in_channels: int, dim: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, H/P * W/P, D)."""
        tokens: Tensor = self.proj(images)
        return tokens.flatten(2).transpose(1, 2)
