"""Which images make each batch, on the device where training happens; a feed gets them there."""

from collections.abc import Callable, Iterator
from contextlib import closing

import torch

from vitrine.data.augment import Augmentation
from vitrine.data.feed import Feed
from vitrine.data.plan import plan_epoch
from vitrine.data.sources import Batch


class TrainLoader:
    """Augmented batches in the order of the epoch plan.

    A batch has ``batch_size`` images over all processes; this one's share are every ``world_size``-th of them. Images
    that don't fill a last batch wait for another epoch's order. Where to start is asked at the beginning of each pass,
    so a run can go on in the middle of an epoch.

    Args:
        split: images and labels.
        batch_size: images per step, over all processes.
        augmentation: what is done to them.
        seed: of the plan.
        position: gives (epoch, batches already done in it).
        rank, world_size: which process this is, of how many.
    """

    def __init__(
        self,
        split: Feed,
        *,
        batch_size: int,
        augmentation: Augmentation,
        seed: int,
        position: Callable[[], tuple[int, int]],
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.split = split
        self.batch_size = min(batch_size, len(split))
        self.augmentation = augmentation
        self.seed = seed
        self.position = position
        self.rank = rank
        self.world_size = world_size

    def __len__(self) -> int:
        """Batches in an epoch, the same in every process."""
        return len(self.split) // self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        """Batches of (B, C, H, W) uint8 images and (B,) int64 labels, from ``position`` to the end of its epoch."""
        epoch, start = self.position()
        plan = plan_epoch(len(self.split), self.augmentation.draws, self.seed, epoch)
        draws = plan.draws.to(self.split.device)
        places = [
            slice(batch * self.batch_size + self.rank, (batch + 1) * self.batch_size, self.world_size)
            for batch in range(start, len(self))
        ]
        with closing(self.split.batches([plan.order[place] for place in places])) as batches:
            for place, (images, labels) in zip(places, batches, strict=True):
                yield self.augmentation(images, draws[place]), labels


class EvalLoader:
    """Every image once, in order, as it is; over the processes together.

    Where the images don't divide evenly, some processes' last batches are smaller, or empty: no image counts twice.
    """

    def __init__(self, split: Feed, *, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        self.split = split
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size

    def __len__(self) -> int:
        """Batches, the same in every process."""
        return -(-len(self.split) // (self.batch_size * self.world_size))

    def __iter__(self) -> Iterator[Batch]:
        """Batches of (B, C, H, W) uint8 images and (B,) int64 labels."""
        own = torch.arange(len(self.split))[self.rank :: self.world_size]
        places = [slice(batch * self.batch_size, (batch + 1) * self.batch_size) for batch in range(len(self))]
        with closing(self.split.batches([own[place] for place in places])) as batches:
            yield from batches
