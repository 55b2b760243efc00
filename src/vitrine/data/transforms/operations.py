"""Operations on images, of which each image of a batch has its own: TrivialAugment's and RandAugment's.

Their arithmetic is that of ``torchvision.transforms.v2``, and within rounding Pillow's.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.data.epoch_plan import to_device_of

GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
OPERATIONS = (
    *GEOMETRIC,
    *("Identity", "Brightness", "Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
    *("Invert", "SolarizeAdd"),
)


def by_operation(values: Mapping[str, Tensor]) -> Tensor:
    """Stack values (N,) of operations in the order of :data:`OPERATIONS`, (O, N); 0 for those that are not named."""
    zero = torch.zeros_like(next(iter(values.values())))
    return torch.stack([values.get(name, zero) for name in OPERATIONS])


def apply(images: Tensor, operations: Tensor, values: Tensor, fill: Sequence[int] | None = None) -> Tensor:
    """Apply an operation to each image.

    Images are sorted by operation, so that each operation runs once, on its own images only. Group sizes are computed
    on the CPU, so that nothing waits for the device.

    Args:
        images: (B, C, H, W) uint8 with 1 or 3 channels.
        operations: (B,) int64 on the CPU, indices into :data:`OPERATIONS`.
        values: (B,) float64 on the CPU, what the operation takes: the slope of a shear; pixels to the right or down;
            degrees clockwise; the blending factor of brightness, colour, contrast and sharpness, 1 for an unchanged
            image; bits that posterising keeps, 0 to 8; the threshold of solarising, 0 to 256; what SolarizeAdd adds.
        fill: colour around images that geometric operations resample, bilinearly, one value in [0, 255] per channel;
            None is nearest-neighbour resampling, and black.

    Returns:
        (B, C, H, W) uint8.
    """
    order = operations.argsort(stable=True)
    counts = operations.bincount(minlength=len(OPERATIONS)).tolist()
    geometric = sum(counts[: len(GEOMETRIC)])
    sizes = [geometric, *counts[len(GEOMETRIC) :]]
    operations, values = operations[order], values[order]
    groups = list(images.index_select(0, to_device_of(order, images)).split(sizes))
    group_values = values.split(sizes)
    if geometric:
        groups[0] = _transform(groups[0], operations[:geometric], group_values[0], fill)
    for index, name in enumerate(OPERATIONS[len(GEOMETRIC) :], start=1):
        if sizes[index] and name in COLOUR:
            groups[index] = COLOUR[name](groups[index], group_values[index])
    return torch.cat(groups).index_select(0, to_device_of(order.argsort(), images))


def _transform(images: Tensor, operations: Tensor, values: Tensor, fill: Sequence[int] | None) -> Tensor:
    """Resample (B, C, H, W) uint8, each image by its geometric operation."""
    matrix = to_device_of(inverse_affine(operations, values, *images.shape[-2:]), images)[:, :, :, None]  # (B, 2, 3, 1)
    down, right = (
        torch.linspace((1 - side) / 2, (side - 1) / 2, side, device=images.device) for side in images.shape[-2:]
    )
    columns = (matrix[:, :, 0] * right).transpose(0, 1)
    rows = (matrix[:, :, 1] * down + matrix[:, :, 2]).transpose(0, 1)
    grid = (columns[:, :, None, :] + rows[:, :, :, None]).permute(1, 2, 3, 0)
    if fill is None:
        return F.grid_sample(images.float(), grid, mode="nearest", align_corners=False).to(torch.uint8)
    inside = (grid.abs() <= 1).all(dim=-1)[:, None]
    colour = to_device_of(torch.tensor(fill, dtype=torch.uint8), images)[:, None, None]
    resampled = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    return torch.where(inside, resampled.round_().to(torch.uint8), colour)


def inverse_affine(operations: Tensor, values: Tensor, height: int, width: int) -> Tensor:
    """Affine maps from output pixels, relative to the centre, to their sources in [-1, 1], (B, 2, 3) float32.

    Args:
        operations: (B,) int64, indices into :data:`GEOMETRIC`.
        values: (B,) float64, as of :func:`apply`.
        height: of the images, in pixels.
        width: of the images, in pixels.
    """
    down, right = height / 2, width / 2
    each = F.one_hot(operations, len(GEOMETRIC)) * values[:, None]
    shear_x, shear_y, shift_x, shift_y, angle = each.unbind(dim=1)
    cos, sin = angle.deg2rad().cos(), angle.deg2rad().sin()
    # Images are sheared about the corner, not the centre.
    to_column = torch.stack([cos, shear_x - sin, shear_x * down - shift_x], dim=1) / right
    to_row = torch.stack([shear_y + sin, cos, shear_y * right - shift_y], dim=1) / down
    return torch.stack([to_column, to_row], dim=1).float()


# Operations on colours take images (B, C, H, W) uint8 with 1 or 3 channels, and values (B,) float64 on the CPU, as of
# :func:`apply`; they return images of the same shape and type. Three of them have no magnitude, and ignore the values.


def brightness(images: Tensor, values: Tensor) -> Tensor:
    """Blend with black, or extrapolate away from it."""
    factors, _ = _factors(values, images)
    return to_uint8(images * factors)


def color(images: Tensor, values: Tensor) -> Tensor:
    """Blend with greyscale, or extrapolate away from it; single-channel images are unchanged."""
    return images if images.shape[1] == 1 else _blend(images, grey(images), values)


def contrast(images: Tensor, values: Tensor) -> Tensor:
    """Blend with the image's mean grey, or extrapolate away from it."""
    return _blend(images, grey(images).mean(dim=(1, 2, 3), keepdim=True), values)


