"""Augmentation of training images, vectorised over a batch; each image has its own random numbers.

An augmentation states how many random numbers it needs per image (``num_draws``), and maps a batch and these numbers to
an augmented batch. It draws nothing itself: the numbers come from the epoch plan, on the CPU. Parameters are computed
there and sent to the images' device; nothing is read back, so nothing waits for the device.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.config.augment import AugmentConfig
from vitrine.config.parts import Part, PartError, build, parts_of
from vitrine.config.schema import DataConfig
from vitrine.data.epoch_plan import to_device_of
from vitrine.data.transforms.boxes import fill_boxes
from vitrine.data.transforms.colour import ColorJitter, ThreeAugment
from vitrine.data.transforms.rand_augment import RandAugment
from vitrine.data.transforms.resized_crop import RandomResizedCrop
from vitrine.data.transforms.trivial_augment import TrivialAugment
from vitrine.text import shape_and_dtype


class Augmentation(Protocol):
    """Transform of a batch of images.

    Attributes:
        num_draws: random numbers per image.
    """

    num_draws: int

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """Return the augmented images, (B, C, H, W) uint8.

        Args:
            images: (B, C, H, W) uint8, on any device.
            draws: (B, num_draws) in [0, 1), on the CPU.
        """


class RandomCrop:
    """Pad each side with ``padding`` black pixels and crop at random, as torchvision's ``RandomCrop``."""

    num_draws = 2

    def __init__(self, padding: int) -> None:
        self.padding = padding

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """(B, C, H, W) uint8 and (B, 2) in [0, 1) -> (B, C, H, W) uint8."""
        height, width = images.shape[-2:]
        padded = F.pad(images, (self.padding,) * 4)
        corners = (draws * (2 * self.padding + 1)).long()  # row and column of the crop's top left pixel
        rows = (corners[:, :1] + torch.arange(height)) * padded.shape[-1]
        columns = corners[:, 1:] + torch.arange(width)
        rows, columns = to_device_of(rows, images), to_device_of(columns, images)
        pixels = (rows[:, None, :, None] + columns[:, None, None, :]).flatten(2).expand(-1, images.shape[1], -1)
        return padded.flatten(2).gather(2, pixels).view_as(images)


class RandomHorizontalFlip:
    """Mirror each image left to right with probability 0.5."""

    num_draws = 1

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """(B, C, H, W) uint8 and (B, 1) in [0, 1) -> (B, C, H, W) uint8."""
        count = len(images)
        chosen = torch.arange(count) + count * (draws[:, 0] < 0.5)
        return torch.cat([images, images.flip(-1)]).index_select(0, to_device_of(chosen, images))


