"""Sources of batches on the training device: images in memory, in page-locked memory, or streamed from disk.

:class:`Split` is the source for images that lie on the device. All sources yield equal batches.
"""

import os
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from vitrine.data.decode import ImageFiles, Undecodable
from vitrine.data.image_dataset import Batch, Split
from vitrine.data.workers import WorkerContext, end_orphan, next_batch, start
from vitrine.errors import DataError

SEARCH = 5.0  # seconds in which other files are looked for that cannot be decoded either


class BatchSource(Protocol):
    """Images and labels, read in batches."""

    @property
    def device(self) -> torch.device:
        """Device of the batches."""

    def __len__(self) -> int:
        """Number of images."""

    def batches(self, indices: Sequence[Tensor]) -> Generator[Batch, None, None]:
        """Yield one ``Batch`` (image_dataset.py), on :attr:`device`, for each tensor of ``indices``.

        Args:
            indices: (B,) int64 tensors on the CPU; B may differ between batches.
        """


class PinnedMemorySource:
    """Images in host memory, gathered into page-locked buffers that a GPU copies asynchronously."""

    def __init__(self, split: Split, device: torch.device) -> None:
        assert isinstance(split.stored, Tensor)
        self.images, self.labels, self.rows = split.stored, split.labels, split.rows
        self.device = device

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, indices: Sequence[Tensor]) -> Generator[Batch, None, None]:
        """Yield one batch for each tensor of ``indices``; see :class:`BatchSource`."""
        for chosen in indices:
            rows = chosen if self.rows is None else self.rows.index_select(0, chosen)
            yield gathered(self.images, rows, self.device), gathered(self.labels, chosen, self.device)


def gathered(values: Tensor, indices: Tensor, device: torch.device) -> Tensor:
    """Return the rows of ``values`` at ``indices`` (B,) int64 on ``device``, by page-locked memory if that is a GPU."""
    buffer = torch.empty((len(indices), *values.shape[1:]), dtype=values.dtype, pin_memory=device.type == "cuda")
    return torch.index_select(values, 0, indices, out=buffer).to(device, non_blocking=True)


def first_needed(known: Tensor, indices: Sequence[Tensor]) -> list[Tensor]:
    """Return what each of ``indices`` is the first to need: neither ``known``, (N,) bool, nor in one before it.

    Returns:
        For each tensor, sorted indices, int64.
    """
    missing, planned = [], known.clone()
    for chosen in indices:
        missing.append(chosen[~planned[chosen]].unique())
        planned[missing[-1]] = True
    return missing


class StreamingSource:
    """Image files on disk, decoded by worker processes a few batches ahead of training.

    Workers live for one pass. They end after its last batch, when the pass is abandoned, or with :meth:`close`.

    Args:
        split: image files and their labels.
        device: device of the batches.
        workers: number of decoding processes, at least 1.
    """

    def __init__(self, split: Split, device: torch.device, workers: int) -> None:
        assert isinstance(split.stored, ImageFiles)
        self.files, self.labels = split.stored, split.labels
        self.device = device
        self.workers = workers
        self._iterator: Any = None  # of the DataLoader

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, indices: Sequence[Tensor]) -> Generator[Batch, None, None]:
        """Yield one batch for each tensor of ``indices``; see :class:`BatchSource`.

        Raises:
            DataError: a file is damaged or missing, a worker was killed, or shared memory is full.
            DiskFull: as in ``start``.
        """
        self.close()
        if not indices:
            return
        loader = DataLoader(
            self.files.decoder,
            batch_size=None,
            sampler=[self.files.paths_at(chosen) for chosen in indices],
            num_workers=min(self.workers, len(indices)),
            pin_memory=self.device.type == "cuda",
            multiprocessing_context=WorkerContext(),
            worker_init_fn=partial(end_orphan, os.getpid()),
            generator=torch.Generator(),  # otherwise the DataLoader would draw from training's global generator
        )
        iterator = start(loader)
        self._iterator = iterator
        try:
            for number, chosen in enumerate(indices, start=1):
                decoded = next_batch(iterator)
                if number == len(indices):
                    iterator._shutdown_workers()
                if isinstance(decoded, dict):
                    raise Undecodable(decoded | _further_problems(iterator, len(indices) - number))
                labels = self.labels[chosen]
                labels = labels.pin_memory() if self.device.type == "cuda" else labels
                yield decoded.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
        finally:
            iterator._shutdown_workers()  # also when a traceback still refers to the iterator

    def close(self) -> None:
        """Stop the workers of an unfinished pass."""
        if self._iterator is not None:
            self._iterator._shutdown_workers()
            self._iterator = None


def _further_problems(iterator: Any, batches: int) -> dict[str, str]:
    """Return the problems of files in the ``batches`` that are left, as far as workers get in ``SEARCH`` seconds."""
    found: dict[str, str] = {}
    end = time.monotonic() + SEARCH
    with suppress(DataError, RuntimeError):  # a worker is killed, which PyTorch may raise anywhere
        while batches and time.monotonic() < end:
            decoded = next_batch(iterator)
            batches -= 1
            if isinstance(decoded, dict):
                found |= decoded
    return found
