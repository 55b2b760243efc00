"""Image files and the decoder that turns them into uint8 tensors of one size."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from vitrine.errors import DataError, first_line

MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's modes by number of channels


@dataclass(frozen=True)
class Decoder(Dataset[Tensor | str]):
    """Decode image files: scale the shorter side to ``size`` (bicubic), then crop the centre.

    Attributes:
        size: height and width of decoded images, in pixels.
        channels: number of channels, a key of ``MODES``.
    """

    size: int
    channels: int

    def read(self, paths: Sequence[Path]) -> np.ndarray:
        """Decode B files into an array (B, C, H, W) uint8.

        Raises:
            DataError: a file is missing, damaged or not an image.
        """
        images = np.empty((len(paths), self.channels, self.size, self.size), dtype=np.uint8)
        for index, path in enumerate(paths):
            images[index] = self.pixels(self.open(path))
        return images

    def __getitem__(self, paths: Sequence[Path]) -> Tensor | str:
        """Decode a batch in a DataLoader worker: images (B, C, H, W) uint8, or the error message.

        The message is returned, as PyTorch would wrap an exception into the worker's traceback.
        """
        try:
            return torch.from_numpy(self.read(paths))
        except DataError as error:
            return str(error)

    def open(self, path: Path | BinaryIO) -> Image.Image:
        """Read an image file of any size, or one that is open, in the mode of :attr:`channels`.

        Raises:
            DataError: the file is missing, damaged, not an image, or larger than Pillow's limit of 179 megapixels.
        """
        try:
            with Image.open(path) as file:
                return self.converted(file)
        except Exception as error:  # Pillow raises many types of exceptions on damaged bytes
            name = path if isinstance(path, Path) else "the picture"
            raise DataError(f"{name} cannot be decoded as an image: {first_line(error)}") from None

    def converted(self, image: Image.Image) -> Image.Image:
        """Convert an image to the mode of :attr:`channels`."""
        if image.mode.startswith("I;16"):  # Pillow would clip 16-bit values at 255
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return image.convert(MODES[self.channels])

    def pixels(self, image: Image.Image) -> np.ndarray:
        """Scale an image and crop its centre: (C, size, size) uint8."""
        size = self.size
        if image.size != (size, size):
            scale = size / min(image.size)
            width, height = (max(size, round(side * scale)) for side in image.size)
            left, top = (width - size) // 2, (height - size) // 2
            image = image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + size, top + size))
        return channels_first(image)


def channels_first(image: Image.Image) -> np.ndarray:
    """Return the pixels of an image in mode L, RGB or RGBA as (C, H, W) uint8."""
    pixels = np.array(image, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


@dataclass(frozen=True)
class ImageFiles:
    """N image files; indexing decodes some of them, without caching.

    Attributes:
        label: readable name, used in the cache's file names.
        paths: paths of the N files.
        decoder: decodes them.
    """

    label: str
    paths: Sequence[Path]
    decoder: Decoder

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: Tensor) -> Tensor:
        """Decode the files at ``indices`` (B,) int64 into images (B, C, H, W) uint8."""
        return torch.from_numpy(self.decoder.read(self.paths_at(indices)))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape (N, C, H, W) of the decoded images."""
        return len(self.paths), self.decoder.channels, self.decoder.size, self.decoder.size

    @property
    def nbytes(self) -> int:
        """Size of the decoded images in bytes."""
        return len(self.paths) * self.decoder.channels * self.decoder.size**2

    def paths_at(self, indices: Tensor) -> list[Path]:
        """Return the paths at ``indices`` (B,) int64."""
        return [self.paths[index] for index in indices.tolist()]

    def subset(self, indices: Tensor) -> "ImageFiles":
        """Return the files at ``indices`` (B,) int64, not decoded."""
        return ImageFiles(self.label, self.paths_at(indices), self.decoder)
