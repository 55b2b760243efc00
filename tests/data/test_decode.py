"""Image files of any mode, orientation and shape become uint8 images of one size, as other libraries make them."""

import io
import os
import struct

import numpy as np
import pytest
import torch
from helpers.levels import quick
from helpers.pictures import colours_of_16_bits
from PIL import Image, ImageOps
from torchvision.io import ImageReadMode, decode_image

from vitrine.data.decode import FORMATS, Decoder, has_pages, sixteen_bit_values
from vitrine.data.image_folder import SUFFIXES
from vitrine.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 31, 3), dtype=np.uint8)


def decoded(path, size=20, channels=3, **settings):
    return Decoder(size, channels, **settings).read([path])[0]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
def test_images_are_turned_as_exif_says_like_pillow_and_torchvision(tmp_path, orientation, suffix):
    path = tmp_path / f"turned{suffix}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    smooth = Image.fromarray(PIXELS[:4, :6]).resize((24, 16), Image.Resampling.BILINEAR)
    smooth.save(path, exif=exif, **({"quality": 95} if suffix == ".jpg" else {}))
    ours = decoded(path, 12, resize="squash")
    upright = ImageOps.exif_transpose(Image.open(path))
    assert upright.size == ((24, 16) if orientation < 5 else (16, 24))
    pillow = np.asarray(upright.resize((12, 12), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    np.testing.assert_array_equal(ours, pillow)
    if suffix == ".tif":
        return  # torchvision reads none
    theirs = decode_image(str(path), ImageReadMode.RGB, apply_exif_orientation=True)
    difference = np.asarray(upright).transpose(2, 0, 1).astype(int) - theirs.numpy()
    assert np.abs(difference).max() <= (3 if suffix == ".jpg" else 0), "another build of libjpeg rounds otherwise"


@pytest.mark.parametrize("mode", ["L", "I;16", "P", "RGBA", "RGB"])
def test_uncompressed_tiffs_are_turned_from_files_and_images_of_pillow(tmp_path, mode):
    """Pillow maps some of these into memory, with the rows of the picture that is turned already."""
    path, pixels = tmp_path / "turned.tif", np.random.default_rng(0).integers(0, 256, (20, 31, 4), np.uint8)
    pixels = pixels[..., {"RGBA": slice(4), "RGB": slice(3)}.get(mode, 0)]
    image = Image.fromarray(pixels.astype(np.uint16) * 256 if mode == "I;16" else pixels)
    if mode == "P":
        image.putpalette(bytes(value for grey in range(256) for value in [grey] * 3))
    image.save(path, tiffinfo={0x0112: 6})
    decoder = Decoder((31, 20), len(mode) if mode.startswith("RGB") else 1)
    expected = np.atleast_3d(np.rot90(pixels, -1)).transpose(2, 0, 1)
    opened = Image.open(path)
    for found in (decoder.open(path), decoder.converted(opened)):
        np.testing.assert_array_equal(decoder.pixels(found), expected)
    assert opened.filename == str(path)


def test_unreadable_exif_data_leaves_an_image_as_it_is(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, data in (("short", exif.tobytes()[:15]), ("garbage", b"Exif\0\0garbage")):
        Image.fromarray(PIXELS).save(tmp_path / f"{name}.jpg", exif=data)
        assert decoded(tmp_path / f"{name}.jpg", resize="squash").shape == (3, 20, 20)


def test_a_photograph_is_turned_although_pillow_cannot_write_its_exif_data(tmp_path):
    """The version of its GPS data is text; the standard wants four bytes, as some phones do not."""
    orientation, place = struct.pack(">HHIHH", 0x112, 3, 1, 6, 0), struct.pack(">HHII", 0x8825, 4, 1, 38)
    gps = struct.pack(">HHHI4sI", 1, 0, 2, 4, b"2.2\0", 0)
    exif = b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 2) + orientation + place + struct.pack(">I", 0) + gps
    Image.new("RGB", (24, 16)).save(tmp_path / "phone.jpg", exif=exif)
    assert Decoder(8, 3).open(tmp_path / "phone.jpg").size == (16, 24)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".pgm"])
