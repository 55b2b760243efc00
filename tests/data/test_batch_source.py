"""Batches are equal wherever images lie; the life of decoding workers."""

import gc
import multiprocessing
import os
import pickle
import signal
import time

import pytest
import torch
from helpers.running import write_image_folder

from vitrine.data.batch_source import PinnedMemorySource, StreamingSource
from vitrine.data.datasets import load_dataset
from vitrine.data.decode import Decoder, ImageFiles, Undecodable
from vitrine.data.epoch_plan import plan_epoch
from vitrine.data.image_dataset import Split
from vitrine.data.loader import EvalLoader, TrainLoader
from vitrine.data.transforms.augment import Chain, RandomCrop, RandomHorizontalFlip
from vitrine.errors import DataError
from vitrine.signals import STOP_SIGNALS, restored_handlers

CPU = torch.device("cpu")
AUGMENT = Chain([RandomCrop(2), RandomHorizontalFlip()])


@pytest.fixture
def folder(tmp_path):
    """60 image files in three classes, larger than the decoded images and not square."""
    root = tmp_path / "images"
    write_image_folder(root, "train", classes=("a", "b", "c"), size=(20, 13))
    return root


@pytest.fixture
def both(data_config, folder, tmp_path):
    """The images in memory, and as files."""
    config = data_config(name="imagefolder", root=str(folder), image_size=9, in_channels=3, num_classes=3)
    read = load_dataset(config, tmp_path / "cache").train
    unread = load_dataset(config, tmp_path / "no cache", memory=read.images.nbytes - 1).train
    assert isinstance(read.images, torch.Tensor)
    assert isinstance(unread.images, ImageFiles)
    assert not (tmp_path / "no cache").exists()
    return read, unread


@pytest.fixture(autouse=True)
def no_worker_is_left():
    yield
    gc.collect()
    assert multiprocessing.active_children() == []


def training(images, start=0, rank=0, world_size=1, batch_size=8):
    values = {"augmentation": AUGMENT, "seed": 3, "position": lambda: (2, start)}
    return TrainLoader(images, batch_size=batch_size, rank=rank, world_size=world_size, **values)


def assert_same(batches, others):
    batches, others = list(batches), list(others)
    assert len(batches) == len(others)
    for (images, labels), (other_images, other_labels) in zip(batches, others, strict=True):
        assert images.dtype is other_images.dtype is torch.uint8
        assert torch.equal(images, other_images)
        assert torch.equal(labels, other_labels)


@pytest.mark.parametrize("workers", [1, pytest.param(3, marks=pytest.mark.whole)])
@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), pytest.param(0, 2, marks=pytest.mark.whole), (1, 2)])
def test_streamed_training_batches_are_those_from_memory(both, workers, start, rank, world_size):
    read, unread = both
    batches = list(training(read, start, rank, world_size))
    assert len(batches) == 7 - start
    assert_same(batches, training(StreamingSource(unread, CPU, workers), start, rank, world_size))
    assert_same(batches, training(PinnedMemorySource(read, CPU), start, rank, world_size))
    assert_same(batches, training(unread, start, rank, world_size))


@pytest.mark.parametrize("start", [6, 7])
def test_a_pass_can_start_at_the_last_batch_or_behind_it(both, start):
    read, unread = both
    assert_same(training(read, start), training(StreamingSource(unread, CPU, 2), start))


@pytest.mark.parametrize(("rank", "world_size", "batch_size"), [(0, 1, 16), (0, 2, 8), (1, 2, 30), (6, 7, 9)])
def test_streamed_evaluation_batches_are_those_from_memory(both, rank, world_size, batch_size):
    read, unread = both
    shares = [
        EvalLoader(source, batch_size=batch_size, rank=rank, world_size=world_size)
        for source in (read, StreamingSource(unread, CPU, 2), PinnedMemorySource(read, CPU))
    ]
    assert_same(shares[0], shares[1])
    assert_same(shares[0], shares[2])


def test_a_rank_without_images_in_a_last_batch_gets_an_empty_batch(both):
    _, unread = both
    source = StreamingSource(unread[torch.arange(5)], CPU, 2)
    *_, (images, labels) = EvalLoader(source, batch_size=1, rank=2, world_size=3)
    assert images.shape == (0, 3, 9, 9)
    assert labels.shape == (0,)


def test_a_subset_of_files_is_that_of_the_images(both):
    read, unread = both
    chosen = torch.tensor([41, 3, 3, 59])
    subset = unread[chosen]
    assert isinstance(subset.images, ImageFiles)
    assert subset.images.shape == (4, 3, 9, 9)
    assert torch.equal(subset.images[torch.arange(4)], read.images[chosen])
    assert torch.equal(subset.labels, read.labels[chosen])


def test_subsets_share_the_pixels_of_the_whole(both):
    read = both[0]
    chosen = torch.tensor([5, 59, 0, 31, 7])
    subset = read[chosen]
    some = subset[torch.tensor([3, 0])]
    assert subset.stored is some.stored is read.stored
    for split, places in ((subset, chosen), (some, torch.tensor([31, 5]))):
        assert torch.equal(split.images, read.images[places])
        assert torch.equal(split.labels, read.labels[places])
        for source in (split, PinnedMemorySource(split, CPU)):
            (batch,) = source.batches([torch.tensor([1, 0])])
            assert_same([batch], [(read.images[places[[1, 0]]], read.labels[places[[1, 0]]])])


def test_a_source_can_be_read_repeatedly(both):
    read, unread = both
    loader = training(StreamingSource(unread, CPU, 2))
    for epoch in (0, 1):
        loader.position = lambda epoch=epoch: (epoch, 0)
        expected = training(read)
        expected.position = loader.position
        assert_same(expected, loader)


