"""Loaders: which images make up each batch of a rank, and their augmentation."""

from collections.abc import Callable, Iterator
from contextlib import closing

import torch
from torch import Tensor

from vitrine.data.batch_source import BatchSource
from vitrine.data.epoch_plan import plan_epoch
from vitrine.data.image_dataset import Batch
from vitrine.data.transforms.augment import Augmentation
from vitrine.data.transforms.mixup import MixUpCutMix

# On a GPU, augmentation takes the time of its launches, some 120 whatever the number of images: half of a small model's
# step on an H200. So it takes several batches at once, of at most as many values together.
MAX_BATCHES, MAX_VALUES = 8, 2**24


def batches_at_once(device: str, values: int) -> int:
    """Return how many batches are augmented together.

    Args:
        device: type of the device that the images are on.
        values: values of a batch of images, B * C * H * W.
    """
    return max(1, min(MAX_BATCHES, MAX_VALUES // values)) if device == "cuda" else 1


class TrainLoader:
    """Augmented training batches in the order of the epoch plan.

    A global batch is divided among the ranks, without separating images that are mixed.

    Args:
        source: images and labels.
        batch_size: global batch size, over all ranks.
        augmentation: applied to every image.
        mixing: MixUp and CutMix, applied after the augmentation; ``None`` for neither.
        seed: seed of the epoch plan.
        position: returns (epoch, batches already trained on in it); called at the start of each pass, so that a resumed
            run can start in the middle of an epoch.
        drop_last: leave out images that do not fill a last batch; otherwise it is smaller, and there is one rank.
        balanced: labels of the images, (N,) on the CPU, to draw equally many of each class; ``None`` takes every image
            once.
        repeats: copies of each image in its batch.
        at_once: batches that are augmented together, with equal results; see :func:`batches_at_once`.
        before_last: called before the last batch of an epoch.
        rank: rank of this process.
        world_size: number of ranks.
    """

    def __init__(
        self,
        source: BatchSource,
        *,
        batch_size: int,
        augmentation: Augmentation,
        seed: int,
        position: Callable[[], tuple[int, int]],
        mixing: MixUpCutMix | None = None,
        drop_last: bool = True,
        balanced: Tensor | None = None,
        repeats: int = 1,
        at_once: int = 1,
        before_last: Callable[[], None] = lambda: None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        assert drop_last or world_size == 1
        self.source = source
        self.batch_size = min(batch_size, len(source))
        self.drop_last = drop_last
        self.balanced = balanced
        self.repeats = repeats
        self.augmentation = augmentation
        self.mixing = mixing
        self.seed = seed
        self.position = position
        self.before_last = before_last
        self.rank = rank
        self.world_size = world_size
        share = self._share_start(rank + 1) - self._share_start(rank)
        self.at_once = 1 if mixing and share % 2 else at_once  # mixed images stay in their batch

    def __len__(self) -> int:
        """Batches per epoch, equal on all ranks."""
        return batches_per_epoch(len(self.source), self.batch_size, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[Batch]:
        """Yield this rank's share of each batch, from ``position`` to the end of the epoch.

        Yields:
            Batches like those of the source. With MixUp or CutMix: images (B, C, H, W) float32 in [0, 255], and targets
            (B, classes) float32, which sum to 1 where each image has one label.
        """
        epoch, start = self.position()
        augmentation, mixing = self.augmentation, self.mixing
        sizes = [augmentation.num_draws, mixing.num_draws if mixing else 0]
        plan = plan_epoch(len(self.source), sum(sizes), self.seed, epoch, self.balanced, self.repeats, self.batch_size)
        first, last = self._share_start(self.rank), self._share_start(self.rank + 1)
        begins = range(start * self.batch_size, len(self) * self.batch_size, self.batch_size)
        shares = [slice(begin + first, begin + last) for begin in begins]
        groups = [shares[index : index + self.at_once] for index in range(0, len(shares), self.at_once)]
        orders = [[plan.order[share] for share in group] for group in groups]
        with closing(self.source.batches([torch.cat(order) for order in orders])) as batches:
            for group, order, (images, labels) in zip(groups, orders, batches, strict=True):
                if group is groups[-1]:
                    self.before_last()
                draws, mixing_draws = torch.cat([plan.draws[share] for share in group]).split(sizes, dim=1)
                images = augmentation(images, draws)
                if mixing:
                    images, labels = mixing(images, labels, mixing_draws)
                lengths = [len(own) for own in order]
                yield from zip(images.split(lengths), labels.split(lengths), strict=True)

    def _share_start(self, rank: int) -> int:
        """Index in a global batch at which the share of ``rank`` starts; even if neighbours are mixed."""
        unit = 2 if self.mixing else 1
        return min(-(-rank * self.batch_size // (self.world_size * unit)) * unit, self.batch_size)


def batches_per_epoch(images: int, batch_size: int, *, drop_last: bool) -> int:
    """Return the number of training batches in an epoch; a batch larger than the epoch is cut to it."""
    batch_size = min(batch_size, images)
    return images // batch_size if drop_last else -(-images // batch_size)


class EvalLoader:
    """Every image once, unchanged and in order, distributed over the ranks.

    Where the images do not divide evenly, some ranks' last batches are smaller or empty: no image counts twice.

    Args:
        source: images and labels.
        batch_size: batch size of each rank.
        rank: rank of this process.
        world_size: number of ranks.
    """

    def __init__(self, source: BatchSource, *, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        self.source = source
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size

    def __len__(self) -> int:
        """Number of batches, equal on all ranks."""
        return -(-len(self.source) // (self.batch_size * self.world_size))

    def __iter__(self) -> Iterator[Batch]:
        """Yield this rank's batches, as the source gives them."""
        own = torch.arange(len(self.source))[self.rank :: self.world_size]
        slices = [slice(batch * self.batch_size, (batch + 1) * self.batch_size) for batch in range(len(self))]
        with closing(self.source.batches([own[part] for part in slices])) as batches:
            yield from batches
