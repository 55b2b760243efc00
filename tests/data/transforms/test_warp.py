import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import InterpolationMode, RandomAffine
from torchvision.transforms.functional import affine

from vitrine.data.transforms.augment import Warp

MOST = {"degrees": 30.0, "translate": 0.2, "scale": 0.3, "shear": 20.0}


def pictures(count, size=12, channels=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, channels, size, size), generator=generator, dtype=torch.uint8)


def test_every_image_is_moved_as_torchvision_moves_it():
    images = pictures(32)
    numbers = torch.rand(32, 5, generator=torch.Generator().manual_seed(1))
    moved = Warp(**MOST)(images, numbers)
    for image, own, result in zip(images, (2 * numbers - 1).tolist(), moved, strict=True):
        angle, slant, larger, right, down = own
        expected = affine(
            image.float(),
            angle=angle * MOST["degrees"],
            translate=[right * MOST["translate"] * 12, down * MOST["translate"] * 12],
            scale=1 + larger * MOST["scale"],
            shear=[slant * MOST["shear"], 0.0],
            interpolation=InterpolationMode.BILINEAR,
        )
        torch.testing.assert_close(result.float(), expected, atol=0.51, rtol=0)


def test_the_middle_of_all_amounts_changes_nothing():
    images = pictures(4)
    assert torch.equal(Warp(**MOST)(images, torch.full((4, 5), 0.5)), images)


@pytest.mark.parametrize("place", range(5))
def test_each_number_moves_something_by_itself(place):
    numbers = torch.full((4, 5), 0.5)
    numbers[:, place] = 0.9
    assert not torch.equal(Warp(**MOST)(pictures(4), numbers), pictures(4))


def test_amounts_have_the_distribution_of_torchvision():
    """A single bright pixel off the middle lands where RandomAffine sends it, in distribution."""
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
    """Two images whose pixels say where they are: 8 x column, and 8 x row."""
    line = (8 * torch.arange(size)).to(torch.uint8)
    return torch.stack([line.expand(size, size), line.expand(size, size).T])[:, None].contiguous()


def bent(numbers, elastic=0.1):
    """How far each pixel of :func:`coordinates` came from, in pixels, all of one draw."""
    images = coordinates()
    still = torch.full((2, 5), 0.5)
    moved = Warp(0, 0, 0, 0, elastic)(images, torch.cat([still, numbers.expand(2, -1)], dim=1))
    return (moved.float() - images.float())[:, 0] / 8  # from the right, from below


def test_a_knot_moves_what_lies_on_it_and_leaves_the_other_knots():
    numbers = torch.full((50,), 0.5)
    numbers[12] = 1.0  # columns, the middle knot: from 0.1 of the image further right
    right, below = bent(numbers)
    assert right[14, 14] == pytest.approx(0.1 * 29, abs=0.1)
    knots = torch.arange(0, 29, 7)
    others = right[knots][:, knots]
    others[2, 2] = 0
    assert others.abs().max() < 0.1
    assert below.abs().max() < 0.1
    numbers[12], numbers[37] = 0.5, 0.0  # rows: from further up
    right, below = bent(numbers)
    assert right.abs().max() < 0.1
    assert below[14, 14] == pytest.approx(-0.1 * 29, abs=0.1)


@pytest.mark.parametrize("size", [16, 28, 32, 64])
def test_no_draw_folds_anything_up_to_a_share_of_55_thousandths(size):
    """What comes from further down stays further down; the strongest amount allowed can turn that round.

    Steepest are draws at both ends, the same pattern of them in each row of knots but for its sign.
    """
    ends = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 5)
    knots = ends[:, None, :, None] * ends[None, :, None, :]  # every pattern down by every pattern across
    numbers = ((knots.reshape(-1, 1, 5, 5).expand(-1, 2, -1, -1) + 1) / 2).flatten(1)
    images = torch.zeros(len(numbers), 1, size, size)
    smooth, strong = (Warp(0, 0, 0, 0, most).bend(images, numbers)[1] for most in (0.055, 0.125))
    a_pixel = 2 / size
    assert -a_pixel < smooth.diff(dim=1).min() < -0.8 * a_pixel
    assert strong.diff(dim=1).min() < -a_pixel


def test_bending_and_turning_are_one_resampling():
    """Where each pixel comes from is the sum of both; turned first and bent then, it would be another place."""
    images, numbers = coordinates(), torch.full((2, 55), 0.5)
    numbers[:, 0], numbers[:, 5:] = 0.7, torch.rand(50, generator=torch.Generator().manual_seed(2))
    warp = Warp(**MOST, elastic=0.05)
    column, row = warp.affine(images, numbers[:, :5]) + warp.bend(images, numbers[:, 5:])
    expected = torch.stack([8 * ((column[0] + 1) * 29 - 1) / 2, 8 * ((row[1] + 1) * 29 - 1) / 2])
    moved = warp(images, numbers)[:, 0].float()
    inside = (slice(None), slice(9, -9), slice(9, -9))  # off the edges, where black comes in
    torch.testing.assert_close(moved[inside], expected[inside], atol=0.6, rtol=0)
    turned = Warp(**MOST)(images, numbers[:, :5])
    still = torch.cat([torch.full((2, 5), 0.5), numbers[:, 5:]], dim=1)
    assert (warp(turned, still)[:, 0].float() - expected)[inside].abs().max() > 2
