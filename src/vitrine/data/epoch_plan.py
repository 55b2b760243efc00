"""Epoch plan: the order of the images and the random numbers of their augmentation.

The plan is a function of (seed, epoch) and decides all randomness of the data. An epoch is therefore the same on a CPU,
on one GPU or on eight, and a resumed run needs no saved random state.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class EpochPlan:
    """One pass over N images, on the CPU.

    Attributes:
        order: (N,) int64, a permutation of the images.
        draws: (N, K) float32 in [0, 1), the random numbers of the image at each position of ``order``.
    """

    order: Tensor
    draws: Tensor


def plan_epoch(num_images: int, num_draws: int, seed: int, epoch: int) -> EpochPlan:
    """Plan an epoch over ``num_images`` images with ``num_draws`` random numbers for each."""
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    order = torch.randperm(num_images, generator=generator)
    return EpochPlan(order, torch.rand(num_images, num_draws, generator=generator))


def to_device_of(values: Tensor, images: Tensor) -> Tensor:
    """Copy ``values`` from the CPU to the device of ``images``; asynchronously, from page-locked memory, on CUDA."""
    return values.pin_memory().to(images.device, non_blocking=True) if images.is_cuda else values.to(images.device)


def derive_seed(*values: int | str) -> int:
    """Hash integers and names into a seed in [0, 2**63); neighbouring inputs give unrelated seeds."""
    digest = hashlib.sha256(",".join(map(str, values)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
