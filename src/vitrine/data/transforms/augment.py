"""Changes to training images, for a whole batch at once, each image by its own random numbers.

An augmentation says how many numbers in [0, 1) it needs for an image (``draws``) and maps a batch and its numbers to a
changed batch. It draws nothing itself: the numbers come from the epoch plan, and lie on the CPU like it. What they
decide is worked out there and sent to the images' device; nothing is read back, so nothing waits for the device.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.config.schema import AugmentConfig, DataConfig
from vitrine.data.epoch_plan import send
from vitrine.data.transforms.boxes import fill
from vitrine.data.transforms.trivial_augment import Trivial


class Augmentation(Protocol):
    """A change to a batch of images."""

    draws: int

    def __call__(self, images: Tensor, numbers: Tensor) -> Tensor:
        """(B, C, H, W) uint8 on any device and (B, draws) in [0, 1) on the CPU -> (B, C, H, W) uint8."""


class Crop:
    """Crop each image from itself with ``padding`` pixels of black around, as torchvision's ``RandomCrop``."""

    draws = 2

    def __init__(self, padding: int) -> None:
        self.padding = padding

    def __call__(self, images: Tensor, numbers: Tensor) -> Tensor:
        """(B, C, H, W) uint8 and (B, 2) in [0, 1) -> (B, C, H, W) uint8."""
        height, width = images.shape[-2:]
        padded = F.pad(images, (self.padding,) * 4)
        corner = (numbers * (2 * self.padding + 1)).long()  # row and column where the crop starts
        rows = (corner[:, :1] + torch.arange(height)) * padded.shape[-1]
        columns = corner[:, 1:] + torch.arange(width)
        rows, columns = send(rows, images), send(columns, images)
        places = (rows[:, None, :, None] + columns[:, None, None, :]).flatten(2).expand(-1, images.shape[1], -1)
        return padded.flatten(2).gather(2, places).view_as(images)


class Flip:
    """Mirror half of the images, left to right."""

    draws = 1

    def __call__(self, images: Tensor, numbers: Tensor) -> Tensor:
        """(B, C, H, W) uint8 and (B, 1) in [0, 1) -> (B, C, H, W) uint8."""
        count = len(images)
        chosen = torch.arange(count) + count * (numbers[:, 0] < 0.5)
        return torch.cat([images, images.flip(-1)]).index_select(0, send(chosen, images))


class Warp:
    """Turn, shift, scale, shear and bend each image in one resampling, black coming in.

    The first four are about its middle. Each amount is drawn uniformly, as by torchvision's ``RandomAffine`` with
    bilinear interpolation; shifts are not rounded to whole pixels. Bending moves the knots of a coarse grid over the
    image, each its own way, and what lies between follows by bicubic interpolation, as in "U-Net", arXiv:1505.04597
    (section 3.1), which has fewer knots. torchvision's ``ElasticTransform`` smooths a random number of each pixel.

    Args:
        degrees: turn by up to this angle, either way.
        translate: move by up to this share of the image, either way, in each direction.
        scale: enlarge by up to this share, or reduce.
        shear: slant by up to this angle in degrees, either way, along the rows.
        elastic: move each knot by up to this share of the image, either way, in each direction. Up to 0.055 no draw
            folds an image (of 16 pixels or more); at 0.125, half the distance between knots, neighbours may change
            places.
    """

    knots = 5  # along each side, the outer ones on the edge

    def __init__(self, degrees: float, translate: float, scale: float, shear: float, elastic: float = 0.0) -> None:
        self.most = torch.tensor([math.radians(degrees), math.radians(shear), scale, 2 * translate, 2 * translate])
        self.elastic = elastic
        self.draws = len(self.most) + (2 * self.knots**2 if elastic else 0)

    def __call__(self, images: Tensor, numbers: Tensor) -> Tensor:
        """(B, C, H, W) uint8 on any device and (B, draws) in [0, 1) on the CPU -> (B, C, H, W) uint8."""
        grid = self.affine(images, numbers[:, :5])
        if self.elastic:
            grid = grid + self.bend(images, numbers[:, 5:])
        moved = F.grid_sample(images.float(), grid.permute(1, 2, 3, 0), align_corners=False)
        return moved.round_().to(torch.uint8)

    def affine(self, images: Tensor, numbers: Tensor) -> Tensor:
        """(B, 5) in [0, 1) -> (2, B, H, W): where each new pixel comes from, column and row, in [-1, 1]."""
        height, width = images.shape[-2:]
        amounts = (2 * numbers - 1) * self.most
        angle, slant, larger = amounts[:, :3].unbind(dim=1)
        shift = amounts[:, 3:, None]
        cos, sin, one, none = angle.cos(), angle.sin(), torch.ones_like(angle), torch.zeros_like(angle)
        turn_back = torch.stack([cos, sin, -sin, cos], dim=1).view(-1, 2, 2)
        slant_back = torch.stack([one, slant.tan(), none, one], dim=1).view(-1, 2, 2)
        linear = slant_back @ turn_back / (1 + larger)[:, None, None]
        offset = -linear @ shift
        # A sum of what a pixel's column says and what its row says.
        columns = linear[:, :, :1] * middles(width)
        rows = linear[:, :, 1:] * middles(height) + offset
        rows, columns = (send(one.transpose(0, 1), images) for one in (rows, columns))
        return columns[:, :, None, :] + rows[:, :, :, None]

    def bend(self, images: Tensor, numbers: Tensor) -> Tensor:
        """(B, 2 * knots ** 2) in [0, 1) -> (2, B, H, W): how much further off, in the same units."""
        moved = 2 * self.elastic * (2 * numbers - 1)
        moved = send(moved.view(-1, 2, self.knots, self.knots).transpose(0, 1), images)
        return F.interpolate(moved, images.shape[-2:], mode="bicubic", align_corners=True)


