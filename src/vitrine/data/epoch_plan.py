"""The plan of an epoch: which image comes when, and how it is changed.

All randomness of the data is decided here, from two integers and at once. So an epoch is the same on a CPU, on one GPU
or on eight, and a run that goes on after an interruption needs no random state to see what it would have seen.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class EpochPlan:
    """One pass over N images.

    Attributes:
        order: (N,) int64, a permutation of the images.
        draws: (N, K) float32 in [0, 1): what decides the augmentation of the image at each place of ``order``.
    """

    order: Tensor
    draws: Tensor


def plan_epoch(count: int, draws: int, seed: int, epoch: int) -> EpochPlan:
    """The plan for ``count`` images with ``draws`` random numbers each; a function of its arguments alone."""
    generator = torch.Generator().manual_seed(mix(seed, epoch))
    order = torch.randperm(count, generator=generator)
    return EpochPlan(order, torch.rand(count, draws, generator=generator))


def send(decided: Tensor, images: Tensor) -> Tensor:
    """What was decided on the CPU, where ``images`` are. CUDA takes it from page-locked memory without waiting."""
    return decided.pin_memory().to(images.device, non_blocking=True) if images.is_cuda else decided.to(images.device)


def mix(*numbers: int) -> int:
    """One seed from several integers; neighbours give unrelated seeds."""
    digest = hashlib.sha256(",".join(map(str, numbers)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
