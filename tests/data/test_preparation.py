"""A single picture is prepared as the data set prepared its images."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.running import write_image_folder
from PIL import Image

from vitrine.data.decode import Decoder
from vitrine.data.preparation import Preparation, normalised, resized
from vitrine.errors import DataError


def preparation(size, channels=3, *, from_files):
    return Preparation(size, channels, from_files, (0.5, 0.4, 0.3)[:channels], (0.2,))


@pytest.fixture
def picture(numbered):
    """A picture of 30 x 21 pixels, (C, H, W)."""
    return numbered(1, channels=3, size=30).images[0, :, :21].contiguous()


@pytest.mark.parametrize("size", [8, 21, 32])
def test_arrays_are_resized_as_a_batch_of_them(numbered, size):
    images = numbered(7, channels=3, size=21).images
    prepare = preparation(size, from_files=False)
    assert torch.equal(torch.stack([prepare.pixels(image) for image in images]), resized(images, size))
    as_files = [prepare.pixels(Image.fromarray(image.permute(1, 2, 0).numpy())) for image in images]
    assert torch.equal(torch.stack(as_files), resized(images, size))


@pytest.mark.parametrize("size", [8, 21, 32])
def test_files_are_decoded_as_in_training(picture, size, tmp_path):
    path = tmp_path / "picture.png"
    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(path)
    expected = torch.from_numpy(Decoder(size, 3).read([path])[0])
    prepare = preparation(size, from_files=True)
    for form in (path, Image.open(path), picture, picture.permute(1, 2, 0).numpy()):
        assert torch.equal(prepare.pixels(form), expected)


@pytest.mark.parametrize("resize", ["pad", "squash"])
def test_pictures_become_square_as_in_training(picture, resize, tmp_path):
    path = tmp_path / "picture.png"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(path, exif=exif)
    prepare = Preparation(16, 3, True, (0.5, 0.4, 0.3), (0.2,), resize)
    expected = torch.from_numpy(Decoder.with_mean(16, 3, resize, (0.5, 0.4, 0.3)).read([path])[0])
    turned = picture.rot90(-1, (1, 2))
    for form in (path, Image.open(path), turned.contiguous(), turned.permute(1, 2, 0).numpy()):
        assert torch.equal(prepare.pixels(form), expected)


def test_levels_and_margins_are_those_of_training(compose, tmp_path):
    values = np.random.default_rng(0).integers(0, 1700, (21, 30), dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.tif")
    write_image_folder(tmp_path / "own")
    given = ["data=imagefolder", f"data.root={tmp_path / 'own'}", "data.levels=[100,1600]", "data.crop_pct=0.8"]
    prepare = Preparation.of(compose(*given).data)
    decoder = Decoder(prepare.size, 3, levels=(100, 1600), crop_pct=0.8)
    expected = torch.from_numpy(decoder.read([tmp_path / "deep.tif"])[0])
    for form in (tmp_path / "deep.tif", Image.open(tmp_path / "deep.tif"), Image.fromarray(values)):
        assert torch.equal(prepare.pixels(form), expected)


def test_of_a_picture_that_is_not_square_arrays_take_the_centre(picture):
    assert torch.equal(preparation(21, from_files=False).pixels(picture), picture[:, :, 4:25])


def test_square_arrays_are_stretched_to_a_size_that_is_not_square(numbered, picture):
    images = numbered(3, channels=3, size=21).images
    prepare = preparation((8, 16), from_files=False)
    assert torch.equal(torch.stack([prepare.pixels(image) for image in images]), resized(images, (8, 16)))
    assert torch.equal(prepare.pixels(picture), prepare.pixels(picture[:, :, 4:25]))


def test_of_a_picture_for_your_own_arrays_the_part_with_their_ratio_is_taken(picture):
    prepare = replace(preparation((7, 14), from_files=False), ratio=(7, 14))
    assert torch.equal(prepare.pixels(picture), resized(picture[None, :, 3:18], (7, 14))[0])


def test_a_picture_is_normalised_by_channel(picture):
    prepare = preparation(8, from_files=True)
    expected = (prepare.pixels(picture).double() / 255 - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / 0.2
    torch.testing.assert_close(prepare(picture).double(), expected, atol=1e-6, rtol=0)
    batch = torch.stack([prepare.pixels(picture)] * 2)
    mean, std = (torch.tensor(values).reshape(1, -1, 1, 1) for values in (prepare.mean, prepare.std))
    assert torch.equal(prepare.normalised(batch), normalised(batch, mean, std))


def test_pictures_of_other_channels_than_files_have_come_as_tensors():
    images = torch.from_numpy(np.arange(5 * 64, dtype=np.uint8).reshape(5, 8, 8))
    prepare = Preparation(8, 5, False, (0.5,), (0.5,))
    assert torch.equal(prepare.pixels(images), images)
    with pytest.raises(Exception, match="this model takes 5 channels, which image files lack"):
        prepare.pixels("picture.png")


@pytest.mark.parametrize("from_files", [True, False])
def test_a_pillow_image_that_cannot_be_read_is_a_data_error(picture, tmp_path, from_files):
    prepare = preparation(8, from_files=from_files)
    path = tmp_path / "cut_short.png"
    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(path)
    path.write_bytes(path.read_bytes()[:300])
    with Image.open(path) as cut_short, pytest.raises(DataError, match=r"the picture cannot be converted: .*truncated"):
        prepare.pixels(cut_short)
    for size in ((0, 5), (5, 0)):
        with pytest.raises(DataError, match="the picture cannot be converted: it has no pixels"):
            prepare.pixels(Image.new("RGB", size))
    with pytest.raises(DataError, match="the picture cannot be converted: its pixels are 32-bit floats"):
        prepare.pixels(Image.new("F", (8, 8)))
