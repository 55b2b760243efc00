"""How batches reach the training device, wherever the images lie. All ways give the same batches.

:class:`Split` itself is the first way: images on the device, or in memory where that is the device.
"""

import os
import sys
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from vitrine.data.datasets import Batch, Split
from vitrine.data.decode import Pictures
from vitrine.errors import DataError, first_line

# How workers begin. A fork is ready at once; processes that were spawned, as those of a training in several processes,
# would spawn theirs too, each of which imports torch for seconds, in every epoch.
START = "fork" if sys.platform == "linux" else None


class Feed(Protocol):
    """Images and labels, to be had in batches."""

    @property
    def device(self) -> torch.device:
        """Where the batches are."""

    def __len__(self) -> int:
        """Images there are."""

    def batches(self, chosen: Sequence[Tensor]) -> Generator[Batch, None, None]:
        """For each of ``chosen``, (B,) int64 indices in memory: (B, C, H, W) uint8 images and (B,) int64 labels."""


class FromMemory:
    """Images in memory, gathered there batch by batch into page-locked memory, from where a GPU copies by itself."""

    def __init__(self, split: Split, device: torch.device) -> None:
        assert isinstance(split.images, Tensor)
        self.images, self.labels = split.images, split.labels
        self.device = device

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, chosen: Sequence[Tensor]) -> Generator[Batch, None, None]:
        """See :class:`Feed`."""
        for indices in chosen:
            yield self._copied(self.images, indices), self._copied(self.labels, indices)

    def _copied(self, values: Tensor, indices: Tensor) -> Tensor:
        some = torch.empty((len(indices), *values.shape[1:]), dtype=values.dtype, pin_memory=self.device.type == "cuda")
        return torch.index_select(values, 0, indices, out=some).to(self.device, non_blocking=True)


class FromDisk:
    """Pictures on disk, decoded by worker processes some batches ahead of training.

    Workers live for one pass: until its last batch has come, the pass is given up, or :meth:`close`.

    Args:
        split: pictures and their labels.
        device: where to bring the batches.
        workers: how many processes decode.
    """

    def __init__(self, split: Split, device: torch.device, workers: int) -> None:
        assert isinstance(split.images, Pictures)
        self.pictures, self.labels = split.images, split.labels
        self.device = device
        self.workers = workers
        self._running: Any = None  # the iterator of a DataLoader

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, chosen: Sequence[Tensor]) -> Generator[Batch, None, None]:
        """See :class:`Feed`.

        Raises:
            DataError: a picture is damaged or missing, or a worker was killed.
        """
        self.close()
        if not chosen:
            return
        loader = DataLoader(
            self.pictures.decoder,
            batch_size=None,
            sampler=[self.pictures.files(indices) for indices in chosen],
            num_workers=min(self.workers, len(chosen)),
            pin_memory=self.device.type == "cuda",
            multiprocessing_context=START,
            worker_init_fn=partial(_begin, os.getpid()),
            generator=torch.Generator(),  # else it would draw from the one that training draws from
        )
        running: Any = iter(loader)
        self._running = running
        try:
            for number, indices in enumerate(chosen, start=1):
                answer = _next(running)
                if number == len(chosen):
                    running._shutdown_workers()
                if isinstance(answer, str):
                    raise DataError(answer)
                labels = self.labels[indices]
                labels = labels.pin_memory() if self.device.type == "cuda" else labels
                yield answer.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
        finally:
            running._shutdown_workers()  # whoever still refers to it, as a traceback does

    def close(self) -> None:
        """Stop the workers of a pass that was left in its middle."""
        if self._running is not None:
            self._running._shutdown_workers()
            self._running = None


def _next(running: Any) -> Tensor | str:
    try:
        return next(running)
    except RuntimeError as error:  # of PyTorch, where a worker is gone
        hint = "out of memory, or of shared memory in a container? data.workers=N takes fewer"
        raise DataError(f"pictures can't be decoded further: {first_line(error)}; {hint}") from None


def _begin(training: int, worker: int) -> None:
    """Make a worker end with the process that trains, and with nothing else.

    Ctrl-C must not reach it: training finishes its step, for which it may need the next batch. And PyTorch's workers
    notice when training is killed, except in the time before they began.
    """
    os.setsid()
    if os.getppid() != training:
        os._exit(1)
