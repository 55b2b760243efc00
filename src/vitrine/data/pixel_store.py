"""Pixels of image files, decoded as they are needed and cached when all are: the first epoch need not wait for them.

Decoding 100,000 files takes minutes. Where it would take longer than a few seconds, training begins at once, and they
are decoded in the first epoch, when their batch is due. Batches do not depend on it.
"""

import math
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TextIO

import numpy as np
import torch
from torch import Tensor

from vitrine.data.batch_source import SEARCH, StreamingSource, first_needed, gathered
from vitrine.data.cache import cached, entry_key
from vitrine.data.decode import ImageFiles, Undecodable
from vitrine.data.image_dataset import Batch, Split
from vitrine.errors import VitrineError
from vitrine.text import report

DECODING = 4  # the version of what Decoder makes of a file; entries of others are not in the cache
FIRST = 0.25  # seconds in which this process decodes a few files, to see how long they take
ALONE = 1.0  # seconds that it decodes the others for; where they take longer, workers do it
PART, MAX_FILES = 0.25, 256  # seconds that are decoded for at a time, and the most files


class PixelStore:
    """Decoded pixels of all files of a split as its source provides it, whichever runs and parts of it use them.

    Args:
        files: the files.
        cache_dir: folder of the cache.
        workers: decoding processes.

    Raises:
        DataError: a file has disappeared.

    Attributes:
        pixels: (N, C, H, W) uint8 on the CPU, undefined where nothing is decoded yet.
        known: (N,) bool, whether a file is decoded.
        cached: whether all files are decoded, and cached if the cache could be written.
    """

    def __init__(self, files: ImageFiles, cache_dir: Path, workers: int) -> None:
        self.files = files
        settings = {**asdict(files.decoder), "decoding": DECODING, **files.versions}
        self.key = entry_key(files.on_disk, settings)  # before any is decoded
        self.cache_dir = cache_dir
        self.workers = workers
        self.pixels = torch.empty(0, dtype=torch.uint8)
        self.known = torch.zeros(len(files), dtype=torch.bool)
        self.cached = False

    def complete(self, seconds: float = math.inf, stop: Callable[[], bool] = lambda: False) -> bool:
        """Read the pixels from the cache; or decode what is missing, and write all to the cache in one piece.

        Args:
            seconds: time for decoding, or for waiting until another process has; what is decoded by then is kept. If
                the first few files show that it will not do, the others are left at once.
            stop: asked repeatedly whether to end early.

        Returns:
            Whether all is decoded.

        Raises:
            DataError: a file cannot be decoded, or the folder of the cache cannot be written.
        """
        end = time.monotonic() + seconds
        images = cached(
            self.cache_dir,
            label=self.files.label,
            key=self.key,
            make=lambda: self._decoded(end - time.monotonic(), stop),
            seconds=seconds,
            stop=stop,
        )
        if images is not None:
            self.pixels = torch.from_numpy(images)
            self.known.fill_(True)
            self.cached = True
        return self.cached

    def decode(self, parts: Sequence[Tensor], *, alone: bool = False) -> Generator[None, None, None]:
        """Decode the files at each of ``parts``, (B,) int64, a part for each step of the generator.

        Workers do it unless there is one part only, or this process is to do it ``alone``.

        Raises:
            Undecodable: files cannot be decoded: the first, and others that are found in ``SEARCH`` seconds.
            DataError: a worker was killed.
        """
        if alone or len(parts) == 1:
            for part in parts:
                try:
                    self._keep(part, self.files[part])
                except Undecodable as error:
                    raise Undecodable(error.problems | self._problems()) from None
                yield
            return
        nothing = torch.zeros(len(self.files), dtype=torch.uint8)  # in place of labels
        stream = StreamingSource(Split(self.files, nothing), torch.device("cpu"), self.workers)
        with closing(stream.batches(parts)) as batches:
            for part, (images, _) in zip(parts, batches, strict=True):
                self._keep(part, images)
                yield

    def _problems(self) -> dict[str, str]:
        """Return the problems of files that cannot be decoded and are found in ``SEARCH`` seconds."""
        found: dict[str, str] = {}
        end = time.monotonic() + SEARCH
        for row in (~self.known).nonzero()[:, 0].tolist():
            if time.monotonic() > end:
                break
            try:
                self.files.decoder.read([self.files.paths[row]])
            except Undecodable as error:
                found |= error.problems
        return found

    def _keep(self, rows: Tensor, images: Tensor) -> None:
        if not len(self.pixels):
            self.pixels = torch.empty(self.files.shape, dtype=torch.uint8)
        self.pixels.numpy()[rows.numpy()] = images.numpy()  # by this thread: torch's would wait for busy cores
        self.known.numpy()[rows.numpy()] = True

    def _decoded(self, seconds: float, stop: Callable[[], bool]) -> np.ndarray | None:
        """Decode what is missing; ``None`` if time was up before the end, or is too short for the files."""
        begin, missing, times = time.monotonic(), (~self.known).nonzero()[:, 0], list[float]()

        def is_over() -> bool:
            return (time.monotonic() - begin > seconds or stop()) and not self.known.all()

        while len(times) < len(missing) and (len(times) < 3 or time.monotonic() - begin < FIRST):
            started, row = time.monotonic(), missing[len(times)].view(1)
            list(self.decode([row]))
            times.append(time.monotonic() - started)
            if is_over():
                return None
        if len(rest := missing[len(times) :]):
            each = median(times)
            if each * len(rest) / self.workers > seconds - (time.monotonic() - begin):
                return None
            parts = rest.split(int(min(MAX_FILES, max(1, PART / each))))
            alone = each * len(rest) <= ALONE
            with (
                decoding_shown(0 if alone else len(rest)) as advance,
                closing(self.decode(parts, alone=alone)) as work,
            ):
                for part, _ in zip(parts, work, strict=True):
                    advance(len(part))
                    if is_over():
                        return None
        return self.pixels.numpy()