def sharpness(images: Tensor, values: Tensor) -> Tensor:
    """Blend with the blurred image, or extrapolate away from it; border pixels are unchanged."""
    pixels = images.float()
    inner = pixels[:, :, 1:-1, 1:-1]
    row_sums = pixels[..., :-2] + pixels[..., 1:-1] + pixels[..., 2:]
    sums = row_sums[..., :-2, :] + row_sums[..., 1:-1, :] + row_sums[..., 2:, :]  # over 3 x 3 pixels
    blurred = ((sums + 4 * inner) / 13).round_()
    result = images.clone()
    _, complement = _factors(values, images)
    result[:, :, 1:-1, 1:-1] = to_uint8(torch.addcmul(inner, blurred - inner, complement))
    return result


def posterize(images: Tensor, values: Tensor) -> Tensor:
    """Keep the highest bits of each value."""
    masks = (256 - 2 ** (8 - values)).to(torch.uint8)
    return images & to_device_of(masks, images)[:, None, None, None]


def solarize(images: Tensor, values: Tensor) -> Tensor:
    """Invert values from a threshold on."""
    threshold = to_device_of(values.to(torch.int16), images)[:, None, None, None]
    return torch.where(images >= threshold, ~images, images)


def solarize_add(images: Tensor, values: Tensor) -> Tensor:
    """Brighten values below 128."""
    added = to_device_of(values.to(torch.uint8), images)[:, None, None, None]
    return torch.where(images < 128, images + added, images)


def invert(images: Tensor, values: Tensor) -> Tensor:
    """Take each value from 255."""
    return ~images


def autocontrast(images: Tensor, values: Tensor) -> Tensor:
    """Stretch each channel to the full range, 0 to 255."""
    low, high = images.amin(dim=(2, 3), keepdim=True).float(), images.amax(dim=(2, 3), keepdim=True).float()
    constant = high == low
    scale = torch.where(constant, 1.0, (high - low) * (1 / 255))
    return to_uint8((images - torch.where(constant, 0.0, low)) / scale)


def equalize(images: Tensor, values: Tensor) -> Tensor:
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
    "Invert": invert,
    "SolarizeAdd": solarize_add,
}


def _factors(values: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) blending factors of the images -> they, and their complements to 1; (B, 1, 1, 1) float32."""
    factors, complements = to_device_of(torch.stack([values, 1 - values]).float(), images)[:, :, None, None, None]
    return factors, complements


def _blend(images: Tensor, others: Tensor, values: Tensor) -> Tensor:
    factors, complements = _factors(values, images)
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
