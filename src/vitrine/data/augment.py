"""Changes to training images, for a whole batch at once, each image by its own random numbers.

An augmentation says how many numbers in [0, 1) it needs for an image (``draws``) and maps a batch and its numbers to a
changed batch. It draws nothing itself: the numbers come from the epoch plan.
"""

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


AUGMENTATIONS: dict[str, Callable[[DataConfig], Augmentation]] = {"none": none, "light": light}