def test_of_16_bits_the_upper_byte_is_kept(tmp_path, suffix):
    grey = PIXELS[:, :20, 0]
    path = tmp_path / f"deep{suffix}"
    Image.fromarray(grey.astype(np.uint16) * 256 + 77).save(path)
    np.testing.assert_array_equal(decoded(path), np.stack([grey] * 3))


@pytest.mark.parametrize("suffix", [".png", ".tif", ".pgm"])
def test_levels_of_16_bits_become_black_and_white(tmp_path, suffix):
    path = tmp_path / f"deep{suffix}"
    values = np.array([[0, 99, 100, 105, 106], [850, 1594, 1595, 1600, 65535]], np.uint16)
    Image.fromarray(values).save(path)
    found = decoded(path, (2, 5), 1, levels=(100, 1600))[0]
    assert found.tolist() == [[0, 0, 0, 0, 1], [127, 254, 254, 255, 255]]
    Image.fromarray(values.astype(np.uint8)).save(path)
    np.testing.assert_array_equal(decoded(path, (2, 5), 1, levels=(100, 1600))[0], values.astype(np.uint8))


def test_levels_of_16_bit_colours_are_refused(tmp_path):
    path = tmp_path / "colours.png"
    path.write_bytes(colours_of_16_bits())
    assert decoded(path, (1, 4)).tolist() == [[[6] * 4]] * 3
    assert sixteen_bit_values(path) == (1536, 1536, True)
    with pytest.raises(DataError, match=r"colours are of 16 bits, of which Pillow reads 8; data\.levels is for grey"):
        decoded(path, levels=(100, 1600))


@pytest.mark.parametrize(("kind", "name"), [(np.float32, "floats"), (np.int32, "integers")])
def test_32_bit_pixels_are_refused(tmp_path, kind, name):
    path = tmp_path / "deep.tif"
    Image.fromarray(PIXELS[..., 0].astype(kind)).save(path)
    with pytest.raises(DataError, match=rf"deep\.tif cannot be .*: its pixels are 32-bit {name}, of no known range"):
        decoded(path)


@pytest.mark.parametrize("suffix", [".gif", ".tif", ".webp"])
def test_further_pages_are_noticed(tmp_path, suffix):
    page, path = Image.fromarray(PIXELS), tmp_path / f"stack{suffix}"
    page.save(path)
    assert not has_pages(path)
    page.save(path, save_all=True, append_images=[Image.fromarray(255 - PIXELS)])
    assert has_pages(path)
    path.write_bytes(b"")
    assert not has_pages(path)
    page.save(tmp_path / "page.png")
    assert not has_pages(tmp_path / "page.png")


def write_tiff(path, pixels, *, photometric=1, kind=1):
    """Write a TIFF as Pillow does not; ``kind`` is 1 for unsigned, 2 for signed integers, 3 for floats.

    Of five bands, the fourth is transparency.
    """
    (height, width), channels, bits = pixels.shape[:2], pixels[0, 0].size, 8 * pixels.itemsize
    extra = {338: 2} if channels == 5 else {}
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 273: 134 + 12 * len(extra), 277: channels}
    tags |= {278: height, 279: pixels.nbytes, **extra, 339: kind}
    second = {2: {258: bits, 339: kind}, 5: {338: 0}}.get(channels, {})  # two values of 2 bytes take the place of one
    entries = b"".join(
        struct.pack("<HHIHH", tag, 3, 1 + (tag in second), value, second.get(tag, 0)) for tag, value in tags.items()
    )
    path.write_bytes(b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4) + pixels.tobytes())


def test_16_bit_tiffs_whose_zero_is_white_are_read_as_they_are(tmp_path):
    """Runs were trained on them so; Pillow inverts those of 8 bits."""
    grey = PIXELS[:, :20, 0]
    for pixels, expected in ((grey, 255 - grey), (grey.astype(np.uint16) * 256, grey)):
        write_tiff(tmp_path / "grey.tif", pixels, photometric=0)
        np.testing.assert_array_equal(decoded(tmp_path / "grey.tif"), np.stack([expected] * 3))


