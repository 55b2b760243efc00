"""3-Augment and colour jitter against torchvision's and SciPy's operations."""

import pytest
import torch
from helpers.smooth_images import smooth_images
from scipy.ndimage import gaussian_filter
from torchvision.transforms.v2 import functional as theirs

import vitrine
from vitrine.data.transforms.colour import ColorJitter, ThreeAugment
from vitrine.errors import ConfigError


@pytest.mark.parametrize("channels", [1, 3])
def test_each_image_gets_one_of_three_operations_by_its_draw(channels):
    images = smooth_images(30, channels=channels)
    draws = torch.linspace(0, 0.999, 30)[:, None].repeat(1, 2)
    changed = ThreeAugment()(images, draws)
    assert changed.dtype is torch.uint8
    for number, (image, result) in enumerate(zip(images, changed, strict=True)):
        if number < 10:
            grey = theirs.rgb_to_grayscale(image, num_output_channels=3) if channels == 3 else image
            assert torch.equal(result, grey)
        elif number < 20:
            assert torch.equal(result, theirs.solarize(image, 128))
        else:
            sigma = 0.1 + 1.9 * float(draws[number, 1])
            for ours, channel in zip(result, image.double(), strict=True):
                exact = gaussian_filter(channel.numpy(), sigma, mode="nearest", radius=6)
                assert (ours - torch.from_numpy(exact)).abs().max() < 0.51


def test_an_image_is_blurred_alike_in_any_batch():
    images, draws = smooth_images(6), torch.linspace(0.67, 0.99, 6)[:, None].repeat(1, 2)
    one_by_one = torch.cat([ThreeAugment()(images[[row]], draws[[row]]) for row in range(6)])
    assert torch.equal(ThreeAugment()(images, draws), one_by_one)


@pytest.mark.parametrize("channels", [1, 3])
def test_jitter_is_torchvisions_brightness_contrast_and_saturation(channels):
    images = smooth_images(20, channels=channels)
    draws = torch.rand(20, 3, generator=torch.Generator().manual_seed(0))
    changed = ColorJitter(0.4)(images, draws)
    for image, result, (brightness, contrast, saturation) in zip(images, changed, 0.6 + 0.8 * draws, strict=True):
        expected = theirs.adjust_brightness(image, float(brightness))
        expected = theirs.adjust_contrast(expected, float(contrast))
        expected = theirs.adjust_saturation(expected, float(saturation))
        assert (result.int() - expected.int()).abs().max() <= 1


def test_jitter_without_strength_changes_nothing():
    images = smooth_images(5)
    assert (ColorJitter(0.0)(images, torch.rand(5, 3)).int() - images.int()).abs().max() <= 1


@pytest.mark.parametrize("override", ["augment.three=true", "augment.jitter=0.3"])
def test_images_of_four_channels_have_no_colours_to_change(override):
    with pytest.raises(ConfigError, match=r"needs images of 1 or 3 channels, not data\.in_channels=4"):
        vitrine.compose(
            ["model=vit_nano", "data=cifar10", "data.in_channels=4", "data.mean=[0.5]", "data.std=[0.5]", override]
        )
