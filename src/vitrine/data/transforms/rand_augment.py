"""RandAugment: a few random operations of one magnitude for each image (arXiv:1909.13719).

Operations and magnitudes are those of timm's ``rand-...-inc1``, in which all operations grow with the magnitude.
Pixels are timm's within rounding, where it resamples bilinearly; but posterising keeps a bit at magnitude 10, too, from
which timm has black images.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrine.config.augment import RandAugmentConfig
from vitrine.data.transforms.operations import OPERATIONS, apply, by_operation

IDENTITY = OPERATIONS.index("Identity")
CHOICES = torch.tensor([*(index for index in range(len(OPERATIONS)) if index != IDENTITY), IDENTITY])
COUNT = len(CHOICES) - 1  # the last is none


class RandAugment:
    """Apply operations in sequence to each image, all but Identity of :data:`OPERATIONS` with equal probability.

    Args:
        config: how many operations, how strong, how often.
        fill: colour around images that are rotated, sheared or shifted, one value in [0, 255] per channel.
    """

    def __init__(self, config: RandAugmentConfig, fill: Sequence[int]) -> None:
        self.config = config
        self.fill = fill
        self.num_draws = 3 * config.operations

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """(B, C, H, W) uint8 with 1 or 3 channels and (B, num_draws) in [0, 1) -> (B, C, H, W) uint8."""
        for own in draws.split(3, dim=1):
            operations, magnitudes = self.choose(own)
            values = values_at(magnitudes, *images.shape[-2:]).gather(0, operations[None])[0]
            images = apply(images, operations, values, self.fill)
        return images

    def choose(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3) in [0, 1) -> operations (B,) int64, and magnitudes (B,) float64, -10 to 10, of random sign."""
        which, sign, noise = draws.double().unbind(dim=1)
        operations = CHOICES[(which * COUNT / self.config.probability).clamp(max=COUNT).long()]
        deviation = self.config.std * torch.special.ndtri(noise + 2**-25)  # draws are multiples of 2**-24, and may be 0
        magnitudes = (self.config.magnitude + deviation).clamp(0, 10)
        return operations, torch.where(sign < 0.5, magnitudes, -magnitudes)


def values_at(magnitudes: Tensor, height: int, width: int) -> Tensor:
    """Values that the operations take at magnitudes (B,) from -10 to 10, (O, B); only some of them have a sign."""
    signed = magnitudes / 10
    strength = signed.abs()
    return by_operation(
        dict.fromkeys(("ShearX", "ShearY"), 0.3 * signed)
        | {"TranslateX": 0.45 * width * signed, "TranslateY": 0.45 * height * signed, "Rotate": 30 * signed}
        | dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), (1 + 0.9 * signed).clamp(min=0.1))
        | {"Posterize": (4 - (4 * strength).floor()).clamp(min=1), "Solarize": 256 - (256 * strength).floor()}
        | {"SolarizeAdd": (110 * strength).floor()}
    )