class Warp:
    """Rotate, translate, scale, shear and elastically deform each image in one bilinear resampling, filled with black.

    The affine part is about the centre. Its parameters are uniform, as in torchvision's ``RandomAffine``, but
    translations are not rounded to whole pixels. The elastic part displaces the points of a coarse grid at random and
    interpolates between them bicubically, as in U-Net (arXiv:1505.04597, section 3.1), whose grid is coarser still;
    torchvision's ``ElasticTransform`` smooths one random displacement per pixel instead.

    Args:
        degrees: maximum angle of rotation, either way.
        translate: maximum translation in each direction, as a fraction of the image.
        scale: maximum relative enlargement or reduction.
        shear: maximum angle of shear in degrees, either way, along the rows.
        elastic: maximum displacement of a grid point in each direction, as a fraction of the image. Up to 0.055 no draw
            folds an image of 16 pixels or more; at 0.125, half the grid's spacing, neighbouring points may swap.
    """

    grid_points = 5  # along each side, the outer ones on the image's border

    def __init__(self, degrees: float, translate: float, scale: float, shear: float, elastic: float = 0.0) -> None:
        # Translations are in grid_sample's coordinates, in which an image is 2 wide.
        self.limits = torch.tensor([math.radians(degrees), math.radians(shear), scale, 2 * translate, 2 * translate])
        self.elastic = elastic
        self.num_draws = len(self.limits) + (2 * self.grid_points**2 if elastic else 0)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """(B, C, H, W) uint8 on any device and (B, num_draws) in [0, 1) on the CPU -> (B, C, H, W) uint8."""
        grid = self.affine_grid(images, draws[:, :5])
        if self.elastic:
            grid = grid + self.displacements(images, draws[:, 5:])
        warped = F.grid_sample(images.float(), grid.permute(1, 2, 3, 0), align_corners=False)
        return warped.round_().to(torch.uint8)

    def affine_grid(self, images: Tensor, draws: Tensor) -> Tensor:
        """(B, 5) in [0, 1) -> (2, B, H, W): source column and row of each pixel, in [-1, 1] inside the image."""
        height, width = images.shape[-2:]
        parameters = (2 * draws - 1) * self.limits
        angle, shear, scale = parameters[:, :3].unbind(dim=1)
        shift = parameters[:, 3:, None]
        cos, sin, one, zero = angle.cos(), angle.sin(), torch.ones_like(angle), torch.zeros_like(angle)
        inverse_rotation = torch.stack([cos, sin, -sin, cos], dim=1).view(-1, 2, 2)
        inverse_shear = torch.stack([one, shear.tan(), zero, one], dim=1).view(-1, 2, 2)
        linear = inverse_shear @ inverse_rotation / (1 + scale)[:, None, None]
        linear = linear * torch.tensor([[1, height / width], [width / height, 1]])  # of pixels -> of [-1, 1]
        offset = -linear @ shift
        # Each source coordinate is the sum of a term in the pixel's column and a term in its row.
        columns = linear[:, :, :1] * pixel_centres(width)
        rows = linear[:, :, 1:] * pixel_centres(height) + offset
        rows, columns = (to_device_of(terms.transpose(0, 1), images) for terms in (rows, columns))
        return columns[:, :, None, :] + rows[:, :, :, None]

    def displacements(self, images: Tensor, draws: Tensor) -> Tensor:
        """(B, 2 * grid_points ** 2) in [0, 1) -> (2, B, H, W): displacement of each source coordinate."""
        points = 2 * self.elastic * (2 * draws - 1)
        points = to_device_of(points.view(-1, 2, self.grid_points, self.grid_points).transpose(0, 1), images)
        return F.interpolate(points, images.shape[-2:], mode="bicubic", align_corners=True)


class RandomErasing:
    """Fill a random rectangle with one colour, as torchvision's ``RandomErasing``: arXiv:1708.04896.

    Its area is uniform in 2 to 33 % of the image; its aspect ratio, height to width, log-uniform in 0.3 to 3.3. A
    rectangle that does not fit is drawn again, up to 3 draws (torchvision: 10), after which nothing is erased.

    Args:
        probability: probability that an image is erased.
        colour: one value in [0, 255] per channel.
    """

    tries = 3
    num_draws = 3 + 2 * tries

    def __init__(self, probability: float, colour: Sequence[int]) -> None:
        self.probability = probability
        self.colour = colour

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """(B, C, H, W) uint8 and (B, 9) in [0, 1) -> (B, C, H, W) uint8."""
        height, width = images.shape[-2:]
        return fill_boxes(images, self.boxes(draws, height, width), self.colour)

    def boxes(self, draws: Tensor, height: int, width: int) -> Tensor:
        """(B, 9) in [0, 1) -> (B, 4) int64: top, bottom, left, right; empty where nothing is erased."""
        draws = draws.double()
        area, ratio = draws[:, 3:].view(-1, self.tries, 2).unbind(dim=2)
        area = (0.02 + 0.31 * area) * height * width
        ratio = (math.log(0.3) + math.log(3.3 / 0.3) * ratio).exp()
        heights, widths = (area * ratio).sqrt().round().long(), (area / ratio).sqrt().round().long()
        fits = (heights < height) & (widths < width)
        first = fits.int().argmax(dim=1, keepdim=True)
        erased = (draws[:, 0] < self.probability) & fits.any(dim=1)
        box_height, box_width = (sides.gather(1, first)[:, 0] * erased for sides in (heights, widths))
        top = (draws[:, 1] * (height - box_height + 1)).long()
        left = (draws[:, 2] * (width - box_width + 1)).long()
        return torch.stack([top, top + box_height, left, left + box_width], dim=1)


