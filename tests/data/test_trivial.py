"""TrivialAugment against torchvision's, operation by operation and as a whole."""

import pytest
import torch
from scipy import stats
from torchvision.transforms.v2 import TrivialAugmentWide
from torchvision.transforms.v2 import functional as tv

from vitrine.data.trivial import LEVELS, OPERATIONS, Trivial

REFERENCE = TrivialAugmentWide()
SIGNED = {name for name, (_, signed) in TrivialAugmentWide._AUGMENTATION_SPACE.items() if signed}


def pictures(count, size=32, channels=3):
    """Smooth pictures with some noise, of any range: what colour operations tell apart."""
    generator = torch.Generator().manual_seed(size)
    coarse = torch.rand(count, channels, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    darkest, brightest = torch.rand(2, count, 1, 1, 1, generator=generator).sort(dim=0).values
    noise = 0.05 * torch.rand(smooth.shape, generator=generator)
    return (255 * (darkest + (smooth + noise).clamp(0, 1) * (brightest - darkest))).to(torch.uint8)


def strength(name, level):
    """The magnitude of torchvision that a level stands for."""
    magnitudes = TrivialAugmentWide._AUGMENTATION_SPACE[name][0](31, 0, 0)
    if magnitudes is None:
        return 0.0
    return float(magnitudes[level % 31]) * (-1 if level >= 31 and name in SIGNED else 1)


def theirs(image, name, level):
    return REFERENCE._apply_image_or_video_transform(
        image, name, strength(name, level), interpolation=REFERENCE.interpolation, fill=REFERENCE._fill
    )


def test_the_operations_are_torchvisions():
    assert sorted(OPERATIONS) == sorted(TrivialAugmentWide._AUGMENTATION_SPACE)
    assert LEVELS == 2 * REFERENCE.num_magnitude_bins


@pytest.mark.parametrize(("size", "channels"), [(32, 3), (28, 1), (8, 1), (9, 3)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_level_of_an_operation_does_what_torchvision_does(name, size, channels):
    """The same uint8 values; where torchvision's float32 falls just beside a whole number, one more or less."""
    images = pictures(LEVELS, size, channels)
    kinds = torch.full((LEVELS,), OPERATIONS.index(name))
    found = Trivial(size).apply(images, kinds, torch.arange(LEVELS))
    expected = torch.stack([theirs(image, name, level) for level, image in enumerate(images)])
    assert found.dtype is torch.uint8
    difference = (found.int() - expected.int()).abs()
    print(name, size, difference.max(), (difference > 0).float().mean())
    assert difference.max() <= (1 if name in ("Color", "Contrast", "Sharpness") else 0)
    assert (difference > 0).float().mean() < 0.002
