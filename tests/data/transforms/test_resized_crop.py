"""Random resized crops against torchvision's: the same pixels of the same box, and boxes of the same distribution."""

import pytest
import torch
from scipy.stats import ks_2samp
from torchvision.transforms.v2 import RandomResizedCrop as TheirCrop
from torchvision.transforms.v2.functional import resized_crop

import vitrine
from vitrine.data.epoch_plan import plan_epoch
from vitrine.data.transforms.resized_crop import RandomResizedCrop
from vitrine.errors import ConfigError


def draws_of(count, seed=1):
    return plan_epoch(count, RandomResizedCrop.num_draws, seed=seed, epoch=0).draws


@pytest.mark.parametrize(
    ("height", "width", "size"),
    [(32, 32, (32, 32)), (24, 48, (24, 48)), (48, 48, (32, 32)), (60, 81, (24, 40)), (32, 48, (32, 32))],
)
def test_pixels_are_those_of_torchvision_for_the_same_box(numbered, height, width, size):
    """Also of images that are larger than the result, up to two and a half times."""
    images = torch.nn.functional.interpolate(numbered(40, channels=3, size=8).images.float(), (height, width)).byte()
    crop, draws = RandomResizedCrop([0.08, 1.0], size), draws_of(40)
    cropped = crop(images, draws)
    assert cropped.dtype is torch.uint8
    assert torch.equal(crop(images[7:9], draws[7:9]), cropped[7:9]), "whatever the batch"
    boxes = crop.boxes(draws, height, width).tolist()
    assert len({tuple(box) for box in boxes}) > 35
    for image, result, box in zip(images, cropped, boxes, strict=True):
        theirs = resized_crop(image, *box, list(size), antialias=True).int()
        assert (result.int() - theirs).abs().max() <= 1  # their uint8 arithmetic rounds weights


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_crop_does_not_depend_on_its_batch(channels):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (9, channels, 448, 448), dtype=torch.uint8, generator=generator)
    crop, draws = RandomResizedCrop([0.08, 1.0], (224, 224)), draws_of(9)
    alone = [crop(images[row : row + 1], draws[row : row + 1]) for row in range(9)]
    assert torch.equal(torch.cat(alone), crop(images, draws))


@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 48), (20, 200)])
def test_boxes_have_the_distribution_of_torchvision(height, width):
    """Also of images so wide that a central crop takes the place of many draws."""
    count, area = 2000, (0.3, 1.0)
    torch.manual_seed(0)
    their = TheirCrop((height, width), scale=area)
    image = torch.zeros(1, height, width, dtype=torch.uint8)
    theirs = [their.make_params([image]) for _ in range(count)]
    ours = RandomResizedCrop(area, (height, width)).boxes(draws_of(count), height, width).double()
    for column, name in enumerate(("top", "left", "height", "width")):
        assert ks_2samp(ours[:, column], [float(box[name]) for box in theirs]).pvalue > 1e-3, name


def test_the_whole_image_is_a_crop_that_changes_nothing(numbered):
    images = numbered(10, channels=3).images
    draws = torch.full((10, RandomResizedCrop.num_draws), 0.5)
    assert torch.equal(RandomResizedCrop([1.0, 1.0], images.shape[2:])(images, draws), images)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["augment.resized_crop=[1.0,0.1]"], "must be the least and the greatest share of the area"),
        (["augment.resized_crop=[0.1]"], "must be the least and the greatest share of the area"),
        (["augment.resized_crop=[0,1]"], "must be > 0"),
        (["augment.resized_crop=[0.1,1]", "augment.crop=4"], "crops a second time beside augment.resized_crop"),
    ],
)
def test_a_wrong_area_and_a_second_crop_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        vitrine.compose(["model=vit_nano", "data=cifar10", "augment=none", *overrides])
