"""TrivialAugment: one random operation of random magnitude per image (arXiv:2103.10158, the "wide" space).

Operations, magnitudes and arithmetic are those of ``torchvision.transforms.v2.TrivialAugmentWide`` with its defaults:
31 magnitudes from zero to the maximum, a random sign where an operation has one.
"""

import torch
from torch import Tensor

from vitrine.data.transforms import operations
from vitrine.data.transforms.operations import apply, by_operation

OPERATIONS = operations.OPERATIONS[:14]  # the others are RandAugment's
BINS = 31
LEVELS = 2 * BINS  # magnitude and sign: the second half is negative


def signed(maximum: float) -> Tensor:
    """Magnitude of each level, (62,) float64, rounded to float32 as torchvision's are."""
    magnitudes = torch.linspace(0, maximum, BINS).double()
    return torch.cat([magnitudes, -magnitudes])


VALUES = by_operation(
    dict.fromkeys(("ShearX", "ShearY"), signed(0.99))
    | dict.fromkeys(("TranslateX", "TranslateY"), signed(32.0).trunc())
    | {"Rotate": signed(135.0)}
    | dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), 1 + signed(0.99))
    | {"Posterize": (8 - (torch.arange(BINS) / ((BINS - 1) / 6)).round()).double().repeat(2)}
    | {"Solarize": (255 * torch.linspace(1, 0, BINS)).ceil().double().repeat(2)}
)


class TrivialAugment:
    """Apply one of :data:`OPERATIONS` to each image."""

    num_draws = 2

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """(B, C, H, W) uint8 with 1 or 3 channels and (B, 2) in [0, 1) -> (B, C, H, W) uint8."""
        chosen = (draws[:, 0] * len(OPERATIONS)).long()
        levels = (draws[:, 1] * LEVELS).long()
        return apply(images, chosen, VALUES[chosen, levels])
