"""Preparation of single pictures exactly as a run's data set prepared its images for validation and test."""

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrine.config.parts import is_dotted
from vitrine.config.schema import LEVELS, OWN_FILES, DataConfig
from vitrine.config.size import Sides, Size, fixed, height_width
from vitrine.data.decode import MODES, Decoder, channels_first
from vitrine.data.image_folder import cifar10_folder, refuse_url
from vitrine.errors import DataError, first_line
from vitrine.text import plural

Picture = str | Path | BinaryIO | Image.Image | np.ndarray | Tensor


def normalised(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Normalise images as a model expects them.

    Args:
        images: (B, C, H, W) or (C, H, W), in [0, 255], uint8 or float.
        mean: of each channel in [0, 1], (1, C, 1, 1) or (C, 1, 1), of the type of the result.
        std: standard deviations, of the same shape.
    """
    return (images.to(mean.dtype) / 255 - mean) / std


def resized(images: Tensor, size: Size | Sides) -> Tensor:
    """Resize images (N, C, H, W) uint8 to a side, or height and width, bilinear with antialiasing."""
    sides = height_width(size)
    if images.shape[2:] == sides:
        return images
    from torchvision.transforms.v2.functional import resize

    chunks = images.split(1024)  # bounds the memory of the temporary float tensors
    return torch.cat([resize(part, list(sides), antialias=True) for part in chunks])


@dataclass(frozen=True)
class Preparation:
    """Prepares a picture as a run's data set prepared its images: ``transform(picture)`` is what the model takes.

    Data sets of image files scale (bicubic) and crop, pad or squash, as ``resize`` says. Data sets of arrays, such as
    MNIST, resize images (bilinear with antialiasing), whatever the ratio of their sides; of a picture with another
    ratio than theirs, the largest central part that has it.

    Files and Pillow images of any mode are converted to the run's channels. Arrays and tensors must have them.

    Attributes:
        size: side of the model's input in pixels, or ``(height, width)``.
        channels: its number of channels.
        from_files: whether the data set was made of image files.
        mean, std: of each channel in [0, 1], or one value for all.
        resize: how image files get this size (:class:`Decoder`).
        ratio: height and width of a data set's arrays, or numbers with their ratio. vitrine's are square; those of your
            own data sets have the ratio of ``size``.
        levels: of 16-bit grey pictures (:class:`Decoder`).
        crop_pct: share of the shorter side of image files that is kept (:class:`Decoder`).
    """

    size: Sides
    channels: int
    from_files: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: str = "crop"
    ratio: tuple[int, int] = (1, 1)
    levels: tuple[int, int] = LEVELS
    crop_pct: float = 1.0

    @classmethod
    def of(cls, config: DataConfig, *, from_files: bool | None = None) -> "Preparation":
        """Return the preparation of a data set.

        Args:
            config: the data set.
            from_files: whether a run's CIFAR-10 was image files, which it may be; ``None`` looks in ``config.root``.
        """
        files = config.name in OWN_FILES  # also if they were packed since
        if config.name == "cifar10":
            files = cifar10_folder(config.root) is not None if from_files is None else from_files
        mean, std = tuple(config.mean), tuple(config.std)
        ratio = config.image_hw if is_dotted(config.name) else (1, 1)
        levels, size = (config.levels[0], config.levels[1]), fixed(config.image_size)
        return cls(size, config.in_channels, files, mean, std, config.resize, ratio, levels, config.crop_pct)

    @property
    def decoder(self) -> Decoder:
        """Decodes image files."""
        return Decoder.with_mean(self.size, self.channels, self.resize, self.mean, self.levels, self.crop_pct)

    def __call__(self, picture: Picture) -> Tensor:
        """Prepare and normalise a picture, as for :meth:`pixels`: (C, H, W) float32."""
        return self.normalised(self.pixels(picture))

    def normalised(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Normalise prepared images, (B, C, H, W) or (C, H, W) uint8, on their device."""
        mean, std = (
            torch.tensor(values, dtype=dtype, device=images.device).reshape(-1, 1, 1)
            for values in (self.mean, self.std)
        )
        return normalised(images, mean, std)

    def pixels(self, picture: Picture) -> Tensor:
        """Prepare a picture without normalising it.

        Args:
            picture: path of an image file, or the open file; Pillow image of any mode; array (H, W) or (H, W, C) uint8
                in [0, 255]; or tensor (C, H, W) uint8 in [0, 255].

        Returns:
            (C, H, W) uint8.

        Raises:
            DataError: the picture cannot be read, or has another type, shape or number of channels.
        """
        decoder = self.decoder
        if isinstance(picture, (str, Path, Image.Image)) or (hasattr(picture, "read") and hasattr(picture, "seek")):
            if self.channels not in MODES:
                raise DataError(f"this model takes {self.channels} channels, which image files lack; give it tensors")
            if isinstance(picture, str):
                refuse_url(picture)
            if isinstance(picture, Image.Image):
                image = self._converted(decoder, picture)
            else:
                image = decoder.open(Path(picture) if isinstance(picture, str) else picture)  # type: ignore[arg-type]
            if self.from_files:
                return torch.from_numpy(decoder.pixels(image))
            return self._resized(torch.from_numpy(channels_first(image)))
        values = self._checked(picture)
        if not self.from_files or self.channels not in MODES:
            return self._resized(values)
        values = values[0] if self.channels == 1 else values.permute(1, 2, 0)
        return torch.from_numpy(decoder.pixels(Image.fromarray(values.numpy())))

    @staticmethod
    def _converted(decoder: Decoder, picture: Image.Image) -> Image.Image:
        if 0 in picture.size:
            raise DataError("the picture cannot be converted: it has no pixels")
        try:
            return decoder.converted(picture)
        except Exception as error:  # Pillow raises many types of exceptions on damaged bytes
            raise DataError(f"the picture cannot be converted: {first_line(error)}") from None

    def _resized(self, image: Tensor) -> Tensor:
        """Crop the largest central part of (C, H, W) with the ratio of the data set's images, and resize it."""
        height, width = image.shape[1:]
        scale = min(height / self.ratio[0], width / self.ratio[1])
        high, wide = (max(1, round(scale * side)) for side in self.ratio)
        top, left = (height - high) // 2, (width - wide) // 2
        return resized(image[None, :, top : top + high, left : left + wide], self.size)[0]

    def _checked(self, picture: object) -> Tensor:
        """Return an array or tensor as (C, H, W) uint8 on the CPU."""
        if isinstance(picture, Tensor):
            kind, layout, batch, image = "tensor", "(C, H, W)", "(B, C, H, W)", picture.cpu()
        elif isinstance(picture, np.ndarray) and picture.dtype == np.uint8:
            kind, layout, batch = "array", "(H, W) or (H, W, C)", "(B, H, W, C)"
            image = torch.from_numpy(np.atleast_3d(picture).copy())
            image = image.permute(2, 0, 1) if image.dim() == 3 else image
        else:
            given = f"an array of {picture.dtype}" if isinstance(picture, np.ndarray) else type(picture).__name__
            raise DataError(f"a picture is a path, a Pillow image, or an array or tensor of uint8, not {given}")
        if image.dtype is not torch.uint8:
            raise DataError(f"a picture is of uint8, from 0 to 255, not {str(image.dtype).removeprefix('torch.')}")
        if image.dim() != 3 or 0 in image.shape:
            raise DataError(f"a picture is {layout} as {kind}, not {tuple(image.shape)}")
        if len(image) != self.channels:
            given = f"the {kind} {tuple(picture.shape)} has {plural(len(image), 'channel')}"
            expected = f"the model's pictures have {self.channels}"
            raise DataError(f"{given}, {expected}; one picture is {layout} as {kind}, a batch {batch}")
        return image.contiguous()