class Cutout:
    """Fill a square centred anywhere in the image with one colour, clipped at the borders: arXiv:1708.04552, section 3.

    Args:
        side: side of the square in pixels.
        colour: one value in [0, 255] per channel.
    """

    num_draws = 2

    def __init__(self, side: int, colour: Sequence[int]) -> None:
        self.side = side
        self.colour = colour

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """(B, C, H, W) uint8 and (B, 2) in [0, 1) -> (B, C, H, W) uint8."""
        height, width = images.shape[-2:]
        top, left = ((draws * torch.tensor([height, width])).long() - self.side // 2).unbind(dim=1)
        return fill_boxes(images, torch.stack([top, top + self.side, left, left + self.side], dim=1), self.colour)


class UserAugmentation:
    """An augmentation of the user's, whose images are checked.

    Args:
        part: the part that names it.

    Raises:
        PartError: it cannot be built, or states no ``num_draws``.
    """

    def __init__(self, part: Part) -> None:
        self.name = part.name
        self.augment = build(part)
        if not callable(self.augment) or not isinstance(getattr(self.augment, "num_draws", None), int):
            raise PartError(part.name, "must give a callable with an attribute num_draws")
        self.num_draws: int = self.augment.num_draws

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """(B, C, H, W) uint8 and (B, num_draws) in [0, 1) -> (B, C, H, W) uint8.

        Raises:
            PartError: the result has another shape or dtype than ``images``.
        """
        augmented = self.augment(images, draws)
        needed = shape_and_dtype(images)
        given = shape_and_dtype(augmented) if isinstance(augmented, Tensor) else type(augmented).__name__
        if given != needed:
            raise PartError(self.name, f"must give a tensor {needed}, not {given}")
        return augmented


class Chain:
    """Augmentations applied in sequence, each with its own random numbers."""

    def __init__(self, steps: Sequence[Augmentation]) -> None:
        self.steps = steps
        self.num_draws = sum(step.num_draws for step in steps)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """(B, C, H, W) uint8 and (B, num_draws) in [0, 1) -> (B, C, H, W) uint8."""
        parts = torch.split(draws, [step.num_draws for step in self.steps], dim=1)
        for step, part in zip(self.steps, parts, strict=True):
            images = step(images, part)
        return images


def pixel_centres(count: int) -> Tensor:
    """Coordinates of the centres of ``count`` pixels, (count,) in [-1, 1]."""
    return (2 * torch.arange(count) + 1 - count) / count


def build_augmentation(augment: AugmentConfig, data: DataConfig) -> Chain:
    """Build the augmentation that ``augment`` describes. Erased pixels take the mean colour, 0 after normalisation."""
    mean = data.mean if len(data.mean) > 1 else data.mean * data.in_channels
    colour = [min(max(round(255 * value), 0), 255) for value in mean]
    warp = (augment.degrees, augment.translate, augment.scale, augment.shear, augment.elastic)
    steps: list[Augmentation] = []
    if augment.resized_crop is not None:
        steps.append(RandomResizedCrop(augment.resized_crop, data.image_hw))
    if augment.crop:
        steps.append(RandomCrop(augment.crop))
    if augment.flip and data.flip:
        steps.append(RandomHorizontalFlip())
    if any(warp):
        steps.append(Warp(*warp))
    if augment.trivial:
        steps.append(TrivialAugment())
    if augment.rand is not None:
        steps.append(RandAugment(augment.rand, colour))
    if augment.three:
        steps.append(ThreeAugment())
    if augment.jitter:
        steps.append(ColorJitter(augment.jitter))
    if augment.erasing:
        steps.append(RandomErasing(augment.erasing, colour))
    if augment.cutout:
        steps.append(Cutout(augment.cutout, colour))
    steps += map(UserAugmentation, parts_of(augment))
    return Chain(steps)
