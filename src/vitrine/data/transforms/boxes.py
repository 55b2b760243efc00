"""Rectangles in a batch of images, one for each image."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrine.data.epoch_plan import send


def inside(boxes: Tensor, images: Tensor) -> Tensor:
    """Which pixels lie in each image's box.

    Args:
        boxes: (B, 4) int64 on the CPU: top, bottom, left, right; parts outside of the image count for nothing.
        images: (B, C, H, W).

    Returns:
        (B, 1, H, W) uint8 on the device of ``images``, 1 inside and 0 outside.
    """
    top, bottom, left, right = boxes[:, :, None].unbind(dim=1)
    height, width = images.shape[-2:]
    rows, columns = torch.arange(height), torch.arange(width)
    within_rows = ((rows >= top) & (rows < bottom)).to(torch.uint8)
    within_columns = ((columns >= left) & (columns < right)).to(torch.uint8)
    return send(within_rows, images)[:, None, :, None] * send(within_columns, images)[:, None, None, :]


def fill(images: Tensor, boxes: Tensor, colour: Sequence[int]) -> Tensor:
    """(B, C, H, W) uint8 with each image's box (B, 4) in ``colour``, one uint8 per channel."""
    hole = inside(boxes, images)
    paint = send(torch.tensor(colour, dtype=torch.uint8), images)[:, None, None]
    return images * (1 - hole) + paint * hole
