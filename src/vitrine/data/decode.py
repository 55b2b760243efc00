"""Pictures: files that become uint8 tensors of one size, when they are asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from vitrine.errors import DataError, first_line

MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's, by the number of channels


@dataclass(frozen=True)
class Decoder(Dataset[Tensor | str]):
    """Reads pictures, scaled so that the shorter side fits, cropped to the middle.

    Attributes:
        size: height and width of what they become.
        channels: one of ``MODES``.
    """

    size: int
    channels: int

    def read(self, paths: Sequence[Path]) -> np.ndarray:
        """(B, C, H, W) uint8.

        Raises:
            DataError: a file is no picture, damaged or missing.
        """
        images = np.empty((len(paths), self.channels, self.size, self.size), dtype=np.uint8)
        for index, path in enumerate(paths):
            images[index] = self._one(path)
        return images

    def __getitem__(self, paths: Sequence[Path]) -> Tensor | str:
        """What a worker answers: the images, or what is wrong with one of them.

        Not an error, because PyTorch would wrap it into the worker's traceback.
        """
        try:
            return torch.from_numpy(self.read(paths))
        except DataError as error:
            return str(error)

    def _one(self, path: Path) -> np.ndarray:
        """(C, H, W) uint8."""
        size = self.size
        try:
            with Image.open(path) as file:
                image: Image.Image = file
                if file.mode.startswith("I;16"):  # Pillow would cut 16 bits off at 255
                    image = Image.fromarray((np.asarray(file) >> 8).astype(np.uint8))
                image = image.convert(MODES[self.channels])
        except Exception as error:  # Pillow raises whatever the damaged bytes lead to
            raise DataError(f"{path} cannot be read as a picture: {first_line(error)}") from None
        if image.size != (size, size):
            scale = size / min(image.size)
            width, height = (max(size, round(side * scale)) for side in image.size)
            left, top = (width - size) // 2, (height - size) // 2
            image = image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + size, top + size))
        pixels = np.asarray(image, dtype=np.uint8)
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


@dataclass(frozen=True)
class Pictures:
    """N pictures on disk; indexing decodes some of them, and does it anew each time.

    Attributes:
        label: a word for them.
        paths: the files.
        decoder: what makes images of them.
    """

    label: str
    paths: Sequence[Path]
    decoder: Decoder

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: Tensor) -> Tensor:
        """(B,) int64 -> (B, C, H, W) uint8."""
        return torch.from_numpy(self.decoder.read(self.files(indices)))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, C, H, W), as decoded."""
        return len(self.paths), self.decoder.channels, self.decoder.size, self.decoder.size

    @property
    def nbytes(self) -> int:
        """Bytes of all of them, decoded."""
        return len(self.paths) * self.decoder.channels * self.decoder.size**2

    def files(self, indices: Tensor) -> list[Path]:
        """The files of (B,) int64 indices."""
        return [self.paths[index] for index in indices.tolist()]

    def subset(self, indices: Tensor) -> "Pictures":
        """Some of the pictures, still on disk."""
        return Pictures(self.label, self.files(indices), self.decoder)
