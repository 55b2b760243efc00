"""Random validation split of the training images, stratified by class, and its hash."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrine.errors import DataError


@dataclass(frozen=True)
class TrainValSplit:
    """Sorted indices of the training and validation images, int64."""

    train: Tensor
    val: Tensor

    @property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the validation indices."""
        return hashlib.sha256(self.val.numpy().tobytes()).hexdigest()[:16]


def split_train_val(labels: Tensor, fraction: float, seed: int) -> TrainValSplit:
    """Split off ``fraction`` of the images for validation, stratified by class; ``seed`` alone decides which.

    Raises:
        DataError: there are too few images for every class to be in both parts.
    """
    from sklearn.model_selection import train_test_split

    try:
        train, val = train_test_split(
            np.arange(len(labels)), test_size=fraction, stratify=labels.numpy(), random_state=seed
        )
    except ValueError as error:
        rarest = int(torch.bincount(labels).min())
        raise DataError(
            f"cannot split data.val_fraction={fraction:g} of {len(labels)} images off for validation; "
            f"the rarest class has {rarest}: {error}"
        ) from None
    return TrainValSplit(torch.from_numpy(np.sort(train)), torch.from_numpy(np.sort(val)))
