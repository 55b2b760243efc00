"""A data set: class names, and the images (in memory or as files) and labels of each split."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitrine.data.decode import ImageFile, ImageFiles
from vitrine.runs.data_changes import Fingerprint

# Images (B, C, H, W) uint8, or features (B, D) of floating point, and labels as those of a Split, on one device.
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Split:
    """Images and labels of a split.

    Attributes:
        stored: (M, C, H, W) uint8, or image files that are decoded when indexed.
        labels: (N,) int64, on the device of ``stored``; on the CPU for image files. Where images have several labels,
            (N, classes) uint8 of 0 and 1. Of several targets, (N, targets) int64.
        rows: (N,) int64, the place of each image in ``stored``, which other splits share; ``None`` if these are all.
    """

    stored: Tensor | ImageFiles
    labels: Tensor
    rows: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Tensor) -> "Split":
        """Return the images at ``indices`` (B,) int64; pixels are not copied, and image files not decoded."""
        labels = self.labels.index_select(0, indices)
        if isinstance(self.stored, Tensor):
            return Split(self.stored, labels, indices if self.rows is None else self.rows.index_select(0, indices))
        return Split(self.stored.subset(indices), labels)

    @property
    def images(self) -> Tensor | ImageFiles:
        """The images of this split alone: (N, C, H, W) uint8, a copy if others share ``stored``; or image files."""
        if self.rows is None or not isinstance(self.stored, Tensor):
            return self.stored
        return self.stored.index_select(0, self.rows)

    @property
    def nbytes(self) -> int:
        """Size of the decoded images in bytes."""
        if self.rows is None or not isinstance(self.stored, Tensor):
            return self.stored.nbytes
        return len(self.rows) * self.stored[:1].nbytes

    @property
    def first_labels(self) -> Tensor:
        """The labels, of several targets those of the first."""
        several_targets = self.labels.dim() == 2 and self.labels.dtype is torch.int64
        return self.labels[:, 0] if several_targets else self.labels

    def per_class(self, classes: int, target: int = 0) -> Tensor:
        """Return the number of images of each class of a target, (classes,) int64."""
        labels = self.labels[:, target] if target else self.first_labels
        return labels.bincount(minlength=classes) if labels.dim() == 1 else labels.sum(dim=0, dtype=torch.int64)

    @property
    def device(self) -> torch.device:
        """Device of the labels, and of the images unless they are files."""
        return self.labels.device

    def batches(self, indices: Sequence[Tensor]) -> Generator[Batch, None, None]:
        """Yield images (B, C, H, W) uint8 and their labels for each tensor of ``indices``.

        Args:
            indices: (B,) int64 tensors on the CPU; B may differ between batches.
        """
        moved = torch.cat([torch.empty(0, dtype=torch.int64), *indices]).to(self.device)  # all in one copy
        for chosen in moved.split([len(batch) for batch in indices]):
            stored, rows = self.stored, chosen if self.rows is None else self.rows.index_select(0, chosen)
            pixels = stored.index_select(0, rows) if isinstance(stored, Tensor) else stored[rows]
            yield pixels, self.labels.index_select(0, chosen)


@dataclass(frozen=True)
class ImageDataset:
    """Class names and splits of a data set.

    Attributes:
        classes: names, indexed by the labels; of several targets, those of the first.
        train: training images, from which validation images are split off where ``val`` is ``None``.
        val: the data set's own validation split, if it has one.
        test: test split, if it has one.
        fingerprint: of the images as they were read (data/fingerprint.py); ``None`` if it was not computed.
        targets: names of the classes of each target of ``data.targets``, in this order.
        files: what the images are decoded from, by split; empty for arrays.
        groups: name of the group of each image, by split; empty without ``data.group``.
    """

    classes: list[str]
    train: Split
    val: Split | None
    test: Split | None
    fingerprint: Fingerprint | None = None
    targets: Mapping[str, list[str]] = field(default_factory=dict)
    files: Mapping[str, Sequence[ImageFile]] = field(default_factory=dict)
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def splits(self) -> list[Split]:
        """The splits that there are."""
        return [split for split in (self.train, self.val, self.test) if split is not None]

    @property
    def nbytes(self) -> int:
        """Size of all decoded images in bytes."""
        return sum(split.nbytes for split in self.splits)