@dataclass(frozen=True)
class StoredFiles(ImageFiles):
    """Image files whose pixels are kept in a store once they are decoded.

    Attributes:
        store: the pixels.
        rows: (N,) int64, the place of each file in the store.
    """

    store: PixelStore
    rows: Tensor

    def subset(self, indices: Tensor) -> "StoredFiles":
        """Return the files at ``indices`` (B,) int64, with the same store."""
        return StoredFiles(self.label, self.paths_at(indices), self.decoder, self.store, self.rows[indices])


class StoredSource:
    """Source of batches from a store: decodes by worker processes what is missing, a few batches ahead.

    Args:
        split: stored files and their labels.
        device: device of the batches.
        resident: whether to copy the pixels to the device once all are decoded.
    """

    def __init__(self, split: Split, device: torch.device, *, resident: bool) -> None:
        assert isinstance(split.stored, StoredFiles)
        self.store, self.rows = split.stored.store, split.stored.rows
        self.labels = split.labels
        self.device = device
        self.resident = resident
        self._copy: Split | None = None  # on the device
        self._work: Generator[None, None, None] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, indices: Sequence[Tensor]) -> Generator[Batch, None, None]:
        """Yield one batch for each tensor of ``indices``; see :class:`vitrine.data.batch_source.BatchSource`.

        Raises:
            DataError: a file is damaged or missing, or a worker was killed.
        """
        if self.resident and self.store.known.all():
            if self._copy is None:
                pixels = self.store.pixels.index_select(0, self.rows).to(self.device)
                self._copy = Split(pixels, self.labels.to(self.device))
            yield from self._copy.batches(indices)
            return
        wanted = [self.rows[chosen] for chosen in indices]
        missing = first_needed(self.store.known, wanted)
        self._work = self.store.decode([new for new in missing if len(new)])
        with closing(self._work) as work:
            for chosen, rows, new in zip(indices, wanted, missing, strict=True):
                if len(new):
                    next(work)
                yield gathered(self.store.pixels, rows, self.device), gathered(self.labels, chosen, self.device)

    def close(self) -> None:
        """Stop the workers of an unfinished pass."""
        if self._work is not None:
            self._work.close()
            self._work = None


def complete_all(stores: Sequence[PixelStore], stop: Callable[[], bool]) -> None:
    """Decode what the first epoch did not need, and write the cache; a cache that cannot be written is reported.

    Raises:
        DataError: a file cannot be decoded.
    """
    for store in stores:
        if stop():
            return
        try:
            store.complete(stop=stop)
        except VitrineError as error:
            if not store.known.all():
                raise
            store.cached = True
            report(f"warning: {error}; the next run decodes the images again")


@contextmanager
def decoding_shown(count: int, file: TextIO | None = None) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal, elsewhere a line, while workers decode images; yields what advances the bar.

    Args:
        count: number of images; for 0, nothing is shown.
        file: where; standard output if ``None``.
    """
    file = file or sys.stdout
    if not count:
        yield lambda images: None
        return
    if not file.isatty():
        print(f"decoding {count:,} images", file=file, flush=True)
        yield lambda images: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("decoding images", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=file), transient=True) as bar:
        task = bar.add_task("", total=count)
        yield lambda images: bar.advance(task, images)