@pytest.mark.parametrize(
    ("pixels", "kind", "problem"),
    [
        (PIXELS[..., 0].astype(np.int16), 2, "its pixels are signed 16-bit integers; store unsigned ones"),
        (PIXELS[..., :2].astype(np.uint16), 1, "; of TIFFs, Pillow reads those with 1, 3 or 4 channels, the fourth tr"),
        (PIXELS[..., 0].astype(np.float16), 3, "; of TIFFs, Pillow reads those with"),
    ],
)
def test_scientific_tiffs_that_cannot_be_read_are_named_with_the_reason(tmp_path, pixels, kind, problem):
    write_tiff(tmp_path / "ct.tif", pixels, kind=kind)
    with pytest.raises(DataError, match=f"ct.tif cannot be decoded as an image: .*{problem}"):
        decoded(tmp_path / "ct.tif")


def test_a_fourth_band_that_is_not_transparency_is_refused_where_it_would_be_left_out(tmp_path):
    bands, path = np.random.default_rng(0).integers(0, 256, (20, 20, 4), np.uint8), tmp_path / "infrared.tif"
    Image.frombytes("RGBX", (20, 20), bands.tobytes()).save(path)
    np.testing.assert_array_equal(decoded(path), bands[..., :3].transpose(2, 0, 1))
    problem = "infrared.tif cannot be .* of its 4 bands, Pillow reads 3: a fourth one must be marked as transparency$"
    with pytest.raises(DataError, match=problem):
        decoded(path, channels=4)
    Image.fromarray(bands).save(path)
    np.testing.assert_array_equal(decoded(path, channels=4), bands.transpose(2, 0, 1))
    write_tiff(path, np.dstack([bands, bands[..., 0]]), photometric=2)
    np.testing.assert_array_equal(decoded(path, channels=4), bands.transpose(2, 0, 1))


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK"])
def test_other_modes_are_converted_as_by_torchvisions_loader(tmp_path, mode):
    path = tmp_path / ("picture.jpg" if mode == "CMYK" else "picture.png")
    Image.fromarray(PIXELS[:, :20]).convert(mode).save(path)
    with path.open("rb") as file:
        expected = np.asarray(Image.open(file).convert("RGB"))  # torchvision's pil_loader
    np.testing.assert_array_equal(decoded(path), expected.transpose(2, 0, 1))


def test_transparency_is_a_fourth_channel_where_the_model_has_one(tmp_path):
    rgba = np.dstack([PIXELS[:, :20], PIXELS[:, :20, 0]])
    Image.fromarray(rgba).save(tmp_path / "clear.png")
    np.testing.assert_array_equal(decoded(tmp_path / "clear.png", channels=4), rgba.transpose(2, 0, 1))


@pytest.mark.parametrize("shape", [(20, 31), (31, 20), (5, 40), (24, 24), (12, 12)])
@pytest.mark.parametrize(
    ("resize", "crop_mode", "crop_pct"),
    [("crop", "center", 1.0), ("crop", "center", 0.9), ("pad", "border", 1.0), ("squash", "squash", 1.0)],
)
def test_images_become_square_as_in_timm(tmp_path, shape, resize, crop_mode, crop_pct):
    data = pytest.importorskip("timm.data")
    path = tmp_path / "picture.png"
    Image.fromarray(np.resize(PIXELS, (*shape, 3))).save(path)
    mean = (0.2, 0.4, 0.61)
    transform = data.create_transform(
        (3, 24, 24), interpolation="bicubic", crop_pct=crop_pct, crop_mode=crop_mode, mean=mean, std=(1, 1, 1)
    )
    theirs = transform(Image.open(path)) + torch.tensor(mean).view(3, 1, 1)
    ours = Decoder.with_mean(24, 3, resize, mean, crop_pct=crop_pct).read([path])[0]
    np.testing.assert_allclose(ours, theirs.numpy() * 255, atol=1e-3)


