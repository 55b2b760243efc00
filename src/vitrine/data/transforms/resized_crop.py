"""Random crops of random size and aspect ratio, scaled to the size of the model's images (arXiv:1409.4842)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.data.epoch_plan import to_device_of


class RandomResizedCrop:
    """Crop each image at random, and scale the crop to one size, as torchvision's ``RandomResizedCrop``.

    Its share of the area is uniform; its aspect ratio, width to height, log-uniform in 3/4 to 4/3. A crop that does not
    fit is drawn again, up to 10 draws; then it is the largest central one of such a ratio. Resampling is bilinear with
    antialiasing: values differ by at most 1 from torchvision's of the same crop. Images that have the size already give
    small crops that are blurred; larger ones (``data.train_size``) keep what is in the picture.

    Args:
        area: least and greatest share of the area, in (0, 1].
        size: height and width of the result, at most those of the images.
    """

    tries = 10
    num_draws = 2 + 2 * tries
    ratios = (3 / 4, 4 / 3)

    def __init__(self, area: Sequence[float], size: tuple[int, int]) -> None:
        self.least, self.most = area
        self.size = size

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """(B, C, H, W) uint8 on any device and (B, 22) in [0, 1) on the CPU -> (B, C, *size) uint8."""
        top, left, box_height, box_width = self.boxes(draws, *images.shape[-2:]).unbind(dim=1)
        (batch, channels), (height, width) = images.shape[:2], self.size
        rows = _scaled(images.transpose(1, 2).flatten(2).float(), top, box_height, height)  # (B, height, C * W)
        columns = rows.view(batch, height, channels, -1).transpose(1, 3).flatten(2)  # (B, W, C * height)
        scaled = _scaled(columns, left, box_width, width).round_().to(torch.uint8)
        return scaled.view(batch, width, channels, height).permute(0, 2, 3, 1).contiguous()

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


def _scaled(rows: Tensor, start: Tensor, length: Tensor, count: int) -> Tensor:
    """Scale a part of the rows of each image to ``count`` rows, bilinear with antialiasing.

    A row is a mean of those around its centre. Weights fall linearly to 0 at a distance of one row or, where several
    become one, of so many. Unlike a matrix product, the sum of a few terms does not depend on the rest of the batch.

    Args:
        rows: (B, N, values) float.
        start: (B,) int64, the first row of each part.
        length: (B,) int64, its number of rows.
        count: number of rows to scale it to.

    Returns:
        (B, count, values).
    """
    batch, available, _ = rows.shape
    first, end = start[:, None, None], (start + length)[:, None, None]
    reach = (length / count).clamp(min=1)[:, None, None]
    centres = first + (torch.arange(count)[:, None] + 0.5) * length[:, None, None] / count - 0.5
    most = math.ceil(2 * max(1, available / count))
    near = (centres - reach).floor().long() + torch.arange(1, most + 1)  # (B, count, most)
    weights = (1 - (near - centres).abs() / reach).clamp(min=0) * ((near >= first) & (near < end))
    weights = (weights / weights.sum(dim=2, keepdim=True)).flatten(0, 1).float()
    near = (near.clamp(0, available - 1) + available * torch.arange(batch)[:, None, None]).flatten(0, 1)
    weights, near = to_device_of(weights, rows), to_device_of(near, rows)
    table = rows.flatten(0, 1).contiguous()  # as it is in any batch: others take a kernel that rounds differently
    return F.embedding_bag(near, table, per_sample_weights=weights, mode="sum").view(batch, count, table.shape[1])
