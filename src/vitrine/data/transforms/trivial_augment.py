"""TrivialAugment: one operation of one strength for each image, both drawn uniformly (arXiv:2103.10158, "wide").

Operations, strengths and arithmetic are those of ``torchvision.transforms.v2.TrivialAugmentWide`` with its defaults:
31 strengths from nothing to the most, their sign a coin where they have one, nearest pixels, black coming in.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.data.epoch_plan import send

BINS = 31
LEVELS = 2 * BINS  # a strength and its sign; the second half is negative
GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
OPERATIONS = (
    *GEOMETRIC,
    *("Identity", "Brightness", "Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)


def signed(most: float) -> Tensor:
    """The strength that each level stands for, (62,) float64, as float32 has it."""
    strengths = torch.linspace(0, most, BINS).double()
    return torch.cat([strengths, -strengths])


MOST = {"Rotate": 135.0, "TranslateX": 32.0, "TranslateY": 32.0, "ShearX": 0.99, "ShearY": 0.99}
CHANGES = signed(0.99)  # of what is blended
THRESHOLDS = (255 * torch.linspace(1, 0, BINS)).ceil().to(torch.uint8).repeat(2)
MASKS = (256 - 2 ** (torch.arange(BINS) / ((BINS - 1) / 6)).round()).to(torch.uint8).repeat(2)


class Trivial:
    """One of :data:`OPERATIONS` for each image.

    Args:
        size: of the images, which are square, in pixels.
    """

    draws = 2

    def __init__(self, size: int) -> None:
        self.moves = torch.tensor(
            [backwards(name, strength, size) for name in GEOMETRIC for strength in signed(MOST[name]).tolist()]
        )

    def __call__(self, images: Tensor, numbers: Tensor) -> Tensor:
        """(B, C, H, W) uint8, 1 or 3 channels, and (B, 2) in [0, 1) -> (B, C, H, W) uint8."""
        kinds = (numbers[:, 0] * len(OPERATIONS)).long()
        levels = (numbers[:, 1] * LEVELS).long()
        return self.apply(images, kinds, levels)

    def apply(self, images: Tensor, kinds: Tensor, levels: Tensor) -> Tensor:
        """Do to each image what it is told to.

        Images of one kind are brought together first, so that each operation works on its own images only. How many
        these are is known on the CPU, where nobody waits for the device to say so.

        Args:
            images: (B, C, H, W) uint8.
            kinds: (B,) int64 on the CPU, index into :data:`OPERATIONS`.
            levels: (B,) int64 on the CPU, below :data:`LEVELS`: the strength, plus 31 where it is negative.
        """
        order = kinds.argsort(stable=True)
        counts = kinds.bincount(minlength=len(OPERATIONS)).tolist()
        moved = sum(counts[: len(GEOMETRIC)])
        sizes = [moved, *counts[len(GEOMETRIC) :]]
        kinds, levels = kinds[order], levels[order]
        parts = list(images.index_select(0, send(order, images)).split(sizes))
        own = levels.split(sizes)
        if moved:
            parts[0] = self._move(parts[0], kinds[:moved] * LEVELS + own[0])
        for place, name in enumerate(OPERATIONS[len(GEOMETRIC) :], start=1):
            if sizes[place] and name in COLOUR:
                parts[place] = COLOUR[name](parts[place], own[place])
        return torch.cat(parts).index_select(0, send(order.argsort(), images))

    def _move(self, images: Tensor, rows: Tensor) -> Tensor:
        """Move (B, C, H, W) by the matrices in these ``rows`` of the table."""
        size = images.shape[-1]
        matrix = send(self.moves[rows], images)[:, :, :, None]  # (B, 2, 3, 1)
        places = torch.linspace((1 - size) / 2, (size - 1) / 2, size, device=images.device)
        columns = (matrix[:, :, 0] * places).transpose(0, 1)
        rows = (matrix[:, :, 1] * places + matrix[:, :, 2]).transpose(0, 1)
        grid = (columns[:, :, None, :] + rows[:, :, :, None]).permute(1, 2, 3, 0)
        return F.grid_sample(images.float(), grid, mode="nearest", align_corners=False).to(torch.uint8)


def backwards(name: str, strength: float, size: int) -> list[list[float]]:
    """From a new pixel, counted from the middle, to where it comes from, in [-1, 1]: two rows of three numbers."""
    half = size / 2
    if name == "ShearX":  # about the corner, not the middle
        matrix = [[1.0, strength, strength * half], [0.0, 1.0, 0.0]]
    elif name == "ShearY":
        matrix = [[1.0, 0.0, 0.0], [strength, 1.0, strength * half]]
    elif name == "TranslateX":
        matrix = [[1.0, 0.0, -math.trunc(strength)], [0.0, 1.0, 0.0]]
    elif name == "TranslateY":
        matrix = [[1.0, 0.0, 0.0], [0.0, 1.0, -math.trunc(strength)]]
    else:
        cos, sin = math.cos(math.radians(strength)), math.sin(math.radians(strength))
        matrix = [[cos, -sin, 0.0], [sin, cos, 0.0]]
    return [[value / half for value in row] for row in matrix]


def brightness(images: Tensor, levels: Tensor) -> Tensor:
    """Towards black, or away from it."""
    factors, _ = _factors(levels, images)
    return _whole(images * factors)


def color(images: Tensor, levels: Tensor) -> Tensor:
    """Towards grey, or away from it; an image of one channel is grey already."""
    return images if images.shape[1] == 1 else _blend(images, _grey(images), levels)


def contrast(images: Tensor, levels: Tensor) -> Tensor:
    """Towards an image's mean grey, or away from it."""
    return _blend(images, _grey(images).mean(dim=(1, 2, 3), keepdim=True), levels)


