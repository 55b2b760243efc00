"""Changes of colour and sharpness: 3-Augment (DeiT III, arXiv:2204.07118, section 3.2) and colour jitter."""

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.data.epoch_plan import to_device_of
from vitrine.data.transforms.operations import grey, to_uint8

SOLARIZE_FROM = 128  # Pillow's default
SIGMAS = (0.1, 2.0)  # pixels; Pillow's radius in DeiT III's code
RADIUS = 6  # pixels: three of the largest sigma


class ThreeAugment:
    """Make each image grey, solarise or blur it, each with probability 1/3.

    Values of 128 and more are inverted by solarisation; the standard deviation of the Gaussian blur is uniform in 0.1
    to 2 pixels.
    """

    num_draws = 2

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """(B, C, H, W) uint8 with 1 or 3 channels and (B, 2) in [0, 1) -> (B, C, H, W) uint8."""
        chosen = (3 * draws[:, 0]).long()
        result = images.clone()
        for number in range(3):
            rows = (chosen == number).nonzero()[:, 0]
            if len(rows):
                own, there = draws[rows, 1], to_device_of(rows, images)
                part = images.index_select(0, there)
                changed = (self.make_grey, self.solarise, self.blur)[number](part, own)
                result.index_copy_(0, there, changed)
        return result

    @staticmethod
    def make_grey(images: Tensor, draws: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> the same in grey: each channel holds the luma."""
        return grey(images).to(torch.uint8).expand_as(images)

    @staticmethod
    def solarise(images: Tensor, draws: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> the same with bright values inverted."""
        return torch.where(images >= SOLARIZE_FROM, ~images, images)

    @staticmethod
    def blur(images: Tensor, draws: Tensor) -> Tensor:
        """(B, C, H, W) uint8 and (B,) in [0, 1) -> the same, blurred; pixels of the border are continued outside."""
        batch, channels, height, width = images.shape
        sigmas = SIGMAS[0] + (SIGMAS[1] - SIGMAS[0]) * draws.float()
        offsets = torch.arange(-RADIUS, RADIUS + 1)
        kernels = (-0.5 * (offsets / sigmas[:, None]) ** 2).exp()
        kernels = to_device_of(kernels / kernels.sum(dim=1, keepdim=True), images).repeat_interleave(channels, dim=0)
        pixels = images.float().view(1, batch * channels, height, width)
        pixels = F.pad(pixels, (RADIUS,) * 4, mode="replicate")
        pixels = F.conv2d(pixels, kernels[:, None, None, :], groups=batch * channels)
        pixels = F.conv2d(pixels, kernels[:, None, :, None], groups=batch * channels)
        return pixels.view_as(images).round_().clamp_(0, 255).to(torch.uint8)


class ColorJitter:
    """Change brightness, contrast and saturation, in this order, as torchvision's ``ColorJitter`` in an order it draws.

    Args:
        strength: each is multiplied by a factor uniform in 1 - strength to 1 + strength.
    """

    num_draws = 3

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """(B, C, H, W) uint8 with 1 or 3 channels and (B, 3) in [0, 1) -> (B, C, H, W) uint8."""
        factors = to_device_of((1 + self.strength * (2 * draws - 1)).float(), images)[:, :, None, None, None]
        brightness, contrast, saturation = factors.unbind(dim=1)
        images = to_uint8(images * brightness)
        images = _blend(images, grey(images).mean(dim=(1, 2, 3), keepdim=True), contrast)
        return images if images.shape[1] == 1 else _blend(images, grey(images), saturation)


def _blend(images: Tensor, others: Tensor, factors: Tensor) -> Tensor:
    return to_uint8(images * factors + others * (1 - factors))
