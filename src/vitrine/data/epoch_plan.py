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
        order: (N,) int64, a permutation of the images; or as many draws, equally many of each class; or as many copies.
        draws: (N, K) float32 in [0, 1), the random numbers of the image at each position of ``order``.
    """

    order: Tensor
    draws: Tensor


def plan_epoch(
    num_images: int,
    num_draws: int,
    seed: int,
    epoch: int,
    balanced: Tensor | None = None,
    repeats: int = 1,
    batch_size: int = 1,
) -> EpochPlan:
    """Plan an epoch over ``num_images`` images with ``num_draws`` random numbers for each.

    With labels (N,) as ``balanced``, as many of each class; with ``repeats``, so many copies of an image in its batch.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    order = torch.randperm(num_images, generator=generator) if balanced is None else balanced_order(balanced, generator)
    order = repeated(order, repeats, batch_size)
    return EpochPlan(order, torch.rand(num_images, num_draws, generator=generator))


def balanced_order(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Draw as many images as there are, equally many of each class up to one, and of a class each equally often.

    Args:
        labels: (N,) int64.
        generator: decides which.

    Returns:
        Indices (N,) int64.
    """
    counts = labels.bincount()
    members = [own for own in labels.argsort(stable=True).split(counts.tolist()) if len(own)]
    share, rest = divmod(len(labels), len(members))
    larger = set(torch.randperm(len(members), generator=generator)[:rest].tolist())
    drawn = []
    for index, own in enumerate(members):
        count = share + (index in larger)
        passes = [torch.randperm(len(own), generator=generator) for _ in range(-(-count // len(own)))]
        drawn.append(own[torch.cat(passes)[:count]])
    order = torch.cat(drawn)
    return order[torch.randperm(len(order), generator=generator)]


def repeated(order: Tensor, repeats: int, batch_size: int) -> Tensor:
    """Fill each batch with copies of the next images of ``order``: all of them in turn, so that copies are far apart.

    A batch that ``repeats`` does not divide has one copy less of some images.

    Returns:
        Indices (N,) int64, as many as in ``order``.
    """
    images, (batches, rest) = -(-batch_size // repeats), divmod(len(order), batch_size)
    whole = order[: batches * images].view(batches, images).repeat(1, repeats)[:, :batch_size]
    last = order[batches * images :][: -(-rest // repeats)].repeat(repeats)[:rest]
    return torch.cat([whole.flatten(), last])


def to_device_of(values: Tensor, images: Tensor) -> Tensor:
    """Copy ``values`` from the CPU to the device of ``images``; asynchronously, from page-locked memory, on CUDA."""
    return values.pin_memory().to(images.device, non_blocking=True) if images.is_cuda else values.to(images.device)


def derive_seed(*values: int | str) -> int:
    """Hash integers and names into a seed in [0, 2**63); neighbouring inputs give unrelated seeds."""
    digest = hashlib.sha256(",".join(map(str, values)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
