"""Placement of a run's images: on the training device, in host memory, or streamed from disk."""

import math
from dataclasses import dataclass

from vitrine.config.schema import DataConfig
from vitrine.data import memory
from vitrine.data.decode import ImageFiles
from vitrine.data.image_dataset import ImageDataset
from vitrine.data.pixel_store import StoredFiles
from vitrine.runs.provenance import available_cores
from vitrine.text import file_size, plural

SHARE = 0.5  # of the free memory, of the host or of a GPU, that images may take; the model needs the rest

MAX_WORKERS = 8


@dataclass(frozen=True)
class Placement:
    """Where the images lie.

    Attributes:
        place: ``device``, ``memory`` or ``disk``; on a CPU, ``memory`` or ``disk``.
        workers: decoding processes of each rank; 0 unless ``place`` is ``disk``.
        line: the choice and its reason, in one line for people.
        part: whether only the training images that are used are there, as there is no room for all.
    """

    place: str
    workers: int
    line: str
    part: bool = False

    @property
    def facts(self) -> dict[str, str | int]:
        """What run.json has under ``storage``: ``part`` is of use to other ranks alone."""
        return {"place": self.place, "workers": self.workers, "line": self.line}


def memory_budget(storage: str, ranks: int) -> float:
    """Return how many bytes of host memory each process may fill with images before they are streamed.

    Args:
        storage: ``data.storage``, or the place that another process has chosen.
        ranks: number of ranks on this machine. Each of them reads the images, and so does a process that spawns them;
            cached pictures, which they share, are counted like the others.
    """
    if storage == "auto":
        readers = ranks + (ranks > 1)
        return SHARE * memory.available_memory() / readers
    return 0 if storage == "disk" else math.inf


def choose_placement(
    config: DataConfig, dataset: ImageDataset, accelerator: str, ranks: int, budget: float
) -> Placement:
    """Choose the fastest place with room for the images: the device, then host memory, then disk.

    Args:
        config: ``storage`` and ``workers`` are the user's choice.
        dataset: loaded with a limit of ``budget`` bytes: image files that exceed it are not decoded.
        accelerator: ``cpu``, ``cuda`` or ``mps``.
        ranks: number of ranks on this machine.
        budget: from :func:`memory_budget`, in bytes.
    """
    total = dataset.nbytes
    size, requested = file_size(total), f", as data.storage={config.storage} requests"
    each = " in each rank" if ranks > 1 else ""
    later = _decoded_later(dataset)
    if isinstance(dataset.train.stored, ImageFiles) and not isinstance(dataset.train.stored, StoredFiles):
        workers = decoding_workers(config, ranks)
        reason = requested if config.storage == "disk" else f" exceeds the {file_size(budget)} of memory for images"
        return Placement("disk", workers, f"streamed from disk by {plural(workers, 'worker')}{each}: {size}{reason}")
    free = memory.device_memory(accelerator, ranks)
    if free is None:
        return Placement("memory", 0, f"in memory{each}: {size}{later}")
    limit = SHARE * free
    if config.storage == "device" or (config.storage == "auto" and total <= limit):
        return Placement("device", 0, f"in GPU memory: {size}{'' if config.storage == 'auto' else requested}{later}")
    reason = f" exceeds the {file_size(limit)} of GPU memory for images" if config.storage == "auto" else requested
    return Placement("memory", 0, f"in memory{each}, copied to the GPU batch by batch: {size}{reason}{later}")


def decoding_workers(config: DataConfig, ranks: int = 1) -> int:
    """Return the number of decoding processes of each rank."""
    return config.workers or max(1, min(MAX_WORKERS, available_cores() // ranks))


def _decoded_later(dataset: ImageDataset) -> str:
    """How many images are not decoded yet, for people; empty if all are."""
    stores = [split.stored.store for split in dataset.splits if isinstance(split.stored, StoredFiles)]
    left = sum(int((~store.known).sum()) for store in stores)
    return f"; {plural(left, 'image')} still to be decoded, in the first epoch" if left else ""
