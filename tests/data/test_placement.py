"""Where images lie is chosen by what fits, and said in a line."""

import math

import pytest
import torch

from vitrine.data import memory as room
from vitrine.data.datasets import Images, Split
from vitrine.data.decode import Decoder, Pictures
from vitrine.data.placement import choose, memory_room

CPU, CPUS, GPU, GPUS = ("cpu", 1), ("cpu", 3), ("cuda", 1), ("cuda", 2)  # where, and in how many processes

SIZE = 50 * 3 * 100  # bytes of the images below


def read(count=50):
    return Images(["a", "b"], Split(torch.zeros(count, 3, 10, 10, dtype=torch.uint8), torch.zeros(count)), None, None)


def unread(count=50):
    return Images(["a", "b"], Split(Pictures("a", ["a.png"] * count, Decoder(10, 3)), torch.zeros(count)), None, None)


@pytest.fixture
def chosen(monkeypatch, data_config):
    """What is chosen on a machine with so many cores, and a GPU with so much memory free."""

    def call(images, hardware=CPU, memory=math.inf, gpu=10**12, cores=4, **changes):
        free = gpu if hardware[0] == "cuda" else None
        monkeypatch.setattr(room, "device_memory", lambda *_: free)
        monkeypatch.setattr("vitrine.data.placement.cores", lambda: cores)
        return choose(data_config(name="imagefolder", **changes), images, *hardware, memory)

    return call


@pytest.mark.parametrize(("hardware", "copies"), [(CPU, 1), (CPUS, 4), (GPU, 1), (GPUS, 3)])
def test_images_may_take_a_share_of_memory_in_each_process_that_reads_them(monkeypatch, hardware, copies):
    monkeypatch.setattr(room, "available_memory", lambda: 24_000)
    assert memory_room("auto", hardware[1]) == pytest.approx(0.4 * 24_000 / copies)


def test_memory_is_not_asked_for_where_the_place_is_given(monkeypatch):
    monkeypatch.delattr(room, "available_memory")
    assert memory_room("disk", 1) == 0
    assert memory_room("memory", 1) == memory_room("device", 1) == math.inf


def test_all_splits_count():
    train, val, test = (read(count).train for count in (50, 20, 7))
    assert Images(["a"], train, val, test).nbytes == (50 + 20 + 7) * 300
    assert Images(["a"], train, None, test).nbytes == (50 + 7) * 300
    assert unread(20).nbytes == 20 * 300


def test_on_a_cpu_images_are_in_memory(chosen):
    for asked in ("auto", "device", "memory"):
        storage = chosen(read(), storage=asked)
        assert (storage.place, storage.workers, storage.line) == ("memory", 0, "in memory: 15 kB")


def test_what_fits_on_the_gpu_goes_there(chosen):
    storage = chosen(read(), GPU, gpu=2 * SIZE)
    assert (storage.place, storage.workers, storage.line) == ("device", 0, "in the GPU's memory: 15 kB")


def test_what_does_not_fit_on_the_gpu_stays_in_memory(chosen):
    storage = chosen(read(), GPU, gpu=2 * SIZE - 2)
    assert (storage.place, storage.workers) == ("memory", 0)
    reason = "15 kB would not fit into the 15 kB of the GPU's memory there is for images"
    assert storage.line == f"in memory, copied to the GPU batch by batch: {reason}"


def test_the_gpu_or_memory_can_be_asked_for(chosen):
    device, memory = chosen(read(), GPU, gpu=1, storage="device"), chosen(read(), GPU, storage="memory")
    assert (device.place, memory.place) == ("device", "memory")
    assert device.line == "in the GPU's memory: 15 kB, as data.storage=device says"
    assert memory.line == "in memory, copied to the GPU batch by batch: 15 kB, as data.storage=memory says"


def test_what_was_too_large_to_read_is_streamed(chosen):
    storage = chosen(unread(), memory=14_000)
    assert (storage.place, storage.workers) == ("disk", 4)
    reason = "15 kB would not fit into the 14 kB of memory there is for images"
    assert storage.line == f"streamed from disk by 4 workers: {reason}"
    assert chosen(unread(), GPU, memory=14_000).place == "disk"


def test_streaming_can_be_asked_for(chosen):
    storage = chosen(unread(), memory=0, storage="disk", workers=1)
    assert storage.line == "streamed from disk by 1 worker: 15 kB, as data.storage=disk says"


@pytest.mark.parametrize(
    ("hardware", "cores", "workers", "expected"),
    [(CPU, 1, None, 1), (CPU, 64, None, 8), (CPUS, 7, None, 2), (CPUS, 2, None, 1), (CPU, 2, 20, 20), (CPUS, 2, 5, 5)],
)
def test_workers_go_by_the_cores_of_a_process(chosen, hardware, cores, workers, expected):
    storage = chosen(unread(), hardware, memory=1, cores=cores, workers=workers)
    assert storage.workers == expected
    assert ("in each process" in storage.line) == (hardware[1] > 1)