def test_streaming_leaves_the_global_generator_alone(both):
    _, unread = both
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    list(training(StreamingSource(unread, CPU, 2)))
    assert torch.equal(torch.rand(1), expected)


def test_workers_end_with_the_last_batch(both):
    _, unread = both
    batches = iter(training(StreamingSource(unread, CPU, 2)))
    for _ in range(7):
        assert len(multiprocessing.active_children()) in (0, 2)
        next(batches)
    assert multiprocessing.active_children() == []


def test_workers_end_when_a_pass_is_abandoned(both):
    _, unread = both
    batches = iter(training(StreamingSource(unread, CPU, 2)))
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    del batches
    assert multiprocessing.active_children() == []


def test_workers_end_when_a_source_is_closed_or_restarted(both):
    read, unread = both
    stream = StreamingSource(unread, CPU, 2)
    first = iter(training(stream))
    next(first)
    second = iter(training(stream))
    next(second)
    assert len(multiprocessing.active_children()) == 2
    stream.close()
    assert multiprocessing.active_children() == []
    assert_same(training(read), training(stream))
    del first, second


@pytest.mark.parametrize("damage", ["truncated", "not an image", "missing"])
def test_a_file_that_cannot_be_decoded_is_named(both, damage):
    _, unread = both
    path = unread.images.paths[17]
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:200] if damage == "truncated" else b"text")
    with pytest.raises(DataError) as error:
        list(training(StreamingSource(unread, CPU, 2), batch_size=60))
    assert multiprocessing.active_children() == [], "though the error still refers to the pass"
    missing, damaged = f"there is no file {path}", f"{path} cannot be decoded as an image: "
    assert str(error.value).startswith(missing if damage == "missing" else damaged)
    assert "\n" not in str(error.value)
    assert "worker" not in str(error.value)


def test_ten_damaged_files_of_a_pass_are_named(both):
    _, unread = both
    damaged = unread.images.paths[5::5]
    for path in damaged:
        path.write_bytes(b"")
    with pytest.raises(DataError) as error:
        list(StreamingSource(unread, CPU, 2).batches(list(torch.arange(60).split(8))))
    also = f"; others that cannot be decoded: {', '.join(map(str, damaged[1:10]))} and 1 more"
    assert str(error.value).startswith(f"{damaged[0]} cannot be decoded as an image: ")
    assert str(error.value).endswith(also)
    assert multiprocessing.active_children() == []


def test_a_damaged_file_is_named_where_a_worker_is_killed_while_others_are_looked_for(both, monkeypatch):
    _, unread = both
    read, main = Decoder.__getitem__, os.getpid()

    def dying(self, paths):
        if unread.images.paths[20] in paths and os.getpid() != main:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, paths)

    unread.images.paths[0].write_bytes(b"")
    monkeypatch.setattr(Decoder, "__getitem__", dying)
    with pytest.raises(Undecodable) as error:
        list(StreamingSource(unread, CPU, 1).batches(list(torch.arange(60).split(8))))
    assert list(error.value.problems) == [str(unread.images.paths[0])]
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.problems) == (str(error.value), error.value.problems)


def test_batches_before_a_damaged_file_are_yielded(both):
    read, unread = both
    expected = list(training(read))
    place = plan_epoch(60, AUGMENT.num_draws, 3, 2).order[4 * 8 + 1]
    unread.images.paths[place].write_bytes(b"")
    found = []
    with pytest.raises(DataError):
        found.extend(training(StreamingSource(unread, CPU, 2)))
    assert len(found) == 4
    assert_same(expected[:4], found)


def test_a_killed_worker_is_an_error_instead_of_a_hang(both, monkeypatch):
    _, unread = both

    def die(paths):
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(type(unread.images.decoder), "__getitem__", lambda self, paths: die(paths))
    with pytest.raises(DataError, match=r"decoding images failed: DataLoader worker .*data\.workers=1"):
        list(training(StreamingSource(unread, CPU, 1)))


def test_a_batch_without_room_in_shared_memory_is_an_error_instead_of_a_hang(both, monkeypatch, capfd):
    _, unread = both

    def full(storage):
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")

    monkeypatch.setattr(torch.UntypedStorage, "_share_fd_cpu_", full)
    problem = (
        r"^decoding images failed: unable to allocate shared memory.*/dev/shm.*--shm-size.*, or try data\.workers=1$"
    )
    with pytest.raises(DataError, match=problem):
        list(training(StreamingSource(unread, CPU, 2)))
    assert capfd.readouterr().err == ""


def test_stop_signals_never_reach_workers(both, capfd):
    """Not even in the first moment of a worker, which begins with the signal handlers of its parent."""
    read, unread = both
    sent = list(STOP_SIGNALS)
    os.register_at_fork(after_in_child=lambda: [os.kill(os.getpid(), number) for number in sent])
    with restored_handlers():
        for number in STOP_SIGNALS:
            signal.signal(number, lambda number, _: os.write(2, f"received {number}".encode()))
        batches = iter(training(StreamingSource(unread, CPU, 2)))
        first = next(batches)
    sent.clear()
    for worker in multiprocessing.active_children():
        os.kill(worker.pid, signal.SIGTERM)
    assert_same(training(read), [first, *batches])
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_all_sources_yield_the_same_batches_on_a_gpu(both):
    read, unread = both
    device = torch.device("cuda")
    sources = (Split(read.images.to(device), read.labels.to(device)), PinnedMemorySource(read, device))
    expected = list(training(read))
    for source in (*sources, StreamingSource(unread, device, 2)):
        batches = list(training(source))
        assert {tensor.device.type for batch in batches for tensor in batch} == {"cuda"}
        assert_same([(images.cpu(), labels.cpu()) for images, labels in batches], expected)
