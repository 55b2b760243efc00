"""Random crops of random size and aspect ratio, scaled to the size of the image (arXiv:1409.4842)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.data.epoch_plan import to_device_of


class RandomResizedCrop:
    """Crop each image at random, and scale the crop to the image's size, as torchvision's ``RandomResizedCrop``.

    Its share of the area is uniform; its aspect ratio, width to height, log-uniform in 3/4 to 4/3. A crop that does not
    fit is drawn again, up to 10 draws; then it is the largest central one of such a ratio. Resampling is bilinear. The
    images have the model's size already, so that a small crop is blurred, where one of the original file would not be.

    Args:
        area: least and greatest share of the area, in (0, 1].
    """

    tries = 10
    num_draws = 2 + 2 * tries
    ratios = (3 / 4, 4 / 3)

    def __init__(self, area: Sequence[float]) -> None:
        self.least, self.most = area

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """(B, C, H, W) uint8 on any device and (B, 22) in [0, 1) on the CPU -> (B, C, H, W) uint8."""
        height, width = images.shape[-2:]
        top, left, box_height, box_width = self.boxes(draws, height, width).unbind(dim=1)
        rows = to_device_of(_sources(top, box_height, height), images)
        columns = to_device_of(_sources(left, box_width, width), images)
        grid = torch.stack([columns[:, None, :].expand(-1, height, -1), rows[:, :, None].expand(-1, -1, width)], dim=-1)
        cropped = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
        return cropped.round_().to(torch.uint8)

    def boxes(self, draws: Tensor, height: int, width: int) -> Tensor:
        """(B, 22) in [0, 1) -> (B, 4) int64: top, left, height and width of each crop in pixels."""
        draws = draws.double()
        area, ratio = draws[:, 2:].view(-1, self.tries, 2).unbind(dim=2)
        area = (self.least + (self.most - self.least) * area) * height * width
        low, high = map(math.log, self.ratios)
        ratio = (low + (high - low) * ratio).exp()
        heights, widths = (area / ratio).sqrt().round().long(), (area * ratio).sqrt().round().long()
        fits = (heights > 0) & (heights <= height) & (widths > 0) & (widths <= width)
        first, found = fits.int().argmax(dim=1, keepdim=True), fits.any(dim=1)
        central_height = min(height, round(width / self.ratios[0]))
        central_width = min(width, round(height * self.ratios[1]))
        box_height = torch.where(found, heights.gather(1, first)[:, 0], central_height)
        box_width = torch.where(found, widths.gather(1, first)[:, 0], central_width)
        room = torch.stack([height - box_height, width - box_width], dim=1)
        corners = torch.where(found[:, None], (draws[:, :2] * (room + 1)).long(), room // 2)
        return torch.cat([corners, box_height[:, None], box_width[:, None]], dim=1)


def _sources(start: Tensor, length: Tensor, count: int) -> Tensor:
    """(B,) starts and lengths in pixels -> (B, count): where pixels come from, in [-1, 1], never outside the crop."""
    pixels = start[:, None] + (torch.arange(count) + 0.5) * length[:, None] / count - 0.5
    inside = pixels.clamp(start[:, None], (start + length - 1)[:, None])
    return ((2 * inside + 1) / count - 1).float()
