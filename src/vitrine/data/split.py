"""Which training images are held out for validation."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrine.errors import DataError


@dataclass(frozen=True)
class HeldOut:
    """Indices (sorted, int64) of the images that are trained on and of those held out."""

    train: Tensor
    val: Tensor

    @property
    def hash(self) -> str:
        """SHA-256 of the validation indices: equal in two runs if and only if they were chosen on the same images."""
        return hashlib.sha256(self.val.numpy().tobytes()).hexdigest()[:16]


def hold_out(labels: Tensor, fraction: float, seed: int) -> HeldOut:
    """Hold out ``fraction`` of the images, of each class alike, decided by ``seed`` alone.

    Raises:
        DataError: there are too few images for each class to have one on both sides.
    """
    from sklearn.model_selection import train_test_split

    try:
        train, val = train_test_split(
            np.arange(len(labels)), test_size=fraction, stratify=labels.numpy(), random_state=seed
        )
    except ValueError as error:
        few = int(torch.bincount(labels).min())
        problem = (
            f"cannot hold out data.val_fraction={fraction:g} of {len(labels)} images, the rarest class having {few}"
        )
        raise DataError(f"{problem}: {error}") from None
    return HeldOut(torch.from_numpy(np.sort(train)), torch.from_numpy(np.sort(val)))
