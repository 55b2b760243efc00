"""TrivialAugment against torchvision: each operation, and the distribution as a whole."""

import pytest
import torch
from helpers.smooth_images import assert_same_distribution, smooth_images
from scipy import stats
from torchvision.transforms.v2 import TrivialAugmentWide

from vitrine.data.transforms import trivial_augment
from vitrine.data.transforms.operations import apply
from vitrine.data.transforms.trivial_augment import LEVELS, OPERATIONS, VALUES, TrivialAugment

REFERENCE = TrivialAugmentWide()
SIGNED = {name for name, (_, signed) in TrivialAugmentWide._AUGMENTATION_SPACE.items() if signed}


def magnitude(name, level):
    """Torchvision's magnitude for a level."""
    magnitudes = TrivialAugmentWide._AUGMENTATION_SPACE[name][0](31, 0, 0)
    if magnitudes is None:
        return 0.0
    return float(magnitudes[level % 31]) * (-1 if level >= 31 and name in SIGNED else 1)


def ours(images, operations, levels):
    return apply(images, operations, VALUES[operations, levels])


def theirs(image, name, level):
    return REFERENCE._apply_image_or_video_transform(
        image, name, magnitude(name, level), interpolation=REFERENCE.interpolation, fill=REFERENCE._fill
    )


def test_the_operations_are_those_of_torchvision():
    assert sorted(OPERATIONS) == sorted(TrivialAugmentWide._AUGMENTATION_SPACE)
    assert 2 * REFERENCE.num_magnitude_bins == LEVELS


@pytest.mark.parametrize(("size", "channels"), [(32, 3), (28, 1), (8, 1), (9, 3), ((12, 20), 3)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_level_of_an_operation_does_what_torchvision_does(name, size, channels):
    """Equal uint8 values, up to 1 where processors round a blend differently."""
    images = smooth_images(LEVELS, size, channels)
    operations = torch.full((LEVELS,), OPERATIONS.index(name))
    found = ours(images, operations, torch.arange(LEVELS))
    expected = torch.stack([theirs(image, name, level) for level, image in enumerate(images)])
    assert found.dtype is torch.uint8
    difference = (found.int() - expected.int()).abs()
    assert difference.max() <= (1 if name in ("Color", "Contrast", "Sharpness") else 0)
    assert (difference > 0).float().mean() < 0.002


def test_images_keep_their_positions_in_the_batch():
    images = smooth_images(60)
    operations, levels = torch.arange(60) % 14, torch.arange(60) % 62
    together = ours(images, operations.flip(0), levels)
    for place in range(60):
        alone = ours(images[[place]], operations.flip(0)[[place]], levels[[place]])
        assert torch.equal(together[[place]], alone), OPERATIONS[operations.flip(0)[place]]


def test_constant_images_are_handled_as_torchvision_does():
    for value in (0, 7, 255):
        images = torch.full((LEVELS, 3, 8, 8), value, dtype=torch.uint8)
        for kind, name in enumerate(OPERATIONS):
            found = ours(images, torch.full((LEVELS,), kind), torch.arange(LEVELS))
            expected = torch.stack([theirs(image, name, level) for level, image in enumerate(images)])
            assert (found.int() - expected.int()).abs().max() <= 1, (name, value)


def test_images_too_small_to_be_blurred_are_not_sharpened():
    images = smooth_images(4, size=2)
    operations = torch.full((4,), OPERATIONS.index("Sharpness"))
    assert torch.equal(ours(images, operations, torch.full((4,), 30)), images)


def test_operations_magnitudes_and_signs_are_uniform(monkeypatch):
    monkeypatch.setattr(trivial_augment, "VALUES", torch.arange(LEVELS).expand(len(OPERATIONS), LEVELS))
    monkeypatch.setattr(trivial_augment, "apply", lambda images, operations, levels: (operations, levels))
    seen = TrivialAugment()(torch.zeros(20_000), torch.rand(20_000, 2, generator=torch.Generator().manual_seed(3)))
    for drawn, count in zip(seen, (len(OPERATIONS), LEVELS), strict=True):
        counts = drawn.bincount(minlength=count)
        assert len(counts) == count
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_the_whole_has_the_distribution_of_torchvision():
    """Of one augmented image."""
    torch.manual_seed(0)
    (image,) = smooth_images(1)
    theirs = torch.stack([REFERENCE(image) for _ in range(3000)])
    ours = TrivialAugment()(image.expand(3000, -1, -1, -1), torch.rand(3000, 2))
    assert_same_distribution(ours, theirs)
