"""RandAugment against timm's rand-...-inc1: each operation at its magnitude, and what is drawn."""

import random

import numpy as np
import pytest
import torch
from helpers.smooth_images import assert_same_distribution, smooth_images
from PIL import Image, ImageOps
from scipy import stats
from timm.data import auto_augment

import vitrine
from vitrine.config.augment import RandAugmentConfig
from vitrine.data.transforms.operations import OPERATIONS, apply
from vitrine.data.transforms.rand_augment import IDENTITY, RandAugment, values_at
from vitrine.errors import ConfigError

CHANGING = [name for name in OPERATIONS if name != "Identity"]
THEIR_NAMES = {name: name for name in CHANGING}
THEIR_NAMES |= {name: f"{name}Rel" for name in ("TranslateX", "TranslateY")}
INCREASING = ("Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness")
THEIR_NAMES |= {name: f"{name}Increasing" for name in INCREASING}
MAGNITUDES = (0.0, 0.3, 1.0, 2.6, 4.8, 7.5, 9.0, 9.4, 10.0)
FILL = (124, 116, 104)


@pytest.fixture(autouse=True)
def never_black(monkeypatch):
    """Let timm keep a bit, as ours does, where it keeps none: an error in newer versions of Pillow."""
    posterize = lambda image, bits, **_: ImageOps.posterize(image, max(bits, 1))  # noqa: E731
    monkeypatch.setitem(auto_augment.NAME_TO_OP, "PosterizeIncreasing", posterize)


def options(channels, **others):
    """Timm's parameters under which it resamples as ours does."""
    return {"img_mean": FILL if channels == 3 else FILL[0], "interpolation": Image.Resampling.BILINEAR, **others}


def changed_by(transform, image):
    """A transform of Pillow's images on (C, H, W) uint8."""
    changed = np.array(transform(Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy())))
    return torch.from_numpy(changed).view(*image.shape[1:], -1).permute(2, 0, 1)


def theirs(image, name, magnitude, monkeypatch):
    negative = (magnitude < 0) != name.startswith("Translate")  # timm's positive shifts are to the left and up
    monkeypatch.setattr(random, "random", lambda: float(negative))
    operation = auto_augment.AugmentOp(THEIR_NAMES[name], 1.0, abs(magnitude), options(len(image)))
    return changed_by(operation, image)


def test_the_operations_are_those_of_timm():
    assert sorted(THEIR_NAMES.values()) == sorted(auto_augment._RAND_INCREASING_TRANSFORMS)


@pytest.mark.parametrize(("size", "channels"), [(32, 3), ((12, 20), 3), (28, 1)])
@pytest.mark.parametrize("name", CHANGING)
def test_an_operation_does_at_each_magnitude_what_timm_does(name, size, channels, monkeypatch):
    """Equal uint8 values, up to 1 where they are rounded differently."""
    magnitudes = torch.tensor([sign * magnitude for magnitude in MAGNITUDES for sign in (1, -1)], dtype=torch.float64)
    images, number = smooth_images(len(magnitudes), size, channels), OPERATIONS.index(name)
    values = values_at(magnitudes, *images.shape[-2:])[number]
    found = apply(images, torch.full((len(images),), number), values, FILL[:channels])
    expected = [theirs(image, name, own, monkeypatch) for image, own in zip(images, magnitudes.tolist(), strict=True)]
    assert (found.int() - torch.stack(expected).int()).abs().max() <= 1


@pytest.mark.parametrize("probability", [0.5, 1.0])
def test_operations_are_drawn_uniformly_and_magnitudes_normally(probability):
    rand = RandAugment(RandAugmentConfig(magnitude=8.0, std=1.0, probability=probability), FILL)
    operations, magnitudes = rand.choose(torch.rand(20_000, 3, generator=torch.Generator().manual_seed(3)))
    applied = operations[operations != IDENTITY].bincount(minlength=len(OPERATIONS))
    assert stats.binomtest(int(applied.sum()), 20_000, probability).pvalue > 1e-3
    assert stats.chisquare([count for index, count in enumerate(applied) if index != IDENTITY]).pvalue > 1e-3
    assert stats.binomtest(int((magnitudes < 0).sum()), 20_000).pvalue > 1e-3
    strengths = magnitudes.abs().numpy()
    assert strengths.max() == 10
    assert stats.ks_2samp(strengths[magnitudes < 0], strengths[magnitudes >= 0]).pvalue > 1e-3
    truncated = stats.truncnorm(-8, 2, loc=8, scale=1)
    assert stats.kstest(strengths[strengths < 10], truncated.cdf).pvalue > 1e-3
    assert stats.binomtest(int((strengths == 10).sum()), 20_000, stats.norm.sf(2)).pvalue > 1e-3


def test_extreme_draws_and_magnitudes_without_noise():
    largest = 1 - 2**-24
    rand = RandAugment(RandAugmentConfig(std=0.0, probability=1.0), FILL)
    operations, magnitudes = rand.choose(torch.tensor([[0.0] * 3, [largest] * 3]))
    assert operations.tolist() == [0, len(OPERATIONS) - 1]
    assert magnitudes.tolist() == [9, -9]


def test_the_whole_has_the_distribution_of_timm():
    """Of the defaults, and one augmented image."""
    random.seed(0)
    np.random.seed(0)
    (image,) = smooth_images(1)
    transform = auto_augment.rand_augment_transform("rand-m9-mstd0.5-inc1", options(3))
    theirs = torch.stack([changed_by(transform, image) for _ in range(3000)])
    rand = RandAugment(RandAugmentConfig(), FILL)
    draws = torch.rand(3000, rand.num_draws, generator=torch.Generator().manual_seed(0))
    ours = rand(image.expand(3000, -1, -1, -1), draws)
    assert_same_distribution(ours, theirs)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["augment.rand={}", "augment.trivial=true"], "is one more random operation beside those of augment.rand"),
        (["augment.rand={magnitude:11}"], "must be >= 0 and <= 10"),
        (["augment.rand.std=0"], r"is off; turn it on with augment.rand=\{\} augment.rand.std=0"),
    ],
)
def test_a_second_random_operation_and_wrong_magnitudes_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        vitrine.compose(["model=vit_nano", *overrides])