class Erasing:
    """A rectangle takes one colour, as with torchvision's ``RandomErasing``: "Random Erasing", arXiv:1708.04896.

    It covers 2 to 33 % of the image, uniformly, and is 0.3 to 3.3 times as high as wide, uniformly in the logarithm;
    one that doesn't fit is drawn again, three times in all (torchvision: ten), after which the image stays whole.

    Args:
        chance: of an image to lose a rectangle.
        colour: per channel, uint8.
    """

    tries = 3
    draws = 3 + 2 * tries

    def __init__(self, chance: float, colour: Sequence[int]) -> None:
        self.chance = chance
        self.colour = colour

    def __call__(self, images: Tensor, numbers: Tensor) -> Tensor:
        """(B, C, H, W) uint8 and (B, 9) in [0, 1) -> (B, C, H, W) uint8."""
        height, width = images.shape[-2:]
        return fill(images, self.boxes(numbers, height, width), self.colour)

    def boxes(self, numbers: Tensor, height: int, width: int) -> Tensor:
        """(B, 9) in [0, 1) -> (B, 4) int64: top, bottom, left, right; empty where nothing is erased."""
        numbers = numbers.double()
        area, ratio = numbers[:, 3:].view(-1, self.tries, 2).unbind(dim=2)
        area = (0.02 + 0.31 * area) * height * width
        ratio = (math.log(0.3) + math.log(3.3 / 0.3) * ratio).exp()
        high, wide = (area * ratio).sqrt().round().long(), (area / ratio).sqrt().round().long()
        fits = (high < height) & (wide < width)
        first = fits.int().argmax(dim=1, keepdim=True)
        erased = (numbers[:, 0] < self.chance) & fits.any(dim=1)
        high, wide = (one.gather(1, first)[:, 0] * erased for one in (high, wide))
        top = (numbers[:, 1] * (height - high + 1)).long()
        left = (numbers[:, 2] * (width - wide + 1)).long()
        return torch.stack([top, top + high, left, left + wide], dim=1)


class Cutout:
    """A square takes one colour, its middle anywhere, so that part of it may lie outside: arXiv:1708.04552, section 3.

    Args:
        side: of the square, in pixels.
        colour: per channel, uint8.
    """

    draws = 2

    def __init__(self, side: int, colour: Sequence[int]) -> None:
        self.side = side
        self.colour = colour

    def __call__(self, images: Tensor, numbers: Tensor) -> Tensor:
        """(B, C, H, W) uint8 and (B, 2) in [0, 1) -> (B, C, H, W) uint8."""
        height, width = images.shape[-2:]
        top, left = ((numbers * torch.tensor([height, width])).long() - self.side // 2).unbind(dim=1)
        return fill(images, torch.stack([top, top + self.side, left, left + self.side], dim=1), self.colour)


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


def middles(count: int) -> Tensor:
    """Where the middles of ``count`` pixels lie in [-1, 1]."""
    return (2 * torch.arange(count) + 1 - count) / count


def build_augmentation(augment: AugmentConfig, data: DataConfig) -> Chain:
    """What ``augment`` turns on, in its order. What is erased takes the mean colour: 0 as the model sees it."""
    mean = data.mean if len(data.mean) > 1 else data.mean * data.in_channels
    colour = [min(max(round(255 * one), 0), 255) for one in mean]
    warp = (augment.degrees, augment.translate, augment.scale, augment.shear, augment.elastic)
    steps: list[Augmentation] = []
    if augment.crop:
        steps.append(Crop(augment.crop))
    if augment.flip and data.flip:
        steps.append(Flip())
    if any(warp):
        steps.append(Warp(*warp))
    if augment.trivial:
        steps.append(Trivial(data.image_size))
    if augment.erasing:
        steps.append(Erasing(augment.erasing, colour))
    if augment.cutout:
        steps.append(Cutout(augment.cutout, colour))
    return Chain(steps)
