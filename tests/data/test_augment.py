import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from vitrine.config.schema import AUGMENTATIONS as WORDS
from vitrine.data.augment import AUGMENTATIONS, Chain, Flip, Shift, light, none, standard
from vitrine.data.plan import plan_epoch


def numbers(count, draws):
    return plan_epoch(count, draws, seed=1, epoch=0).draws


def shifted(image, down, right, most):
    """One image (C, H, W), cropped from its padded self."""
    padded = np.pad(image, ((0, 0), (most, most), (most, most)))
    size = image.shape[-1]
    return padded[:, down : down + size, right : right + size]


def test_every_augmentation_of_the_configuration_has_its_function():
    assert tuple(AUGMENTATIONS) == WORDS


@pytest.mark.parametrize("most", [1, 2, 4])
def test_shift_is_a_crop_from_each_padded_image(numbered, most):
    images, draws = numbered(40, channels=3).images, numbers(40, 2)
    moved = Shift(most)(images, draws)
    assert moved.dtype is torch.uint8
    for image, draw, result in zip(images.numpy(), draws.double().numpy(), moved.numpy(), strict=True):
        down, right = np.floor(draw * (2 * most + 1)).astype(int)
        np.testing.assert_array_equal(result, shifted(image, down, right, most))


@pytest.mark.parametrize("most", [1, 2, 4, 28])
def test_shift_reaches_its_furthest_corners_and_no_further(numbered, most):
    images = numbered(2).images
    largest = torch.full((2, 2), 1 - 2**-24)
    for draws, corner in [(torch.zeros(2, 2), 0), (largest, 2 * most)]:
        moved = Shift(most)(images, draws)
        assert torch.equal(moved[1], torch.from_numpy(shifted(images[1].numpy(), corner, corner, most)))


def test_every_offset_of_shift_is_as_likely():
    count, most, size = 5000, 2, 9
    images = torch.zeros(count, 1, size, size, dtype=torch.uint8)
    images[:, :, size // 2, size // 2] = 255
    moved = Shift(most)(images, numbers(count, 2))
    assert (moved.sum(dim=(1, 2, 3)) == 255).all()
    places, counts = moved.flatten(1).to(torch.float32).argmax(dim=1).unique(return_counts=True)
    offsets = {divmod(place, size) for place in places.tolist()}
    assert offsets == {(row, column) for row in range(2, 7) for column in range(2, 7)}
    assert chisquare(counts.numpy()).pvalue > 1e-3


def test_flip_mirrors_left_to_right_where_the_number_is_below_a_half(numbered):
    images = numbered(4, channels=3).images
    flipped = Flip()(images, torch.tensor([[0.0], [0.499], [0.5], [0.999]]))
    assert torch.equal(flipped[:2], images[:2, :, :, torch.arange(7, -1, -1)])
    assert torch.equal(flipped[2:], images[2:])


def test_chain_gives_each_step_numbers_of_its_own_in_order(numbered):
    images, draws = numbered(40).images, numbers(40, 5)
    chain = Chain([Shift(1), Flip(), Shift(2)])
    assert chain.draws == 5
    step_by_step = Shift(2)(Flip()(Shift(1)(images, draws[:, :2]), draws[:, 2:3]), draws[:, 3:])
    assert torch.equal(chain(images, draws), step_by_step)


def test_each_image_is_changed_by_its_own_numbers_whatever_batch_it_is_in(numbered):
    images, draws = numbered(12).images, numbers(12, 3)
    chain = Chain([Shift(2), Flip()])
    one_by_one = [chain(images[[index]], draws[[index]]) for index in range(12)]
    assert torch.equal(chain(images, draws), torch.cat(one_by_one))


def test_augmentations_leave_their_input_as_it_was(numbered, data_config):
    images = numbered(12).images
    before = images.clone()
    light(data_config(flip=True))(images, numbers(12, 3))
    assert torch.equal(images, before)


def test_none_changes_nothing(numbered, data_config):
    images, chain = numbered(5).images, none(data_config())
    assert chain.draws == 0
    assert torch.equal(chain(images, numbers(5, 0)), images)


@pytest.mark.parametrize(("size", "most"), [(4, 1), (8, 1), (28, 3), (32, 4)])
def test_light_shifts_by_an_eighth_and_never_flips_where_a_mirrored_image_is_another_class(
    numbered, data_config, size, most
):
    images, augmentation = numbered(60, size=size).images, light(data_config(image_size=size, flip=False))
    draws = numbers(60, augmentation.draws)
    assert torch.equal(augmentation(images, draws), Shift(most)(images, draws))


def test_light_flips_half_of_the_images_where_that_keeps_the_class(numbered, data_config):
    images, augmentation = numbered(200).images, light(data_config(flip=True))
    draws = numbers(200, augmentation.draws)
    only_shifted = Shift(1)(images, draws[:, :2])
    result = augmentation(images, draws)
    flipped = [not torch.equal(one, two) for one, two in zip(result, only_shifted, strict=True)]
    assert torch.equal(result[flipped], only_shifted[flipped].flip(-1))
    assert 70 < sum(flipped) < 130


@pytest.mark.parametrize("size", [28, 32, 64])
def test_standard_shifts_by_four_pixels_and_flips_where_that_keeps_the_class(numbered, data_config, size):
    images = numbered(200, size=size).images
    shifts, flips = [Shift(4)], [Shift(4), Flip()]
    for flip, steps in ((False, shifts), (True, flips)):
        augmentation = standard(data_config(image_size=size, flip=flip))
        draws = torch.rand(200, augmentation.draws, generator=torch.Generator().manual_seed(0))
        assert torch.equal(augmentation(images, draws), Chain(steps)(images, draws))
