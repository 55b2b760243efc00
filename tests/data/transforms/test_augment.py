"""Augmentations against torchvision and their definitions; what the configuration turns on."""

import re

import numpy as np
import pytest
import torch
from helpers.user_parts import enter_lab
from scipy.stats import chi2_contingency, chisquare
from torchvision import transforms

import vitrine
from vitrine.config.augment import AugmentConfig, RandAugmentConfig
from vitrine.config.parts import PartError
from vitrine.data.epoch_plan import plan_epoch
from vitrine.data.transforms.augment import (
    Chain,
    Cutout,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    Warp,
    build_augmentation,
)
from vitrine.data.transforms.colour import ColorJitter, ThreeAugment
from vitrine.data.transforms.operations import GEOMETRIC, inverse_affine
from vitrine.data.transforms.rand_augment import RandAugment, values_at
from vitrine.data.transforms.resized_crop import RandomResizedCrop
from vitrine.data.transforms.trivial_augment import LEVELS, VALUES, TrivialAugment


def random_draws(count, num_draws):
    return plan_epoch(count, num_draws, seed=1, epoch=0).draws


def shifted(image, down, right, most):
    """Crop an image (C, H, W) from its padded copy, with numpy."""
    padded = np.pad(image, ((0, 0), (most, most), (most, most)))
    size = image.shape[-1]
    return padded[:, down : down + size, right : right + size]


@pytest.mark.parametrize("most", [1, 2, 4])
def test_crop_is_a_crop_from_each_padded_image(numbered, most):
    images, draws = numbered(40, channels=3).images, random_draws(40, 2)
    moved = RandomCrop(most)(images, draws)
    assert moved.dtype is torch.uint8
    for image, draw, result in zip(images.numpy(), draws.double().numpy(), moved.numpy(), strict=True):
        down, right = np.floor(draw * (2 * most + 1)).astype(int)
        np.testing.assert_array_equal(result, shifted(image, down, right, most))


@pytest.mark.parametrize("most", [1, 2, 4, 28])
def test_crop_reaches_its_furthest_corners_and_no_further(numbered, most):
    images = numbered(2).images
    largest = torch.full((2, 2), 1 - 2**-24)
    for draws, corner in [(torch.zeros(2, 2), 0), (largest, 2 * most)]:
        moved = RandomCrop(most)(images, draws)
        assert torch.equal(moved[1], torch.from_numpy(shifted(images[1].numpy(), corner, corner, most)))


