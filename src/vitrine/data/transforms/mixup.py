"""MixUp and CutMix: training images mixed with their neighbours, and soft labels."""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from vitrine.config.augment import AugmentConfig
from vitrine.data.epoch_plan import to_device_of
from vitrine.data.transforms.boxes import box_mask


class MixUpCutMix:
    """Mix each image with its neighbour in the batch, with a ratio drawn per image.

    Neighbours are the images at 2k and 2k + 1; the last image of an odd batch is not mixed. The order of images is
    random already, and neighbours are always in the same rank.

    Args:
        mixup: alpha of MixUp (arXiv:1710.09412), whose ratio is Beta(alpha, alpha); 0 for none.
        cutmix: alpha of CutMix (arXiv:1905.04899, section 3.1), whose area is Beta(alpha, alpha); 0 for none. The
            rectangle is centred anywhere and clipped to the image; the label follows the clipped area.
        classes: number of classes. With both, each image takes one of the two with equal probability.
        share: of the images that are mixed, in (0, 1]; the others stay as they are.
    """

    num_draws = 4

    def __init__(self, mixup: float, cutmix: float, classes: int, share: float = 1.0) -> None:
        self.mixup = mixup
        self.cutmix = cutmix
        self.share = share
        self.mixup_share = 0.5 if mixup and cutmix else float(mixup > 0)  # of the images
        self.classes = classes

    def __call__(self, images: Tensor, labels: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Return mixed images and soft labels.

        Args:
            images: (B, C, H, W) uint8, on any device.
            labels: (B,) int64, or (B, classes) uint8 where images have several, on the same device.
            draws: (B, 4) in [0, 1), on the CPU.

        Returns:
            Images (B, C, H, W) float32 in [0, 255], and targets (B, classes) float32, which sum to 1 where each image
            has one label.
        """
        ratios, boxes = self.ratios_and_boxes(draws, *images.shape[-2:])
        height, width = images.shape[-2:]
        top, bottom, left, right = boxes.unbind(dim=1)
        outside = 1 - ((bottom - top) * (right - left)).float() / (height * width)
        neighbour = to_device_of((torch.arange(len(images)) ^ 1).clamp(max=len(images) - 1), images)

        weights = to_device_of(ratios, images)[:, None, None, None] * (1 - box_mask(boxes, images))
        mixed = torch.lerp(images.index_select(0, neighbour).float(), images.float(), weights)
        own = to_device_of(ratios * outside, images)[:, None]
        if labels.dim() == 1:
            labels = labels[:, None] == torch.arange(self.classes, device=labels.device)
        shares = labels.float()
        return mixed, torch.lerp(shares.index_select(0, neighbour), shares, own)

    def ratios_and_boxes(self, draws: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Return what each image keeps of itself: a ratio of every pixel, and every pixel outside of a box.

        Args:
            draws: (B, 4) in [0, 1).
            height: of the images.
            width: of the images.

        Returns:
            Ratios (B,) float32, 1 for images with CutMix; and boxes (B, 4) int64, empty for images with MixUp. Both
            for images that are not mixed.
        """
        mixed, uniform = draws[:, 0] < self.share, (draws[:, 0] / self.share).clamp(max=1.0)  # in [0, 1) if mixed
        uses_mixup = draws[:, 1] < self.mixup_share
        ratios = torch.where(mixed & uses_mixup, beta_quantile(uniform, self.mixup or 1.0), 1.0)
        area = torch.where(mixed & ~uses_mixup, 1 - beta_quantile(uniform, self.cutmix or 1.0), 0.0)
        size = torch.tensor([height, width])
        half = (area.sqrt()[:, None] * size / 2).long()
        centre = (draws[:, 2:] * size).long()
        start, stop = (centre - half).clamp(min=0), torch.minimum(centre + half, size)
        return ratios, torch.stack([start, stop], dim=2).flatten(1)


def beta_quantile(draws: Tensor, alpha: float) -> Tensor:
    """Map uniform draws (B,) in [0, 1) to Beta(alpha, alpha), (B,) float32."""
    from scipy.special import betaincinv  # a tenth of a second, which trainings without mixing do not spend

    values = draws.double().numpy()
    return torch.from_numpy(cast(np.ndarray, betaincinv(alpha, alpha, values))).float()


def build_mixing(augment: AugmentConfig, classes: int) -> MixUpCutMix | None:
    """Build the mixing that ``augment`` describes, for this number of classes; ``None`` if it mixes nothing."""
    return MixUpCutMix(augment.mixup, augment.cutmix, classes, augment.mix_share) if augment.mixes else None
