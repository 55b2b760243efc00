"""Pictures and drawings become the pixels that training would have made of them, in Chromium."""

import json

import numpy as np
import PIL
import pytest
from PIL import Image
from scipy import ndimage

from vitrine.data.decode import Decoder
from vitrine.data.preparation import Preparation

# As JSON, since Playwright is slow with long lists.
PICTURE = """(asked) => {
    const [pixels, width, height, preparation] = JSON.parse(asked);
    return JSON.stringify([...preparePicture({pixels: Uint8ClampedArray.from(pixels), width, height}, preparation)]);
}"""
DRAWING = """(asked) => {
    const [pixels, side, preparation] = JSON.parse(asked);
    const prepared = prepareDrawing({pixels: Uint8ClampedArray.from(pixels), width: side, height: side}, preparation);
    return JSON.stringify(prepared && [...prepared]);
}"""


FILES = {"channels": 1, "resize": "crop", "crop_pct": 1}


def evaluated(page, code, *asked):
    return json.loads(page.evaluate(code, json.dumps(asked)))


@pytest.fixture(scope="module")
def page(scripted):
    return scripted("prepare.js")


@pytest.mark.parametrize("resize", ["crop", "pad", "squash"])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(
    ("width", "height", "size"),
    [
        *((8, 8, (8, 8)), (20, 16, (8, 8)), (16, 20, (8, 8)), (31, 60, (28, 28)), (5, 3, (28, 28)), (33, 32, (32, 32))),
        *((200, 300, (32, 32)), (61, 64, (61, 61)), (20, 16, (8, 12)), (20, 16, (12, 8)), (31, 60, (60, 31))),
    ],
)
def test_a_picture_is_decoded_as_in_training(page, tmp_path, width, height, size, channels, resize):
    crop_pct = 0.9 if resize == "crop" and channels == 3 else 1
    generator = np.random.default_rng(width)
    rgba = generator.integers(0, 256, (height, width, 4), dtype=np.uint8)
    if channels < 4:
        rgba[..., 3] = 255
    Image.fromarray(rgba).save(tmp_path / "picture.png")
    decoder = Decoder.with_mean(size, channels, resize, [0.5, 0.2, 0.8, 0.1][:channels], crop_pct=crop_pct)
    decoded = decoder.read([tmp_path / "picture.png"])[0].transpose(1, 2, 0)
    preparation = {"size": size, "channels": channels, "resize": resize, "crop_pct": crop_pct, "fill": decoder.fill}
    prepared = evaluated(page, PICTURE, rgba.flatten().tolist(), width, height, preparation)
    assert np.array_equal(np.reshape(prepared, (*size, channels)), decoded)


@pytest.mark.skipif(int(PIL.__version__.split(".")[0]) < 13, reason="older versions of Pillow scale the width first")
@pytest.mark.parametrize(("width", "height", "size"), [(31, 97, 28), (33, 97, 7), (8, 60, 7), (12, 40, 24)])
def test_a_tall_picture_is_scaled_in_pillows_order(page, tmp_path, width, height, size):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 4), dtype=np.uint8) | (0, 0, 0, 255)
    Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "picture.png")
    prepared = evaluated(page, PICTURE, pixels.flatten().tolist(), width, height, FILES | {"size": [size, size]})
    assert prepared == Decoder(size, 1).read([tmp_path / "picture.png"]).flatten().tolist()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("ratio", [(1, 1), (2, 3), (15, 4)])
@pytest.mark.parametrize(
    ("width", "height", "size"), [(28, 28, (28, 28)), (50, 41, (28, 28)), (20, 16, (28, 20)), (31, 97, (8, 8))]
)
def test_a_picture_for_a_data_set_of_arrays_is_cut_to_their_ratio_and_resized(
    page, width, height, size, ratio, channels
):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    transform = Preparation(size, channels, from_files=False, mean=(0.5,), std=(0.5,), ratio=ratio)
    expected = transform.pixels(Image.fromarray(pixels)).permute(1, 2, 0).flatten().numpy()
    rgba = np.dstack([pixels, np.full((height, width), 255, dtype=np.uint8)]).flatten().tolist()
    preparation = {"size": size, "channels": channels, "resize": "arrays", "ratio": ratio}
    prepared = evaluated(page, PICTURE, rgba, width, height, preparation)
    assert np.abs(np.array(prepared) - expected).max() <= 1, "torch rounds its weights to fewer bits"


def drawn(page, pixels, style, size):
    preparation = {"size": [size, size], "channels": 1, "drawing": style}
    found = evaluated(page, DRAWING, pixels.flatten().tolist(), len(pixels), preparation)
    return None if found is None else np.reshape(found, (size, size))


def stroke(side, top, bottom, left, right):
    """A slanted stroke in a box of a pad."""
    pixels = np.zeros((side, side), dtype=np.uint8)
    for row in range(top, bottom):
        column = left + (right - left - 24) * (row - top) // (bottom - top)
        pixels[row, column : column + 24] = 255
    return pixels


def test_a_digit_is_scaled_and_centred_as_in_mnist(page):
    found = drawn(page, stroke(280, 10, 150, 20, 90), "mnist", 28)
    rows, columns = np.flatnonzero(found.any(axis=1)), np.flatnonzero(found.any(axis=0))
    assert rows[-1] - rows[0] + 1 == 20
    assert columns[-1] - columns[0] + 1 == 10, "its proportions are kept"
    assert ndimage.center_of_mass(found) == pytest.approx((14, 14), abs=0.5)


def test_where_and_how_large_a_digit_is_drawn_makes_no_difference(page):
    small = drawn(page, stroke(280, 10, 150, 20, 90), "mnist", 28)
    assert np.array_equal(small, drawn(page, stroke(280, 110, 250, 180, 250), "mnist", 28))


def test_a_digit_is_counted_in_blocks_as_in_the_digits(page):
    bitmap = np.zeros((32, 32), dtype=np.uint8)
    bitmap[:, 6:26] = 255 * (np.random.default_rng(0).random((32, 20)) < 0.5)
    bitmap[[0, -1], 6], bitmap[[0, -1], 25] = 255, 255  # its box is known
    counts = (bitmap > 0).reshape(8, 4, 8, 4).sum(axis=(1, 3))
    assert np.array_equal(drawn(page, bitmap, "digits", 8), np.rint(counts * (255 / 16)))


@pytest.mark.parametrize(
    ("style", "size"), [("mnist", 28), ("mnist", 32), ("digits", 8), ("digits", 16), ("plain", 28)]
)
def test_a_drawing_has_the_size_of_the_model_and_light_strokes(page, style, size):
    found = drawn(page, stroke(280, 40, 240, 60, 200), style, size)
    assert found.shape == (size, size)
    assert found.max() > 120
    assert np.mean(found == 0) > 0.3


@pytest.mark.parametrize("style", ["mnist", "digits", "plain"])
def test_nothing_drawn_gives_no_image(page, style):
    assert drawn(page, np.zeros((280, 280), dtype=np.uint8), style, 28) is None