def test_crop_offsets_are_uniform():
    count, most, size = 5000, 2, 9
    images = torch.zeros(count, 1, size, size, dtype=torch.uint8)
    images[:, :, size // 2, size // 2] = 255
    moved = RandomCrop(most)(images, random_draws(count, 2))
    assert (moved.sum(dim=(1, 2, 3)) == 255).all()
    places, counts = moved.flatten(1).to(torch.float32).argmax(dim=1).unique(return_counts=True)
    offsets = {divmod(place, size) for place in places.tolist()}
    assert offsets == {(row, column) for row in range(2, 7) for column in range(2, 7)}
    assert chisquare(counts.numpy()).pvalue > 1e-3


def test_crop_offsets_have_the_distribution_of_torchvision():
    torch.manual_seed(0)
    count, image = 3000, torch.zeros(1, 9, 9, dtype=torch.uint8)
    image[:, 4, 4] = 255
    theirs = torch.stack([transforms.RandomCrop(9, padding=2)(image) for _ in range(count)])
    ours = RandomCrop(2)(image.expand(count, -1, -1, -1), random_draws(count, 2))
    places = [(moved.flatten(1) == 255).int().argmax(dim=1).bincount(minlength=81) for moved in (ours, theirs)]
    reached = places[1] > 0
    assert torch.equal(places[0] > 0, reached)
    assert chi2_contingency(torch.stack(places)[:, reached].numpy()).pvalue > 1e-3


def test_flip_mirrors_left_to_right_where_the_draw_is_below_a_half(numbered):
    images = numbered(4, channels=3).images
    flipped = RandomHorizontalFlip()(images, torch.tensor([[0.0], [0.499], [0.5], [0.999]]))
    assert torch.equal(flipped[:2], images[:2, :, :, torch.arange(7, -1, -1)])
    assert torch.equal(flipped[2:], images[2:])


def test_chain_gives_each_step_its_own_draws_in_order(numbered):
    images, draws = numbered(40).images, random_draws(40, 5)
    chain = Chain([RandomCrop(1), RandomHorizontalFlip(), RandomCrop(2)])
    assert chain.num_draws == 5
    expected = RandomCrop(1)(images, draws[:, :2])
    expected = RandomHorizontalFlip()(expected, draws[:, 2:3])
    expected = RandomCrop(2)(expected, draws[:, 3:])
    assert torch.equal(chain(images, draws), expected)


def test_an_image_is_augmented_alike_in_any_batch(numbered):
    images, draws = numbered(12).images, random_draws(12, 3)
    chain = Chain([RandomCrop(2), RandomHorizontalFlip()])
    one_by_one = [chain(images[[index]], draws[[index]]) for index in range(12)]
    assert torch.equal(chain(images, draws), torch.cat(one_by_one))


PARTS = {
    "resized_crop": ([0.25, 1.0], RandomResizedCrop),
    "crop": (1, RandomCrop),
    "flip": (True, RandomHorizontalFlip),
    "degrees": (5.0, Warp),
    "translate": (0.1, Warp),
    "scale": (0.1, Warp),
    "shear": (5.0, Warp),
    "elastic": (0.05, Warp),
    "trivial": (True, TrivialAugment),
    "rand": (RandAugmentConfig(), RandAugment),
    "three": (True, ThreeAugment),
    "jitter": (0.3, ColorJitter),
    "erasing": (0.5, RandomErasing),
    "cutout": (3, Cutout),
}


@pytest.mark.parametrize("part", PARTS)
def test_each_key_turns_on_one_part(numbered, data_config, part):
    value, kind = PARTS[part]
    chain = build_augmentation(AugmentConfig(**{part: value}), data_config(flip=True))
    assert [type(step) for step in chain.steps] == [kind]
    images = numbered(40).images
    assert not torch.equal(chain(images, random_draws(40, chain.num_draws)), images)


def test_without_augmentation_images_are_unchanged(numbered, data_config):
    images, chain = numbered(5).images, build_augmentation(AugmentConfig(), data_config(flip=True))
    assert chain.num_draws == 0
    assert torch.equal(chain(images, random_draws(5, 0)), images)


def everything(**changes):
    return AugmentConfig(**{part: value for part, (value, _) in PARTS.items()} | changes)


def test_parts_act_in_the_order_of_their_keys_and_never_flip_where_that_changes_the_class(data_config):
    order = [RandomResizedCrop, RandomCrop, RandomHorizontalFlip, Warp, TrivialAugment]
    order += [RandAugment, ThreeAugment, ColorJitter, RandomErasing, Cutout]
    chain = build_augmentation(everything(), data_config(flip=True))
    assert [type(step) for step in chain.steps] == order
    chain = build_augmentation(everything(), data_config(flip=False))
    assert [type(step) for step in chain.steps] == [step for step in order if step is not RandomHorizontalFlip]


def test_augmentations_leave_their_input_as_it_was(numbered, data_config):
    images = numbered(60, channels=3).images
    before = images.clone()
    chain = build_augmentation(everything(), data_config(in_channels=3, flip=True))
    chain(images, random_draws(60, chain.num_draws))
    assert torch.equal(images, before)


@pytest.mark.parametrize("side", [8, 12])
@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_nothing_is_read_back_from_the_device(data_config, device, side):
    """On the meta device, reading a value, or a shape that depends on values, is an error."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    chain = build_augmentation(everything(), data_config(in_channels=3, flip=True, train_size=side))
    images = torch.zeros(64, 3, side, side, dtype=torch.uint8, device=device)
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        changed = chain(images, random_draws(64, chain.num_draws))
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    assert (changed.shape, changed.dtype, changed.device.type) == ((64, 3, 8, 8), torch.uint8, device)


def chain_of(*overrides):
    config = vitrine.compose(["model=vit_nano", *overrides])
    return build_augmentation(config.augment, config.data)


@pytest.mark.parametrize(("overrides", "most"), [(["data=mnist"], 3), (["data=cifar10"], 4), (["data=digits"], 1)])
def test_light_shifts_by_an_eighth_and_mirrors_where_that_keeps_the_class(overrides, most):
    chain = chain_of(*overrides, "augment=light")
    assert chain.steps[0].padding == most
    assert [type(step) for step in chain.steps] == (
        [RandomCrop, RandomHorizontalFlip] if overrides == ["data=cifar10"] else [RandomCrop]
    )


def test_light_shifts_by_a_pixel_at_least():
    assert chain_of("data.image_size=4", "patch=2", "augment=light").steps[0].padding == 1


def test_the_groups_consist_of_the_parts_in_their_files():
    assert chain_of("data=cifar10", "augment=none").steps == []
    standard = chain_of("data=cifar10", "augment=standard").steps
    assert [type(step) for step in standard] == [RandomCrop, RandomHorizontalFlip]
    assert standard[0].padding == 4
    (warp,) = chain_of("augment=digits").steps
    assert torch.equal(warp.limits, Warp(degrees=10, translate=0.05, scale=0.1, shear=5).limits)
    assert [type(step) for step in chain_of("data=cifar10", "augment=strong").steps] == [
        RandomCrop,
        RandomHorizontalFlip,
        TrivialAugment,
        RandomErasing,
    ]
    crop, flip, rand, erasing = chain_of("data=cifar10", "augment=deit").steps
    assert [type(step) for step in (crop, flip, erasing)] == [RandomResizedCrop, RandomHorizontalFlip, RandomErasing]
    assert (rand.config, rand.fill) == (RandAugmentConfig(), erasing.colour)  # the defaults of the section
    assert [type(step) for step in chain_of("data=cifar10", "augment=deit3").steps] == [
        RandomResizedCrop,
        RandomHorizontalFlip,
        ThreeAugment,
        ColorJitter,
    ]
    added = chain_of("augment=digits", "augment.erasing=0.5", "augment.degrees=0").steps
    assert [type(step) for step in added] == [Warp, RandomErasing]


@pytest.mark.parametrize("data", ["mnist", "digits"])
@pytest.mark.parametrize("group", ["none", "light", "standard", "strong", "digits", "deit", "deit3"])
def test_a_digit_is_never_mirrored(data, group):
    """Neither by RandomHorizontalFlip nor by a geometric operation: every affine matrix keeps the orientation."""
    config = vitrine.compose(["model=vit_nano", f"data={data}", f"augment={group}"])
    config.augment.flip = True  # as a file may have it; typed, it is refused
    chain = build_augmentation(config.augment, config.data)
    assert not any(isinstance(step, RandomHorizontalFlip) for step in chain.steps)
    for step in chain.steps:
        if isinstance(step, (TrivialAugment, RandAugment)):
            size = config.data.image_hw
            values = VALUES if isinstance(step, TrivialAugment) else values_at(torch.linspace(-10, 10, LEVELS), *size)
            operations = torch.arange(len(GEOMETRIC)).repeat_interleave(LEVELS)
            matrices = inverse_affine(operations, values[: len(GEOMETRIC)].flatten(), *size)
            assert (torch.linalg.det(matrices[:, :, :2].double()) > 0).all()


LAB = """
class Augmentation:
    num_draws = 1

    def __call__(self, images, draws):
        return {}
"""


@pytest.mark.parametrize(
    ("result", "given"),
    [
        ("images.float() / 255", "(5, 1, 8, 8) float32"),
        ("images[..., ::2, ::2]", "(5, 1, 4, 4) uint8"),
        ("images[1:]", "(4, 1, 8, 8) uint8"),
        ("images.numpy()", "ndarray"),
        ("None", "NoneType"),
    ],
)
def test_an_augmentation_of_the_users_gives_images_as_it_takes_them(tmp_path, monkeypatch, data_config, result, given):
    enter_lab(tmp_path, monkeypatch, "lab_of_images", parts=LAB.format(result))
    chain = build_augmentation(AugmentConfig(parts=["lab_of_images.parts.Augmentation"]), data_config())
    problem = f"must give a tensor (5, 1, 8, 8) uint8, not {given}"
    with pytest.raises(PartError, match=re.escape(f"lab_of_images.parts.Augmentation {problem}")):
        chain(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), random_draws(5, 1))
