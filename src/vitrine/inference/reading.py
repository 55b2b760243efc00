"""Pictures in batches, decoded by worker processes a few batches ahead of the model."""

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset

from vitrine.data.batch_source import StreamingSource
from vitrine.data.decode import ImageFiles, has_pages
from vitrine.data.image_dataset import Batch, Split
from vitrine.data.pixel_store import decoding_shown
from vitrine.data.preparation import Preparation
from vitrine.data.workers import WorkerContext, end_orphan, next_batch, start, without_workers_key
from vitrine.errors import DataError
from vitrine.inference.inputs import Listed

BATCH = 256  # images that are computed together
FEW = 2  # batches that this process decodes itself
PART = 16  # images of a split that a worker passes on at once: a container has 64 MB of shared memory

Decoded = tuple[list[Tensor], dict[int, str], set[int]]
DecodedBatch = tuple[list[Listed], Decoded]


@dataclass(frozen=True)
class Reader(Dataset[DecodedBatch]):
    """Decodes batches of picture files in a DataLoader's workers.

    Attributes:
        preparations: each picture is prepared by each of them.
    """

    preparations: tuple[Preparation, ...]

    def __getitem__(self, batch: list[Listed]) -> DecodedBatch:
        """Decode the files of a batch.

        Returns:
            The batch; for each preparation the readable pictures, (B, C, H, W) uint8; by its index in the batch why
            each of the others cannot be read; and the indices of those with further pages, which are not read.
        """
        prepared: list[list[Tensor]] = []
        errors: dict[int, str] = {}
        paged: set[int] = set()
        for index, picture in enumerate(batch):
            try:
                prepared.append([preparation.pixels(picture.path) for preparation in self.preparations])
                if has_pages(Path(picture.path)):
                    paged.add(index)
            except DataError as error:
                errors[index] = str(error)
        images = [torch.stack(each) for each in zip(*prepared, strict=True)]
        return batch, (images, errors, paged)


def read_batches(
    listed: Iterable[Listed], preparations: Iterable[Preparation], batch_size: int, workers: int, *, pin: bool
) -> Generator[DecodedBatch, None, None]:
    """Yield what :meth:`Reader.__getitem__` returns for each batch, in order.

    Args:
        listed: pictures; read a few batches ahead.
        preparations: of the models.
        batch_size: pictures in a batch.
        workers: decoding processes; 0 decodes in this one.
        pin: whether to copy images to page-locked memory, for a GPU.

    Raises:
        DataError: a worker was killed, or shared memory is full.
        DiskFull: as in ``start``.
    """
    loader = DataLoader(
        Reader(tuple(preparations)),
        batch_size=None,
        sampler=BatchSampler(listed, batch_size, drop_last=False),  # type: ignore[arg-type]  # of pictures, not indices
        num_workers=workers,
        pin_memory=pin,
        multiprocessing_context=WorkerContext() if workers else None,
        worker_init_fn=partial(end_orphan, os.getpid()) if workers else None,
        generator=torch.Generator(),
    )
    iterator = start(loader)
    try:
        while True:
            try:
                batch = next_batch(iterator, "workers=0")
            except StopIteration:
                return
            yield batch
    finally:
        if workers:
            iterator._shutdown_workers()


def read_split(split: Split, workers: int) -> Generator[Batch, None, None]:
    """Yield all images of a split in order, on the CPU, ``BATCH`` at a time; more than ``FEW`` of files with a bar.

    Args:
        split: images on the CPU, or files.
        workers: processes that decode these; 0 decodes in this one.

    Raises:
        DataError: a file is damaged or missing, or a worker was killed.
    """
    rows = torch.arange(len(split))
    if not isinstance(split.stored, ImageFiles) or len(rows) <= FEW * BATCH:
        yield from split.batches(rows.split(BATCH))
        return
    source = StreamingSource(split, split.device, workers) if workers else split
    with (
        without_workers_key(),
        decoding_shown(len(split), sys.stderr) as advance,
        closing(source.batches(rows.split(PART))) as parts,
    ):
        # Copies, as shared memory has no room for a whole batch.
        while several := [(images.clone(), labels) for images, labels in islice(parts, BATCH // PART)]:
            images, labels = (torch.cat(each) for each in zip(*several, strict=True))
            yield images, labels
            advance(len(labels))