def sharpness(images: Tensor, levels: Tensor) -> Tensor:
    """Towards a blurred image, or away from it; the outermost pixels stay."""
    whole = images.float()
    middle = whole[:, :, 1:-1, 1:-1]
    wide = whole[..., :-2] + whole[..., 1:-1] + whole[..., 2:]
    around = wide[..., :-2, :] + wide[..., 1:-1, :] + wide[..., 2:, :]
    blurred = ((around + 4 * middle) / 13).round_()
    sharp = images.clone()
    _, rest = _factors(levels, images)
    sharp[:, :, 1:-1, 1:-1] = _whole(torch.addcmul(middle, blurred - middle, rest))
    return sharp


def posterize(images: Tensor, levels: Tensor) -> Tensor:
    """Keep 8 to 2 of a value's bits."""
    return images & send(MASKS[levels], images)[:, None, None, None]


def solarize(images: Tensor, levels: Tensor) -> Tensor:
    """Turn light values into dark ones, those above a threshold that falls from 255 to 0."""
    least = send(THRESHOLDS[levels], images)[:, None, None, None]
    return torch.where(images >= least, ~images, images)


def autocontrast(images: Tensor, levels: Tensor) -> Tensor:
    """Stretch each channel so that its values reach from 0 to 255."""
    least, most = images.amin(dim=(2, 3), keepdim=True).float(), images.amax(dim=(2, 3), keepdim=True).float()
    flat = most == least
    scale = torch.where(flat, 1.0, (most - least) * (1 / 255))
    return _whole((images - torch.where(flat, 0.0, least)) / scale)


def equalize(images: Tensor, levels: Tensor) -> Tensor:
    """Spread the values of each channel so that each range of them is as frequent, by Pillow's whole numbers."""
    flat = images.flatten(2).long()
    counts = torch.zeros((*flat.shape[:2], 256), dtype=torch.int32, device=images.device)
    counts.scatter_add_(2, flat, torch.ones_like(flat, dtype=torch.int32))
    below = counts.cumsum(dim=2, dtype=torch.int32) - counts  # pixels darker than a value
    brightest = counts.gather(2, flat.amax(dim=2, keepdim=True))
    step = (flat.shape[2] - brightest).div(255, rounding_mode="floor")
    table = (below + step // 2).div(step.clamp(min=1), rounding_mode="floor").clamp(0, 255)
    table = torch.where(step == 0, torch.arange(256, dtype=torch.int32, device=images.device), table)
    return table.to(torch.uint8).gather(2, flat).view_as(images)


COLOUR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Brightness": brightness,
    "Color": color,
    "Contrast": contrast,
    "Sharpness": sharpness,
    "Posterize": posterize,
    "Solarize": solarize,
    "AutoContrast": autocontrast,
    "Equalize": equalize,
}


def _factors(levels: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) levels -> how much of an image is kept, or exaggerated, 0.01 to 1.99, and the rest to 1; (B, 1, 1, 1)."""
    kept = 1 + CHANGES[levels]
    factors, rest = send(torch.stack([kept, 1 - kept]).float(), images)[:, :, None, None, None]
    return factors, rest


def _blend(images: Tensor, others: Tensor, levels: Tensor) -> Tensor:
    factors, rest = _factors(levels, images)
    return _whole(torch.addcmul(images * factors, others, rest))


def _grey(images: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, 1, H, W) float, whole numbers: the luma of three channels."""
    if images.shape[1] == 1:
        return images.float()
    red, green, blue = images.float().split(1, dim=1)
    return (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).floor_()


def _whole(values: Tensor) -> Tensor:
    """Float -> uint8, rounded down."""
    return values.clamp(0, 255).to(torch.uint8)
