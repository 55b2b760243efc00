"""One rectangle per image of a batch: its mask, and filling it with a colour."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrine.data.epoch_plan import to_device_of


def box_mask(boxes: Tensor, images: Tensor) -> Tensor:
    """Mask of the pixels inside each image's box.

    Args:
        boxes: (B, 4) int64 on the CPU: top, bottom, left, right, clipped to the image.
        images: (B, C, H, W).

    Returns:
        (B, 1, H, W) uint8 on the device of ``images``: 1 inside and 0 outside.
    """
    top, bottom, left, right = boxes[:, :, None].unbind(dim=1)
    height, width = images.shape[-2:]
    rows, columns = torch.arange(height), torch.arange(width)
    within_rows = ((rows >= top) & (rows < bottom)).to(torch.uint8)
    within_columns = ((columns >= left) & (columns < right)).to(torch.uint8)
    return to_device_of(within_rows, images)[:, None, :, None] * to_device_of(within_columns, images)[:, None, None, :]


def fill_boxes(images: Tensor, boxes: Tensor, colour: Sequence[int]) -> Tensor:
    """Fill each image's box with a colour.

    Args:
        images: (B, C, H, W) uint8.
        boxes: (B, 4) int64 on the CPU: top, bottom, left, right.
        colour: one value in [0, 255] per channel.
    """
    mask = box_mask(boxes, images)
    fill = to_device_of(torch.tensor(colour, dtype=torch.uint8), images)[:, None, None]
    return images * (1 - mask) + fill * mask
