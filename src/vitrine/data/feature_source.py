"""Features of images in place of the images, each computed when it is first needed."""

from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor

from vitrine.data.batch_source import BatchSource, first_needed
from vitrine.data.image_dataset import Batch

Extract = Callable[[Tensor], Tensor]


class FeatureSource:
    """Source of features, on the device of the images. Takes 4 bytes per channel of a feature and image.

    Args:
        images: source of images.
        extract: maps images (B, C, H, W) uint8 to features (B, D), the same each time.
        at_once: images that it is given at a time, at most.
    """

    def __init__(self, images: BatchSource, extract: Extract, at_once: int) -> None:
        self.images = images
        self.extract = extract
        self.at_once = at_once
        self.known = torch.zeros(len(images), dtype=torch.bool)
        self._features: Tensor | None = None
        self._labels: Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Device of the batches."""
        return self.images.device

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, indices: Sequence[Tensor]) -> Generator[Batch, None, None]:
        """Yield features (B, D) and labels for each tensor of ``indices``, (B,) int64 on the CPU."""
        missing = first_needed(self.known, indices)
        found = self.images.batches([new for new in missing if len(new)])
        for chosen, new in zip(indices, missing, strict=True):
            if len(new):
                images, labels = next(found)
                features = torch.cat([self.extract(part) for part in images.split(self.at_once)])
                self._keep(new, features, labels)
            if self._features is None or self._labels is None:  # a rank without images
                yield from self.images.batches([chosen])
                continue
            on_device = chosen.to(self._features.device)
            yield self._features.index_select(0, on_device), self._labels.index_select(0, on_device)
        found.close()

    def _keep(self, indices: Tensor, features: Tensor, labels: Tensor) -> None:
        if self._features is None or self._labels is None:
            self._features = features.new_zeros(len(self), *features.shape[1:])
            self._labels = labels.new_zeros(len(self), *labels.shape[1:])
        on_device = indices.to(features.device)
        self._features[on_device] = features
        self._labels[on_device] = labels
        self.known[indices] = True
