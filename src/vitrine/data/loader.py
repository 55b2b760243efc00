"""Which images make each batch, on the device where training happens; a feed gets them there."""

from collections.abc import Callable, Iterator
from contextlib import closing

import torch

from vitrine.data.batch_source import Feed
from vitrine.data.datasets import Batch
from vitrine.data.epoch_plan import plan_epoch
from vitrine.data.transforms.augment import Augmentation
from vitrine.data.transforms.mixup import Mixing


class TrainLoader:
    """Augmented batches in the order of the epoch plan.

    A batch has ``batch_size`` images over all processes; this one's share is the ``rank``-th part of them, cut so that
    images that are mixed stay together. Images that don't fill a last batch wait for another epoch's order. Where to
    start is asked at the beginning of each pass, so a run can go on in the middle of an epoch.

    Args:
        split: images and labels.
        batch_size: images per step, over all processes.
        augmentation: what is done to each of them.
        mixing: what is then made of two neighbours, if anything.
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
        mixing: Mixing | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.split = split
        self.batch_size = min(batch_size, len(split))
        self.augmentation = augmentation
        self.mixing = mixing
        self.seed = seed
        self.position = position
        self.rank = rank
        self.world_size = world_size

    def __len__(self) -> int:
        """Batches in an epoch, the same in every process."""
        return len(self.split) // self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        """Batches from ``position`` to the end of its epoch.

        (B, C, H, W) uint8 images and (B,) int64 labels; where images are mixed, (B, C, H, W) float32 in [0, 255] and
        (B, classes) float32, how much of each class is in them.
        """
        epoch, start = self.position()
        augmentation, mixing = self.augmentation, self.mixing
        sizes = [augmentation.draws, mixing.draws if mixing else 0]
        plan = plan_epoch(len(self.split), sum(sizes), self.seed, epoch)
        first, last = (self._border(rank) for rank in (self.rank, self.rank + 1))
        begins = range(start * self.batch_size, len(self) * self.batch_size, self.batch_size)
        places = [slice(begin + first, begin + last) for begin in begins]
        with closing(self.split.batches([plan.order[place] for place in places])) as batches:
            for place, (images, labels) in zip(places, batches, strict=True):
                numbers, more = plan.draws[place].split(sizes, dim=1)
                images = augmentation(images, numbers)
                yield mixing(images, labels, more) if mixing else (images, labels)

    def _border(self, rank: int) -> int:
        """Where in a batch the share of process ``rank`` begins: at an even place where neighbours are mixed."""
        unit = 2 if self.mixing else 1
        return min(-(-rank * self.batch_size // (self.world_size * unit)) * unit, self.batch_size)


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