def test_padding_of_one_colour_is_for_all_channels(tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "wide.png")
    padded = Decoder.with_mean(31, 3, "pad", [0.5]).read([tmp_path / "wide.png"])[0]
    assert (padded[:, :5] == 128).all()
    assert (padded[:, 25:] == 128).all()
    np.testing.assert_array_equal(padded[:, 5:25], PIXELS.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("resize", "wide", "high"), [("crop", (24, 15), (16, 10)), ("pad", (12, 8), (8, 5)), ("squash", (24, 8), (8, 10))]
)
def test_the_size_need_not_be_square(tmp_path, resize, wide, high):
    """To 8 x 24 and 10 x 8 pixels: ``wide`` and ``high`` are the sizes that Pillow is asked for, width first."""
    path = tmp_path / "picture.png"
    Image.fromarray(PIXELS).save(path)  # 20 x 31
    for size, scaled in (((8, 24), wide), ((10, 8), high)):
        ours = decoded(path, size, resize=resize, fill=(7,)).transpose(1, 2, 0)
        pillow = np.asarray(Image.open(path).resize(scaled, Image.Resampling.BICUBIC))
        expected = np.full((*size, 3), 7, dtype=np.uint8)
        (top, left), (above, before) = (
            tuple(max(0, (one - other) // 2) for one, other in zip(*pair, strict=True))
            for pair in ((size, pillow.shape[:2]), (pillow.shape[:2], size))
        )
        part = pillow[above : above + size[0], before : before + size[1]]
        expected[top : top + part.shape[0], left : left + part.shape[1]] = part
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("shape", [(1, 400), (400, 1), (3, 1001), (2503, 12), (2500, 25)])
@pytest.mark.parametrize("size", [8, (8, 12)])
def test_of_a_very_thin_picture_the_same_centre_is_kept(tmp_path, shape, size, channels):
    path = tmp_path / "thin.png"
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, channels), dtype=np.uint8)
    if channels == 4:
        pixels[..., 3] |= 128  # the colour of what is all but transparent is arbitrary
    Image.fromarray(pixels.squeeze(2) if channels == 1 else pixels).save(path)
    high, wide = (size, size) if isinstance(size, int) else size
    scale = max(high / shape[0], wide / shape[1])
    scaled = max(wide, round(scale * shape[1])), max(high, round(scale * shape[0]))
    whole = np.atleast_3d(Image.open(path).resize(scaled, Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    top, left = (scaled[1] - high) // 2, (scaled[0] - wide) // 2
    expected = whole[:, top : top + high, left : left + wide]
    found = decoded(path, size, channels)
    np.testing.assert_allclose(found.astype(int), expected, atol=2 if channels == 4 else 1)  # alpha multiplies rounding


@pytest.mark.whole
@pytest.mark.parametrize("resize", quick(["crop", "pad", "squash"], ["crop"]))
@pytest.mark.parametrize("thin", [(1, 10_000_000), (10_000_000, 1)])
def test_a_very_thin_picture_is_never_scaled_as_a_whole(tmp_path, thin, resize):
    """To cover 224 x 224 pixels, it would have to be 2.24 billion pixels long."""
    Image.new("L", thin, 200).save(tmp_path / "thin.png")
    found = decoded(tmp_path / "thin.png", 224, 1, resize=resize)
    assert (found.max(), found.shape) == (200, (1, 224, 224))
    assert (found.min() == 200) == (resize != "pad")


def test_a_program_in_postscript_is_not_run_whatever_its_name(tmp_path, monkeypatch):
    """Pillow starts Ghostscript for what looks like PostScript."""
    ghostscript, trace = tmp_path / "gs", tmp_path / "trace"
    ghostscript.write_text(f"#!/bin/sh\ntouch {trace}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\n{} loop\n%%EOF\n"
    (tmp_path / "cat.png").write_bytes(program)
    with pytest.raises(DataError, match=r"cat\.png cannot be decoded as an image"):
        decoded(tmp_path / "cat.png")
    assert not trace.exists()
    with Image.open(io.BytesIO(program)) as opened, pytest.raises(OSError, match=r"."):
        opened.load()
    assert trace.exists(), "without the list of formats it is run"


def test_every_suffix_that_is_looked_for_has_its_format():
    Image.init()
    assert {Image.registered_extensions()[suffix] for suffix in SUFFIXES} == set(FORMATS)


def test_a_pipe_in_the_place_of_an_image_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.png cannot be decoded as an image: it is not a file"):
        decoded(tmp_path / "a.png")


def test_a_path_that_cannot_be_looked_at_is_an_image_that_cannot_be_decoded(tmp_path):
    with pytest.raises(DataError, match=r"x+\.png cannot be decoded as an image: .*File name too long"):
        decoded(tmp_path / f"{'x' * 300}.png")
