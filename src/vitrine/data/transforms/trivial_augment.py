"""TrivialAugment: one random operation of random magnitude per image (arXiv:2103.10158, the "wide" space).

Operations, magnitudes and arithmetic are those of ``torchvision.transforms.v2.TrivialAugmentWide`` with its defaults:
31 magnitudes from zero to the maximum, a random sign where an operation has one, nearest-neighbour resampling, black
fill.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.config.size import Sides, height_width
from vitrine.data.epoch_plan import to_device_of

BINS = 31
LEVELS = 2 * BINS  # magnitude and sign: the second half is negative
GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
OPERATIONS = (
    *GEOMETRIC,
    *("Identity", "Brightness", "Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)


def signed(maximum: float) -> Tensor:
    """Magnitude of each level, (62,) float64, rounded to float32 as torchvision's are."""
    magnitudes = torch.linspace(0, maximum, BINS).double()
    return torch.cat([magnitudes, -magnitudes])


MAXIMA = {"Rotate": 135.0, "TranslateX": 32.0, "TranslateY": 32.0, "ShearX": 0.99, "ShearY": 0.99}
BLEND_CHANGES = signed(0.99)  # of the blending factor, which is 1 for an unchanged image
THRESHOLDS = (255 * torch.linspace(1, 0, BINS)).ceil().to(torch.uint8).repeat(2)
MASKS = (256 - 2 ** (torch.arange(BINS) / ((BINS - 1) / 6)).round()).to(torch.uint8).repeat(2)


class TrivialAugment:
    """Apply one of :data:`OPERATIONS` to each image.

    Args:
        size: side of the images in pixels, or height and width.
    """

    num_draws = 2

    def __init__(self, size: Sides) -> None:
        magnitudes = [(name, magnitude) for name in GEOMETRIC for magnitude in signed(MAXIMA[name]).tolist()]
        self.matrices = torch.tensor([inverse_affine(*operation, *height_width(size)) for operation in magnitudes])

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """(B, C, H, W) uint8 with 1 or 3 channels and (B, 2) in [0, 1) -> (B, C, H, W) uint8."""
        operations = (draws[:, 0] * len(OPERATIONS)).long()
        levels = (draws[:, 1] * LEVELS).long()
        return self.apply(images, operations, levels)

    def apply(self, images: Tensor, operations: Tensor, levels: Tensor) -> Tensor:
        """Apply the given operation to each image.

        Images are sorted by operation, so that each operation runs once, on its own images only. Group sizes are
        computed on the CPU, so that nothing waits for the device.

        Args:
            images: (B, C, H, W) uint8.
            operations: (B,) int64 on the CPU, indices into :data:`OPERATIONS`.
            levels: (B,) int64 on the CPU, in [0, LEVELS): the magnitude, plus 31 where it is negative.
        """
        order = operations.argsort(stable=True)
        counts = operations.bincount(minlength=len(OPERATIONS)).tolist()
        geometric = sum(counts[: len(GEOMETRIC)])
        sizes = [geometric, *counts[len(GEOMETRIC) :]]
        operations, levels = operations[order], levels[order]
        groups = list(images.index_select(0, to_device_of(order, images)).split(sizes))
        group_levels = levels.split(sizes)
        if geometric:
            groups[0] = self._transform(groups[0], operations[:geometric] * LEVELS + group_levels[0])
        for index, name in enumerate(OPERATIONS[len(GEOMETRIC) :], start=1):
            if sizes[index] and name in COLOUR:
                groups[index] = COLOUR[name](groups[index], group_levels[index])
        return torch.cat(groups).index_select(0, to_device_of(order.argsort(), images))

    def _transform(self, images: Tensor, indices: Tensor) -> Tensor:
        """Resample (B, C, H, W) uint8 by the matrices at ``indices`` (B,)."""
        matrix = to_device_of(self.matrices[indices], images)[:, :, :, None]  # (B, 2, 3, 1)
        down, right = (
            torch.linspace((1 - side) / 2, (side - 1) / 2, side, device=images.device) for side in images.shape[-2:]
        )
        columns = (matrix[:, :, 0] * right).transpose(0, 1)
        rows = (matrix[:, :, 1] * down + matrix[:, :, 2]).transpose(0, 1)
        grid = (columns[:, :, None, :] + rows[:, :, :, None]).permute(1, 2, 3, 0)
        return F.grid_sample(images.float(), grid, mode="nearest", align_corners=False).to(torch.uint8)


