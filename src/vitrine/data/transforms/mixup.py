"""MixUp and CutMix: images made of two, with the labels of both."""

from typing import cast

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor

from vitrine.data.epoch_plan import send
from vitrine.data.transforms.boxes import inside


class Mixing:
    """Mix each image with its neighbour in the batch, each by its own share.

    Neighbours are places 2k and 2k + 1; the last of an odd number stays as it is. What lies there is random already,
    and a process that has one of the two has the other.

    Args:
        mixup: alpha of "mixup" (arXiv:1710.09412); 0 is off. The share of an image in its blend is Beta(alpha, alpha).
        cutmix: alpha of "CutMix" (arXiv:1905.04899, section 3.1), the same for the share of its area; 0 is off. The
            rectangle's middle lies anywhere, what is outside of the image is cut off, the label follows what is left.
        classes: of the model.
    """

    draws = 4

    def __init__(self, mixup: float, cutmix: float, classes: int) -> None:
        self.mixup = mixup
        self.cutmix = cutmix
        self.blended = 0.5 if mixup and cutmix else float(mixup > 0)  # share of the images
        self.classes = classes

    def __call__(self, images: Tensor, labels: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Mixed images and how much of each class is in them.

        Args:
            images: (B, C, H, W) uint8, on any device.
            labels: (B,) int64, there too.
            numbers: (B, 4) in [0, 1), on the CPU.

        Returns:
            (B, C, H, W) float32 in [0, 255], and (B, classes) float32 that sum to 1.
        """
        shares, boxes = self.parts(numbers, *images.shape[-2:])
        height, width = images.shape[-2:]
        top, bottom, left, right = boxes.unbind(dim=1)
        outside = 1 - ((bottom - top) * (right - left)).float() / (height * width)
        partner = send((torch.arange(len(images)) ^ 1).clamp(max=len(images) - 1), images)

        weights = send(shares, images)[:, None, None, None] * (1 - inside(boxes, images))
        mixed = torch.lerp(images.index_select(0, partner).float(), images.float(), weights)
        own = send(shares * outside, images)[:, None]
        is_class = labels[:, None] == torch.arange(self.classes, device=labels.device)
        return mixed, torch.lerp(is_class.index_select(0, partner).float(), is_class.float(), own)

    def parts(self, numbers: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        """What each image keeps: a share (B,) float32 of each pixel, and all but a box (B, 4) int64.

        One of the two leaves the image whole: the box is empty for MixUp, the share is 1 for CutMix.
        """
        blends = numbers[:, 1] < self.blended
        shares = torch.where(blends, quantile(numbers[:, 0], self.mixup or 1.0), 1.0)
        area = torch.where(blends, 0.0, 1 - quantile(numbers[:, 0], self.cutmix or 1.0))
        size = torch.tensor([height, width])
        half = (area.sqrt()[:, None] * size / 2).long()
        middle = (numbers[:, 2:] * size).long()
        start, stop = (middle - half).clamp(min=0), torch.minimum(middle + half, size)
        return shares, torch.stack([start, stop], dim=2).flatten(1)


def quantile(numbers: Tensor, alpha: float) -> Tensor:
    """Numbers that are uniform in [0, 1) -> numbers distributed as Beta(alpha, alpha); (B,) float32 both."""
    values = numbers.double().numpy()
    return torch.from_numpy(cast(np.ndarray, betaincinv(alpha, alpha, values))).float()
