"""Affine and elastic warps, against torchvision."""

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import InterpolationMode, RandomAffine
from torchvision.transforms.functional import affine

from vitrine.data.transforms.augment import Warp

LIMITS = {"degrees": 30.0, "translate": 0.2, "scale": 0.3, "shear": 20.0}


def random_images(count, size=12, channels=3, width=None):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, channels, size, width or size), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("width", [12, 30])
def test_every_image_is_warped_as_by_torchvision(width):
    images = random_images(32, width=width)
    numbers = torch.rand(32, 5, generator=torch.Generator().manual_seed(1))
    moved = Warp(**LIMITS)(images, numbers)
    for image, own, result in zip(images, (2 * numbers - 1).tolist(), moved, strict=True):
        angle, shear, scale, right, down = own
        expected = affine(
            image.float(),
            angle=angle * LIMITS["degrees"],
            translate=[right * LIMITS["translate"] * width, down * LIMITS["translate"] * 12],
            scale=1 + scale * LIMITS["scale"],
            shear=[shear * LIMITS["shear"], 0.0],
            interpolation=InterpolationMode.BILINEAR,
        )
        torch.testing.assert_close(result.float(), expected, atol=0.51, rtol=0)


def test_draws_of_a_half_change_nothing():
    images = random_images(4)
    assert torch.equal(Warp(**LIMITS)(images, torch.full((4, 5), 0.5)), images)


@pytest.mark.parametrize("place", range(5))
def test_each_draw_has_an_effect(place):
    numbers = torch.full((4, 5), 0.5)
    numbers[:, place] = 0.9
    assert not torch.equal(Warp(**LIMITS)(random_images(4), numbers), random_images(4))


def test_parameters_have_the_distribution_of_torchvision():
    """An off-centre bright pixel lands where RandomAffine sends it, in distribution."""
    torch.manual_seed(0)
    image = torch.zeros(1, 1, 41, 41)
    image[..., 20, 32] = 255

    def centre(moved):
        weights = moved.double()[:, 0]
        places = torch.arange(41.0).double()
        total = weights.sum(dim=(1, 2))
        return torch.stack(
            [(weights.sum(dim=1) @ places) / total, (weights.sum(dim=2) @ places) / total], dim=1
        ).numpy()

    theirs = RandomAffine(20, None, (0.8, 1.2), (-10, 10), InterpolationMode.BILINEAR)
    expected = centre(torch.cat([theirs(image) for _ in range(1500)]))
    ours = Warp(degrees=20, translate=0, scale=0.2, shear=10)
    found = centre(ours(image.to(torch.uint8).expand(1500, -1, -1, -1), torch.rand(1500, 5)))
    for axis in range(2):
        assert stats.ks_2samp(found[:, axis], expected[:, axis]).pvalue > 0.001
    assert np.std(found[:, 1]) > 1


def coordinates(size=29):
    """Two images whose pixels hold 8 x column and 8 x row."""
    line = (8 * torch.arange(size)).to(torch.uint8)
    return torch.stack([line.expand(size, size), line.expand(size, size).T])[:, None].contiguous()


def displaced(numbers, elastic=0.1):
    """Displacement of each pixel of :func:`coordinates`, in pixels, for one draw."""
    images = coordinates()
    still = torch.full((2, 5), 0.5)
    moved = Warp(0, 0, 0, 0, elastic)(images, torch.cat([still, numbers.expand(2, -1)], dim=1))
    return (moved.float() - images.float())[:, 0] / 8  # to the right, downwards


def test_a_grid_point_displaces_its_surroundings_and_no_other_grid_point():
    numbers = torch.full((50,), 0.5)
    numbers[12] = 1.0  # column of the central point: its source is 0.1 of the image further right
    right, below = displaced(numbers)
    assert right[14, 14] == pytest.approx(0.1 * 29, abs=0.1)
    points = torch.arange(0, 29, 7)
    others = right[points][:, points]
    others[2, 2] = 0
    assert others.abs().max() < 0.1
    assert below.abs().max() < 0.1
    numbers[12], numbers[37] = 0.5, 0.0  # row: its source is further up
    right, below = displaced(numbers)
    assert right.abs().max() < 0.1
    assert below[14, 14] == pytest.approx(-0.1 * 29, abs=0.1)


@pytest.mark.parametrize("size", [16, 28, 32, 64])
def test_no_draw_folds_an_image_up_to_an_elastic_strength_of_0_055(size):
    """Source rows stay in order; at the largest strength allowed they need not.

    The steepest draws are extreme ones: the same pattern in each row of grid points, up to its sign.
    """
    ends = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 5)
    points = ends[:, None, :, None] * ends[None, :, None, :]  # every vertical by every horizontal pattern
    numbers = ((points.reshape(-1, 1, 5, 5).expand(-1, 2, -1, -1) + 1) / 2).flatten(1)
    images = torch.zeros(len(numbers), 1, size, size)
    smooth, strong = (Warp(0, 0, 0, 0, most).displacements(images, numbers)[1] for most in (0.055, 0.125))
    a_pixel = 2 / size
    assert -a_pixel < smooth.diff(dim=1).min() < -0.8 * a_pixel
    assert strong.diff(dim=1).min() < -a_pixel


def test_affine_and_elastic_parts_are_one_resampling():
    """Source coordinates are the sum of both parts; two resamplings in sequence would give others."""
    images, numbers = coordinates(), torch.full((2, 55), 0.5)
    numbers[:, 0], numbers[:, 5:] = 0.7, torch.rand(50, generator=torch.Generator().manual_seed(2))
    warp = Warp(**LIMITS, elastic=0.05)
    column, row = warp.affine_grid(images, numbers[:, :5]) + warp.displacements(images, numbers[:, 5:])
    expected = torch.stack([8 * ((column[0] + 1) * 29 - 1) / 2, 8 * ((row[1] + 1) * 29 - 1) / 2])
    moved = warp(images, numbers)[:, 0].float()
    inside = (slice(None), slice(9, -9), slice(9, -9))  # away from the borders, which are filled with black
    torch.testing.assert_close(moved[inside], expected[inside], atol=0.6, rtol=0)
    turned = Warp(**LIMITS)(images, numbers[:, :5])
    still = torch.cat([torch.full((2, 5), 0.5), numbers[:, 5:]], dim=1)
    assert (warp(turned, still)[:, 0].float() - expected)[inside].abs().max() > 2
