"""Where a run's images lie while it trains: on its device, in the machine's memory, or on disk, as they fit."""

import math
from dataclasses import dataclass

from vitrine.config.schema import DataConfig
from vitrine.data import memory as room
from vitrine.data.datasets import Images
from vitrine.data.decode import Pictures
from vitrine.runs.provenance import cores
from vitrine.text import file_size, plural

# What of the free memory images may take. Of the machine's, less than half, as holding out validation images copies
# them; of a GPU's, half, as the rest is for the model.
MEMORY_SHARE, DEVICE_SHARE = 0.4, 0.5

MOST_WORKERS = 8


@dataclass(frozen=True)
class Storage:
    """A choice that was made.

    Attributes:
        place: ``device``, ``memory`` or ``disk``; on a CPU, whose memory is the machine's, one of the last two.
        workers: processes that decode pictures, for each process that trains; 0 unless ``place`` is ``disk``.
        line: what was chosen and why, for people.
    """

    place: str
    workers: int
    line: str


def memory_room(asked: str, devices: int) -> float:
    """Bytes that images may take in memory before they are streamed.

    Args:
        asked: ``data.storage``, or the place that was chosen already.
        devices: processes that train. Each reads the images; so does the one that starts several.
    """
    if asked == "auto":
        readers = devices + (devices > 1)
        return MEMORY_SHARE * room.available_memory() / readers
    return 0 if asked == "disk" else math.inf


def choose(config: DataConfig, images: Images, accelerator: str, devices: int, memory: float) -> Storage:
    """The place for ``images``: on disk if they still are there, else on the device or in memory.

    Args:
        config: whose ``storage`` and ``workers`` are asked for.
        images: as read, with ``memory`` bytes to read them into.
        accelerator: where the run computes.
        devices: in how many processes.
        memory: from :func:`memory_room`.
    """
    total = images.nbytes
    size, forced = file_size(total), f", as data.storage={config.storage} says"
    several = " in each process" if devices > 1 else ""
    if isinstance(images.train.images, Pictures):
        workers = config.workers or max(1, min(MOST_WORKERS, cores() // devices))
        why = (
            forced
            if config.storage == "disk"
            else f" would not fit into the {file_size(memory)} of memory there is for images"
        )
        return Storage("disk", workers, f"streamed from disk by {plural(workers, 'worker')}{several}: {size}{why}")
    free = room.device_memory(accelerator, devices)
    if free is None:
        return Storage("memory", 0, f"in memory{several}: {size}")
    most = DEVICE_SHARE * free
    if config.storage == "device" or (config.storage == "auto" and total <= most):
        return Storage("device", 0, f"in the GPU's memory: {size}{'' if config.storage == 'auto' else forced}")
    why = f" would not fit into the {file_size(most)} of the GPU's memory there is for images"
    line = f"in memory{several}, copied to the GPU batch by batch: {size}{why if config.storage == 'auto' else forced}"
    return Storage("memory", 0, line)
