"""The placement of images by their size, and its one-line description."""

import math

import pytest
import torch

from vitrine.data import memory
from vitrine.data.decode import Decoder, ImageFiles
from vitrine.data.image_dataset import ImageDataset, Split
from vitrine.data.placement import choose_placement, memory_budget

CPU, CPUS, GPU, GPUS = ("cpu", 1), ("cpu", 3), ("cuda", 1), ("cuda", 2)  # accelerator and ranks

SIZE = 50 * 3 * 100  # bytes of the images below


def decoded(count=50):
    images = torch.zeros(count, 3, 10, 10, dtype=torch.uint8)
    return ImageDataset(["a", "b"], Split(images, torch.zeros(count)), None, None)


def undecoded(count=50):
    files = ImageFiles("a", ["a.png"] * count, Decoder(10, 3))
    return ImageDataset(["a", "b"], Split(files, torch.zeros(count)), None, None)


@pytest.fixture
def chosen(monkeypatch, data_config):
    """Choose a placement on a machine with the given cores and, on a GPU, free memory."""

    def call(dataset, hardware=CPU, budget=math.inf, gpu=10**12, cores=4, **changes):
        free = gpu if hardware[0] == "cuda" else None
        monkeypatch.setattr(memory, "device_memory", lambda *_: free)
        monkeypatch.setattr("vitrine.data.placement.available_cores", lambda: cores)
        return choose_placement(data_config(name="imagefolder", **changes), dataset, *hardware, budget)

    return call


@pytest.mark.parametrize(("hardware", "copies"), [(CPU, 1), (CPUS, 4), (GPU, 1), (GPUS, 3)])
def test_the_budget_is_a_share_of_memory_for_each_process_that_reads_the_images(monkeypatch, hardware, copies):
    monkeypatch.setattr(memory, "available_memory", lambda: 24_000)
    assert memory_budget("auto", hardware[1]) == pytest.approx(0.5 * 24_000 / copies)


def test_a_requested_place_needs_no_look_at_the_memory(monkeypatch):
    monkeypatch.delattr(memory, "available_memory")
    assert memory_budget("disk", 1) == 0
    assert memory_budget("memory", 1) == memory_budget("device", 1) == math.inf


def test_all_splits_count():
    train, val, test = (decoded(count).train for count in (50, 20, 7))
    assert ImageDataset(["a"], train, val, test).nbytes == (50 + 20 + 7) * 300
    assert ImageDataset(["a"], train, None, test).nbytes == (50 + 7) * 300
    assert undecoded(20).nbytes == 20 * 300


def test_on_a_cpu_images_are_in_memory(chosen):
    for storage in ("auto", "device", "memory"):
        placement = chosen(decoded(), storage=storage)
        assert (placement.place, placement.workers, placement.line) == ("memory", 0, "in memory: 15 kB")


def test_images_that_fit_on_the_gpu_lie_there(chosen):
    placement = chosen(decoded(), GPU, gpu=2 * SIZE)
    assert (placement.place, placement.workers, placement.line) == ("device", 0, "in GPU memory: 15 kB")


def test_images_that_do_not_fit_on_the_gpu_stay_in_memory(chosen):
    placement = chosen(decoded(), GPU, gpu=2 * SIZE - 2)
    assert (placement.place, placement.workers) == ("memory", 0)
    reason = "15 kB exceeds the 15 kB of GPU memory for images"
    assert placement.line == f"in memory, copied to the GPU batch by batch: {reason}"


def test_the_gpu_or_memory_can_be_requested(chosen):
    device, host = chosen(decoded(), GPU, gpu=1, storage="device"), chosen(decoded(), GPU, storage="memory")
    assert (device.place, host.place) == ("device", "memory")
    assert device.line == "in GPU memory: 15 kB, as data.storage=device requests"
    assert host.line == "in memory, copied to the GPU batch by batch: 15 kB, as data.storage=memory requests"


def test_images_that_do_not_fit_in_memory_are_streamed(chosen):
    placement = chosen(undecoded(), budget=14_000)
    assert (placement.place, placement.workers) == ("disk", 4)
    reason = "15 kB exceeds the 14 kB of memory for images"
    assert placement.line == f"streamed from disk by 4 workers: {reason}"
    assert chosen(undecoded(), GPU, budget=14_000).place == "disk"


def test_streaming_can_be_requested(chosen):
    placement = chosen(undecoded(), budget=0, storage="disk", workers=1)
    assert placement.line == "streamed from disk by 1 worker: 15 kB, as data.storage=disk requests"


@pytest.mark.parametrize(
    ("hardware", "cores", "workers", "expected"),
    [(CPU, 1, None, 1), (CPU, 64, None, 8), (CPUS, 7, None, 2), (CPUS, 2, None, 1), (CPU, 2, 20, 20), (CPUS, 2, 5, 5)],
)
def test_workers_depend_on_the_cores_of_a_rank(chosen, hardware, cores, workers, expected):
    placement = chosen(undecoded(), hardware, budget=1, cores=cores, workers=workers)
    assert placement.workers == expected
    assert ("in each rank" in placement.line) == (hardware[1] > 1)
