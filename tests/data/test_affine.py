import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import InterpolationMode, RandomAffine
from torchvision.transforms.functional import affine

from vitrine.data.augment import Affine

MOST = {"degrees": 30.0, "translate": 0.2, "scale": 0.3, "shear": 20.0}


def pictures(count, size=12, channels=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, channels, size, size), generator=generator, dtype=torch.uint8)


def test_every_image_is_moved_as_torchvision_moves_it():
    images = pictures(32)
    numbers = torch.rand(32, 5, generator=torch.Generator().manual_seed(1))
    moved = Affine(**MOST)(images, numbers)
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
    assert torch.equal(Affine(**MOST)(images, torch.full((4, 5), 0.5)), images)


@pytest.mark.parametrize("place", range(5))
def test_each_number_moves_something_by_itself(place):
    numbers = torch.full((4, 5), 0.5)
    numbers[:, place] = 0.9
    assert not torch.equal(Affine(**MOST)(pictures(4), numbers), pictures(4))


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
    ours = Affine(degrees=20, translate=0, scale=0.2, shear=10)
    found = centre(ours(image.to(torch.uint8).expand(1500, -1, -1, -1), torch.rand(1500, 5)))
    for axis in range(2):
        assert stats.ks_2samp(found[:, axis], expected[:, axis]).pvalue > 0.001
    assert np.std(found[:, 1]) > 1
