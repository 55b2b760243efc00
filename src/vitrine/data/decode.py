"""Image files and the decoder that turns them into uint8 tensors of one size."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile as ImageFileOfPillow
from torch import Tensor
from torch.utils.data import Dataset

from vitrine.config.schema import LEVELS
from vitrine.config.size import Sides, height_width
from vitrine.data.hub_dataset import ArrowImage
from vitrine.errors import DataError, first_line
from vitrine.text import listed
from vitrine.untrusted import refuse_pipe

MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's modes by number of channels
# What is decoded, whatever a file is called: Pillow would hand PostScript to Ghostscript, which runs it as a program.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")

PAGED = ("GIF", "TIFF", "WEBP")  # formats with pages or frames; what JPEG has are previews

SIXTEEN_BITS = ("PPM", "PNG")  # formats whose 16-bit images Pillow may open as 32-bit integers
WIDE = {"I": "integers", "F": "floats"}
BITS, BANDS = 258, 277  # tags of a TIFF
TIFFS = "of TIFFs, Pillow reads those with 1, 3 or 4 channels, the fourth transparency, of 8 or unsigned 16 bits"
MAX_COVERED = 16  # times the pixels that are kept: of thinner pictures, only the part that is kept is scaled
UPRIGHT = {  # what undoes an EXIF orientation; Pillow's exif_transpose also writes the EXIF data anew, which may fail
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

MAX_LISTED = 9  # files that cannot be decoded, after the first

ImageFile = Path | ArrowImage  # an image file, or one inside a larger file


class Undecodable(DataError):
    """Image files are missing, damaged or no images.

    Attributes:
        problems: what is wrong with each, by name; the message has that of the first, and names the others.
    """

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems = dict(problems)
        first, *others = problems
        also = f"; others that cannot be decoded: {listed(others, MAX_LISTED)}" if others else ""
        super().__init__(f"{problems[first]}{also}")

    def __reduce__(self) -> tuple[type["Undecodable"], tuple[dict[str, str]]]:
        """Pickle the problems, of which the message is made."""
        return type(self), (self.problems,)


@dataclass(frozen=True)
class Decoder(Dataset[Tensor | dict[str, str]]):
    """Decode image files to images of one size, upright as their EXIF orientation says; resampling is bicubic.

    Attributes:
        size: side of decoded images in pixels, or ``(height, width)``.
        channels: number of channels, a key of ``MODES``.
        resize: ``crop`` scales an image until it covers ``size`` and crops the centre; ``pad`` scales it until it fits
            into it and pads the rest equally on both sides; ``squash`` scales each side, whatever their ratio.
        fill: what ``pad`` pads with, in [0, 255]: for each channel, or for all.
        crop_pct: ``crop`` covers ``size / crop_pct``, rounded down, and so keeps this share of the shorter side.
        levels: the values of 16-bit grey images that become 0 and 255; what is beyond is clipped.
    """

    size: Sides
    channels: int
    resize: str = "crop"
    fill: tuple[int, ...] = (0,)
    levels: tuple[int, int] = LEVELS
    crop_pct: float = 1.0

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (C, H, W) of decoded images."""
        return (self.channels, *height_width(self.size))

    @classmethod
    def with_mean(
        cls,
        size: Sides,
        channels: int,
        resize: str,
        mean: Sequence[float],
        levels: tuple[int, int] = LEVELS,
        crop_pct: float = 1.0,
    ) -> "Decoder":
        """Return a decoder that pads with the mean colour: of each channel in [0, 1], or one for all."""
        if resize != "pad":  # no other depends on the colour, and so its cache does not
            return cls(size, channels, resize, levels=levels, crop_pct=crop_pct)
        return cls(size, channels, resize, tuple(round(255 * value) for value in mean), levels)

    def read(self, paths: Sequence[ImageFile]) -> np.ndarray:
        """Decode B files into an array (B, C, H, W) uint8.

        Raises:
            Undecodable: files are missing, damaged or no images.
        """
        images = np.empty((len(paths), *self.shape), dtype=np.uint8)
        problems: dict[str, str] = {}
        for index, path in enumerate(paths):
            try:
                images[index] = self.pixels(self.open(path))
            except Undecodable as error:
                problems |= error.problems
        if problems:
            raise Undecodable(problems)
        return images

    def __getitem__(self, paths: Sequence[ImageFile]) -> Tensor | dict[str, str]:
        """Decode a batch in a DataLoader worker: images (B, C, H, W) uint8, or the problems of an ``Undecodable``.

        They are returned, as PyTorch would wrap an exception into the worker's traceback.
        """
        try:
            return torch.from_numpy(self.read(paths))
        except Undecodable as error:
            return error.problems

    def open(self, path: ImageFile | BinaryIO) -> Image.Image:
        """Read an image file of any size, or one that is open, in the mode of :attr:`channels`.

        Raises:
            Undecodable: the file is missing, damaged, not an image of ``FORMATS``, larger than Pillow's limit of 179
                megapixels, or has pixels of 32 bits.
        """
        with _decoded(path) as file:
            return self.converted(file)

    def converted(self, image: Image.Image) -> Image.Image:
        """Orient an image as its EXIF orientation says, and convert it to the mode of :attr:`channels`.

        Of 16-bit values the upper byte is kept, of grey images after :attr:`levels` are spread over 16 bits.
        Transparency is dropped unless there are 4 channels, as torchvision's ``pil_loader`` does.

        Raises:
            ValueError: pixels are signed, or of 32 bits, of no known range; colours are of 16, and levels not all; or
                there are 4 channels, and Pillow leaves the fourth band out.
        """
        wide = image.mode.startswith("I;16") or (image.mode == "I" and image.format in SIXTEEN_BITS)
        if not wide and self.levels != LEVELS and _is_of_16_bits(image):
            raise ValueError("its colours are of 16 bits, of which Pillow reads 8; data.levels is for grey pictures")
        tags = getattr(image, "tag_v2", {})  # of a TIFF
        if self.channels == 4 and min(bands := tags.get(BANDS, 1), 4) > (read := len(image.getbands())):
            raise ValueError(f"of its {bands} bands, Pillow reads {read}: a fourth one must be marked as transparency")
        image = _upright(image)
        if wide:  # Pillow would clip 16-bit values at 255
            low, high = self.levels
            values = (np.asarray(image).astype(np.int32) - low) * 256 // (high - low + 1)
            image = Image.fromarray(values.clip(0, 255).astype(np.uint8))
        elif image.mode == "I" and tags.get(BITS) == (16,):
            raise ValueError("its pixels are signed 16-bit integers; store unsigned ones, or 8 bits")
        elif image.mode in ("I", "F"):
            raise ValueError(f"its pixels are 32-bit {WIDE[image.mode]}, of no known range; store 8 or 16 bits")
        return image.convert(MODES[self.channels])

    def pixels(self, image: Image.Image) -> np.ndarray:
        """Bring an image to :attr:`shape`, uint8, as :attr:`resize` says."""
        height, width = height_width(self.size)
        if image.size == (width, height) and self.crop_pct == 1:
            return channels_first(image)
        if self.resize == "squash":
            return channels_first(image.resize((width, height), Image.Resampling.BICUBIC))
        scales = width / image.width, height / image.height
        if self.resize == "pad":
            wide, high = (max(1, round(side * min(scales))) for side in image.size)
            wide, high = min(width, wide), min(height, high)
            fill = self.fill * (self.channels if len(self.fill) == 1 else 1)
            padded = Image.new(image.mode, (width, height), fill)
            image = image.resize((wide, high), Image.Resampling.BICUBIC)
            padded.paste(image, ((width - wide) // 2, (height - high) // 2))
            return channels_first(padded)
        covered = math.floor(width / self.crop_pct), math.floor(height / self.crop_pct)
        scale = max(covered[0] / image.width, covered[1] / image.height)
        wide, high = (max(least, round(side * scale)) for least, side in zip(covered, image.size, strict=True))
        left, top = (wide - width) // 2, (high - height) // 2
        box = left, top, left + width, top + height
        if wide * high <= MAX_COVERED * width * height:
            return channels_first(image.resize((wide, high), Image.Resampling.BICUBIC).crop(box))
        x, y = image.width / wide, image.height / high
        part = left * x, top * y, (left + width) * x, (top + height) * y
        return channels_first(image.resize((width, height), Image.Resampling.BICUBIC, part))


def size_of(path: ImageFile) -> tuple[int, int]:
    """Return height and width of an image file, as its header has them. Raises Undecodable as :meth:`Decoder.open`."""
    with _decoded(path) as file:
        return file.height, file.width


def has_pages(path: ImageFile) -> bool:
    """Whether an image file has pages or frames after the first, which alone is decoded; false if it is unreadable."""
    try:
        with _opened(path, PAGED) as file:
            return bool(getattr(file, "is_animated", False))
    except Exception:  # Pillow raises many types of exceptions on damaged bytes
        return False


def sixteen_bit_values(path: ImageFile) -> tuple[int, int, bool] | None:
    """Return the smallest and largest value of an image file of 16 bits, and whether it has colours; else ``None``.

    Values are in [0, 65535]. Pillow keeps the upper bytes of colours: theirs are multiples of 256.

    Raises:
        Undecodable: as :meth:`Decoder.open`.
    """
    with _decoded(path) as file:
        if not _is_of_16_bits(file):
            return None
        values = np.asarray(file)
    has_colours = values.dtype == np.uint8
    unit = 256 if has_colours else 1
    return unit * int(values.min()), unit * int(values.max()), has_colours


def _is_of_16_bits(image: Image.Image) -> bool:
    """Whether an image that is not loaded yet comes from a file with 16 bits for each channel."""
    raw_mode = str(getattr(image, "tile", ""))  # among the rest: I;16B
    return image.format in (*SIXTEEN_BITS, "TIFF") and ";16" in raw_mode


@contextmanager
def _decoded(path: ImageFile | BinaryIO) -> Iterator[Image.Image]:
    """Open an image file, and raise Undecodable where it, or what is done with it, fails."""
    try:
        with _opened(path) as file:
            yield file
    except Exception as error:  # Pillow raises many types of exceptions on damaged bytes
        if isinstance(error, FileNotFoundError) and isinstance(path, Path):
            raise Undecodable({str(path): f"there is no file {path}"}) from None
        name = str(path) if isinstance(path, ImageFile) else "the picture"
        is_strange_tiff = isinstance(error, UnidentifiedImageError) and name.lower().endswith((".tif", ".tiff"))
        hint = f"; {TIFFS}" if is_strange_tiff else ""
        problem = first_line(error).removesuffix(f" {path!r}")  # Pillow names an open file by its address
        raise Undecodable({name: f"{name} cannot be decoded as an image: {problem}{hint}"}) from None


def _opened(path: ImageFile | BinaryIO, formats: tuple[str, ...] = FORMATS) -> ImageFileOfPillow:
    if isinstance(path, Path):
        refuse_pipe(path)
    return Image.open(path.open() if isinstance(path, ArrowImage) else path, formats=formats)


def _upright(image: Image.Image) -> Image.Image:
    """Orient an image as its EXIF orientation says; as it is where that is missing or unreadable."""
    if isinstance(image, ImageFileOfPillow):
        name, image.filename = image.filename, ""  # or Pillow would map it: of TIFFs on their side, in rows too long
        image.load()  # which turns a TIFF
        image.filename = name
    try:
        method = UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # Pillow raises many types of exceptions on damaged EXIF data
        return image
    return image if method is None else image.transpose(method)


def channels_first(image: Image.Image) -> np.ndarray:
    """Return the pixels of an image in mode L, RGB or RGBA as (C, H, W) uint8."""
    pixels = np.array(image, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


@dataclass(frozen=True)
class ImageFiles:
    """N image files; indexing decodes some of them, without caching.

    Attributes:
        label: readable name, used in the cache's file names.
        paths: the N files.
        decoder: decodes them.
    """

    label: str
    paths: Sequence[ImageFile]
    decoder: Decoder

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: Tensor) -> Tensor:
        """Decode the files at ``indices`` (B,) int64 into images (B, C, H, W) uint8."""
        return torch.from_numpy(self.decoder.read(self.paths_at(indices)))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape (N, C, H, W) of the decoded images."""
        return (len(self.paths), *self.decoder.shape)

    @property
    def nbytes(self) -> int:
        """Size of the decoded images in bytes."""
        return math.prod(self.shape)

    @property
    def on_disk(self) -> list[Path]:
        """Paths of the files themselves, or of those that hold them, each once."""
        return list(dict.fromkeys(path if isinstance(path, Path) else path.container for path in self.paths))

    @property
    def versions(self) -> dict[str, list[tuple[int, ...]]]:
        """Size and modification time of the files that hold others, when these were listed; empty if there are none."""
        found = dict.fromkeys(path.version[1:] for path in self.paths if not isinstance(path, Path))
        return {"versions": list(found)} if found else {}

    def paths_at(self, indices: Tensor) -> list[ImageFile]:
        """Return the files at ``indices`` (B,) int64."""
        return [self.paths[index] for index in indices.tolist()]

    def subset(self, indices: Tensor) -> "ImageFiles":
        """Return the files at ``indices`` (B,) int64, not decoded."""
        return ImageFiles(self.label, self.paths_at(indices), self.decoder)