def inverse_affine(name: str, magnitude: float, height: int, width: int) -> list[list[float]]:
    """Affine map (2 x 3) of an operation, from an output pixel, relative to the centre, to its source in [-1, 1]."""
    down, right = height / 2, width / 2
    if name == "ShearX":  # about the corner, not the centre
        matrix = [[1.0, magnitude, magnitude * down], [0.0, 1.0, 0.0]]
    elif name == "ShearY":
        matrix = [[1.0, 0.0, 0.0], [magnitude, 1.0, magnitude * right]]
    elif name == "TranslateX":
        matrix = [[1.0, 0.0, -math.trunc(magnitude)], [0.0, 1.0, 0.0]]
    elif name == "TranslateY":
        matrix = [[1.0, 0.0, 0.0], [0.0, 1.0, -math.trunc(magnitude)]]
    else:
        cos, sin = math.cos(math.radians(magnitude)), math.sin(math.radians(magnitude))
        matrix = [[cos, -sin, 0.0], [sin, cos, 0.0]]
    return [[value / half for value in row] for row, half in zip(matrix, (right, down), strict=True)]


# Operations on colours take images (B, C, H, W) uint8 with 1 or 3 channels, and levels (B,) int64 on the CPU, as
# :meth:`TrivialAugment.apply`; they return images of the same shape and type. Two of them have no magnitude, and ignore
# the levels.


def brightness(images: Tensor, levels: Tensor) -> Tensor:
    """Blend with black, or extrapolate away from it."""
    factors, _ = _factors(levels, images)
    return to_uint8(images * factors)


def color(images: Tensor, levels: Tensor) -> Tensor:
    """Blend with greyscale, or extrapolate away from it; single-channel images are unchanged."""
    return images if images.shape[1] == 1 else _blend(images, grey(images), levels)


def contrast(images: Tensor, levels: Tensor) -> Tensor:
    """Blend with the image's mean grey, or extrapolate away from it."""
    return _blend(images, grey(images).mean(dim=(1, 2, 3), keepdim=True), levels)


def sharpness(images: Tensor, levels: Tensor) -> Tensor:
    """Blend with the blurred image, or extrapolate away from it; border pixels are unchanged."""
    pixels = images.float()
    inner = pixels[:, :, 1:-1, 1:-1]
    row_sums = pixels[..., :-2] + pixels[..., 1:-1] + pixels[..., 2:]
    sums = row_sums[..., :-2, :] + row_sums[..., 1:-1, :] + row_sums[..., 2:, :]  # over 3 x 3 pixels
    blurred = ((sums + 4 * inner) / 13).round_()
    result = images.clone()
    _, complement = _factors(levels, images)
    result[:, :, 1:-1, 1:-1] = to_uint8(torch.addcmul(inner, blurred - inner, complement))
    return result


def posterize(images: Tensor, levels: Tensor) -> Tensor:
    """Keep the highest 8 to 2 bits of each value."""
    return images & to_device_of(MASKS[levels], images)[:, None, None, None]


def solarize(images: Tensor, levels: Tensor) -> Tensor:
    """Invert values from a threshold on, which falls from 255 to 0 with the magnitude."""
    threshold = to_device_of(THRESHOLDS[levels], images)[:, None, None, None]
    return torch.where(images >= threshold, ~images, images)


def autocontrast(images: Tensor, levels: Tensor) -> Tensor:
    """Stretch each channel to the full range, 0 to 255."""
    low, high = images.amin(dim=(2, 3), keepdim=True).float(), images.amax(dim=(2, 3), keepdim=True).float()
    constant = high == low
    scale = torch.where(constant, 1.0, (high - low) * (1 / 255))
    return to_uint8((images - torch.where(constant, 0.0, low)) / scale)


def equalize(images: Tensor, levels: Tensor) -> Tensor:
    """Equalise each channel's histogram, in Pillow's integer arithmetic."""
    flat = images.flatten(2).long()
    counts = torch.zeros((*flat.shape[:2], 256), dtype=torch.int32, device=images.device)
    counts.scatter_add_(2, flat, torch.ones_like(flat, dtype=torch.int32))
    below = counts.cumsum(dim=2, dtype=torch.int32) - counts  # number of pixels darker than each value
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
    """(B,) levels -> blending factors of the images, 0.01 to 1.99, and their complements to 1; (B, 1, 1, 1) float32."""
    own = 1 + BLEND_CHANGES[levels]
    factors, complements = to_device_of(torch.stack([own, 1 - own]).float(), images)[:, :, None, None, None]
    return factors, complements


def _blend(images: Tensor, others: Tensor, levels: Tensor) -> Tensor:
    factors, complements = _factors(levels, images)
    return to_uint8(torch.addcmul(images * factors, others, complements))


def grey(images: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, 1, H, W) float32: luma, rounded down to integers."""
    if images.shape[1] == 1:
        return images.float()
    red, green, blue = images.float().split(1, dim=1)
    return (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).floor_()


def to_uint8(values: Tensor) -> Tensor:
    """Clip floats to [0, 255] and round them down to uint8."""
    return values.clamp(0, 255).to(torch.uint8)
