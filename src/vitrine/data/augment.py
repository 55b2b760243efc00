"""Changes to training images, for a whole batch at once, each image by its own random numbers.

An augmentation says how many numbers in [0, 1) it needs for an image (``draws``) and maps a batch and its numbers to a
changed batch. It draws nothing itself: the numbers come from the epoch plan.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.config.schema import DataConfig


class Augmentation(Protocol):
    """A change to a batch of images."""

    draws: int

    def __call__(self, images: Tensor, numbers: Tensor) -> Tensor:
        """(B, C, H, W) uint8 and (B, draws) in [0, 1) -> (B, C, H, W) uint8."""


class Shift:
    """Move each image by up to ``most`` pixels each way, black coming in: a crop from the padded image."""

    draws = 2

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, images: Tensor, numbers: Tensor) -> Tensor:
        """(B, C, H, W) uint8 and (B, 2) in [0, 1) -> (B, C, H, W) uint8."""
        size = images.shape[-1]
        padded = F.pad(images, (self.most,) * 4)
        corner = (numbers * (2 * self.most + 1)).long()  # (B, 2): row and column where the crop starts
        place = torch.arange(size, device=images.device)
        rows = (corner[:, 0, None] + place)[:, None, :, None]
        columns = (corner[:, 1, None] + place)[:, None, None, :]
        batch = torch.arange(len(images), device=images.device)[:, None, None, None]
        channel = torch.arange(images.shape[1], device=images.device)[None, :, None, None]
        return padded[batch, channel, rows, columns]


class Flip:
    """Mirror half of the images, left to right."""

    draws = 1

    def __call__(self, images: Tensor, numbers: Tensor) -> Tensor:
        """(B, C, H, W) uint8 and (B, 1) in [0, 1) -> (B, C, H, W) uint8."""
        return torch.where(numbers[:, :, None, None] < 0.5, images.flip(-1), images)


class Affine:
    """Turn, shift, scale and shear each image about its middle in one resampling, black coming in.

    Each amount is drawn uniformly, as by torchvision's ``RandomAffine`` with bilinear interpolation; shifts are not
    rounded to whole pixels.

    Args:
        degrees: turn by up to this angle, either way.
        shift: move by up to this share of the image, either way, in each direction.
        scale: enlarge by up to this share, or reduce.
        shear: slant by up to this angle in degrees, either way, along the rows.
    """

    draws = 5

    def __init__(self, degrees: float, shift: float, scale: float, shear: float) -> None:
        self.most = (math.radians(degrees), math.radians(shear), scale, 2 * shift, 2 * shift)

    def __call__(self, images: Tensor, numbers: Tensor) -> Tensor:
        """(B, C, H, W) uint8 and (B, 5) in [0, 1) -> (B, C, H, W) uint8."""
        amounts = (2 * numbers - 1) * numbers.new_tensor(self.most)
        angle, slant, larger = amounts[:, :3].unbind(dim=1)
        shift = amounts[:, 3:, None]
        cos, sin, one, none = angle.cos(), angle.sin(), torch.ones_like(angle), torch.zeros_like(angle)
        turn_back = torch.stack([cos, sin, -sin, cos], dim=1).view(-1, 2, 2)
        slant_back = torch.stack([one, slant.tan(), none, one], dim=1).view(-1, 2, 2)
        linear = slant_back @ turn_back / (1 + larger)[:, None, None]
        inverse = torch.cat([linear, -linear @ shift], dim=2)  # from a new pixel to where it comes from, in [-1, 1]
        grid = F.affine_grid(inverse, list(images.shape), align_corners=False)
        moved = F.grid_sample(images.float(), grid, align_corners=False)
        return moved.round().to(torch.uint8)


class Chain:
    """Several augmentations, one after the other, each with numbers of its own."""

    def __init__(self, steps: Sequence[Augmentation]) -> None:
        self.steps = steps
        self.draws = sum(step.draws for step in steps)

    def __call__(self, images: Tensor, numbers: Tensor) -> Tensor:
        """(B, C, H, W) uint8 and (B, draws) in [0, 1) -> (B, C, H, W) uint8."""
        shares = torch.split(numbers, [step.draws for step in self.steps], dim=1)
        for step, own in zip(self.steps, shares, strict=True):
            images = step(images, own)
        return images


def none(data: DataConfig) -> Chain:
    """Images as they are."""
    return Chain([])


def light(data: DataConfig) -> Chain:
    """Shift by up to an eighth of the image; mirror where that keeps the class."""
    shift = Shift(max(1, data.image_size // 8))
    return Chain([shift, Flip()] if data.flip else [shift])


def standard(data: DataConfig) -> Chain:
    """Crop from the image padded by four pixels; mirror where that keeps the class: what CIFAR-10 is trained with."""
    return Chain([Shift(4), Flip()] if data.flip else [Shift(4)])


def digits(data: DataConfig) -> Chain:
    """Turn by up to 10 degrees, shift by a twentieth, scale by a tenth, shear by 5 degrees: what handwriting does."""
    return Chain([Affine(degrees=10, shift=0.05, scale=0.1, shear=5)])


AUGMENTATIONS: dict[str, Callable[[DataConfig], Augmentation]] = {
    "none": none,
    "light": light,
    "standard": standard,
    "digits": digits,
}
