"""RandomErasing and Cutout, against torchvision and the Cutout paper."""

import pytest
import torch
from scipy import stats
from torchvision import transforms

from vitrine.config.augment import AugmentConfig
from vitrine.data.transforms.augment import Cutout, RandomErasing, build_augmentation


def draws(count, step):
    return torch.rand(count, step.num_draws, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", [32, 28])
def test_rectangles_have_the_distribution_of_torchvision(size):
    torch.manual_seed(0)
    count, image = 4000, torch.zeros(1, size, size)
    theirs = torch.tensor(
        [transforms.RandomErasing.get_params(image, (0.02, 0.33), (0.3, 3.3), [0])[:4] for _ in range(count)]
    )
    erasing = RandomErasing(1.0, [0])
    top, bottom, left, right = erasing.boxes(draws(count, erasing), size, size).double().unbind(dim=1)
    ours = torch.stack([top, left, bottom - top, right - left], dim=1)
    for measure in (
        lambda box: box[:, 2] * box[:, 3],
        lambda box: box[:, 2] / box[:, 3],
        lambda box: box[:, 0],
        lambda box: box[:, 1],
        lambda box: box[:, 0] / (size - box[:, 2]),
        lambda box: box[:, 1] / (size - box[:, 3]),
    ):
        assert stats.ks_2samp(measure(ours).numpy(), measure(theirs.double()).numpy()).pvalue > 1e-3
    assert (ours[:, 2:].max(dim=0).values < size).all()


def test_images_are_erased_with_the_given_probability_and_only_inside_the_box():
    images = torch.randint(0, 255, (2000, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    erasing = RandomErasing(0.25, [255, 255, 255])
    numbers = draws(2000, erasing)
    boxes = erasing.boxes(numbers, 16, 16)
    expected = images.clone()
    for image, (top, bottom, left, right) in zip(expected, boxes.tolist(), strict=True):
        image[:, top:bottom, left:right] = 255
    changed = erasing(images, numbers)
    assert torch.equal(changed, expected)
    erased = (changed != images).flatten(1).any(dim=1).sum().item()
    assert stats.binomtest(erased, 2000, 0.25).pvalue > 1e-3


@pytest.mark.parametrize("misfits", [0, 1, 2, 3])
def test_a_rectangle_that_does_not_fit_is_drawn_up_to_three_times(misfits):
    """The largest area at the highest aspect ratio exceeds the image; the smallest area as a square does not."""
    numbers = torch.zeros(1, 9)
    numbers[0, 3:] = torch.tensor([0.999, 0.999] * misfits + [0.0, 0.5] * (3 - misfits))
    top, bottom, left, right = RandomErasing(1.0, [0]).boxes(numbers, 32, 32)[0].tolist()
    assert (bottom - top, right - left) == ((5, 5) if misfits < 3 else (0, 0))


@pytest.mark.parametrize("side", [3, 4])
def test_a_square_is_centred_on_any_pixel_and_clipped(side):
    images = torch.full((36, 2, 6, 6), 9, dtype=torch.uint8)
    row, column = torch.meshgrid(torch.arange(6), torch.arange(6), indexing="ij")
    numbers = (torch.stack([row, column], dim=2).view(-1, 2) + 0.5) / 6
    changed = Cutout(side, [1, 2])(images, numbers)
    for result, middle_row, middle_column in zip(changed, row.flatten(), column.flatten(), strict=True):
        expected = torch.full((2, 6, 6), 9, dtype=torch.uint8)
        top, left = middle_row - side // 2, middle_column - side // 2
        rows, columns = slice(max(top, 0), top + side), slice(max(left, 0), left + side)
        expected[0, rows, columns], expected[1, rows, columns] = 1, 2
        assert torch.equal(result, expected)


@pytest.mark.parametrize(
    ("mean", "colour"),
    [([0.4914, 0.4822, 0.4465], [125, 123, 114]), ([0.5], [128] * 3), ([-1.0, 0.0, 2.0], [0, 0, 255])],
)
def test_erased_pixels_take_the_mean_colour_of_the_data(data_config, mean, colour):
    augment = AugmentConfig(erasing=1.0, cutout=2)
    chain = build_augmentation(augment, data_config(in_channels=3, mean=mean))
    assert [step.colour for step in chain.steps] == [colour, colour]
