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
        self.most = (math.radians(degrees), 2 * shift, 2 * shift, scale, math.radians(shear))

    def __call__(self, images: Tensor, numbers: Tensor) -> Tensor:
        """(B, C, H, W) uint8 and (B, 5) in [0, 1) -> (B, C, H, W) uint8."""
        amounts = (2 * numbers - 1) * numbers.new_tensor(self.most)
        angle, right, down, larger, slant = amounts.unbind(dim=1)
        # The inverse map, from the place of a new pixel to where it comes from, in coordinates from -1 to 1.
        cos, sin, tan, size = angle.cos(), angle.sin(), slant.tan(), 1 + larger
        rows = [cos + tan * sin, sin - tan * cos, -right, -sin, cos, -down]
        inverse = torch.stack([row if index in (2, 5) else row / size for index, row in enumerate(rows)], dim=1)
        grid = F.affine_grid(inverse.view(-1, 2, 3), list(images.shape), align_corners=False)
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


def digits(data: DataConfig) -> Chain:
    """Turn by up to 10 degrees, shift by a twentieth, scale by a tenth, shear by 5 degrees: what handwriting does."""
    return Chain([Affine(degrees=10, shift=0.05, scale=0.1, shear=5)])


AUGMENTATIONS: dict[str, Callable[[DataConfig], Augmentation]] = {"none": none, "light": light, "digits": digits}
