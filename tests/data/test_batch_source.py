"""Batches are the same wherever images lie."""

import gc
import multiprocessing
import os
import signal
import time

import pytest
import torch
from helpers.running import make_pictures

from vitrine.data.batch_source import FromDisk, FromMemory
from vitrine.data.datasets import Split, load
from vitrine.data.decode import Pictures
from vitrine.data.epoch_plan import plan_epoch
from vitrine.data.loader import EvalLoader, TrainLoader
from vitrine.data.transforms.augment import Chain, Crop, Flip
from vitrine.errors import DataError

CPU = torch.device("cpu")
AUGMENT = Chain([Crop(2), Flip()])


@pytest.fixture
def folder(tmp_path):
    """60 pictures in three classes, larger than what is made of them and of other proportions."""
    root = tmp_path / "pictures"
    make_pictures(root, "train", classes=("a", "b", "c"), size=(20, 13))
    return root


@pytest.fixture
def both(data_config, folder, tmp_path):
    """The pictures in memory, and on disk."""
    config = data_config(name="imagefolder", root=str(folder), image_size=9, in_channels=3, num_classes=3)
    read = load(config, tmp_path / "cache").train
    unread = load(config, tmp_path / "no cache", memory=read.images.nbytes - 1).train
    assert isinstance(read.images, torch.Tensor)
    assert isinstance(unread.images, Pictures)
    assert not (tmp_path / "no cache").exists()
    return read, unread


@pytest.fixture(autouse=True)
def no_worker_stays():
    yield
    gc.collect()
    assert multiprocessing.active_children() == []


def training(images, start=0, rank=0, world_size=1, batch_size=8):
    values = {"augmentation": AUGMENT, "seed": 3, "position": lambda: (2, start)}
    return TrainLoader(images, batch_size=batch_size, rank=rank, world_size=world_size, **values)


def assert_same(one, other):
    one, other = list(one), list(other)
    assert len(one) == len(other)
    for (images, labels), (other_images, other_labels) in zip(one, other, strict=True):
        assert images.dtype is other_images.dtype is torch.uint8
        assert torch.equal(images, other_images)
        assert torch.equal(labels, other_labels)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (0, 2), (1, 2)])
def test_streamed_training_batches_are_those_from_memory(both, workers, start, rank, world_size):
    read, unread = both
    batches = list(training(read, start, rank, world_size))
    assert len(batches) == 7 - start
    assert_same(batches, training(FromDisk(unread, CPU, workers), start, rank, world_size))
    assert_same(batches, training(FromMemory(read, CPU), start, rank, world_size))
    assert_same(batches, training(unread, start, rank, world_size))


@pytest.mark.parametrize("start", [6, 7])
def test_a_pass_can_start_at_the_last_batch_or_behind_it(both, start):
    read, unread = both
    assert_same(training(read, start), training(FromDisk(unread, CPU, 2), start))


@pytest.mark.parametrize(("rank", "world_size", "batch_size"), [(0, 1, 16), (0, 2, 8), (1, 2, 30), (6, 7, 9)])
def test_streamed_evaluation_batches_are_those_from_memory(both, rank, world_size, batch_size):
    read, unread = both
    shares = [
        EvalLoader(one, batch_size=batch_size, rank=rank, world_size=world_size)
        for one in (read, FromDisk(unread, CPU, 2), FromMemory(read, CPU))
    ]
    assert_same(shares[0], shares[1])
    assert_same(shares[0], shares[2])


def test_a_process_without_images_in_a_last_batch_gets_an_empty_one(both):
    _, unread = both
    *_, (images, labels) = EvalLoader(FromDisk(unread[torch.arange(5)], CPU, 2), batch_size=1, rank=2, world_size=3)
    assert images.shape == (0, 3, 9, 9)
    assert labels.shape == (0,)


def test_chosen_pictures_are_those_chosen_in_memory(both):
    read, unread = both
    chosen = torch.tensor([41, 3, 3, 59])
    some = unread[chosen]
    assert isinstance(some.images, Pictures)
    assert some.images.shape == (4, 3, 9, 9)
    assert torch.equal(some.images[torch.arange(4)], read.images[chosen])
    assert torch.equal(some.labels, read.labels[chosen])


def test_one_feed_gives_pass_after_pass(both):
    read, unread = both
    loader = training(FromDisk(unread, CPU, 2))
    for epoch in (0, 1):
        loader.position = lambda epoch=epoch: (epoch, 0)
        expected = training(read)
        expected.position = loader.position
        assert_same(expected, loader)


def test_streaming_draws_no_random_numbers_of_training(both):
    _, unread = both
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    list(training(FromDisk(unread, CPU, 2)))
    assert torch.equal(torch.rand(1), expected)


def test_workers_end_with_the_last_batch(both):
    _, unread = both
    batches = iter(training(FromDisk(unread, CPU, 2)))
    for _ in range(7):
        assert len(multiprocessing.active_children()) in (0, 2)
        next(batches)
    assert multiprocessing.active_children() == []


def test_workers_end_when_a_pass_is_given_up(both):
    _, unread = both
    batches = iter(training(FromDisk(unread, CPU, 2)))
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    del batches
    assert multiprocessing.active_children() == []


def test_workers_end_when_a_feed_is_closed_or_begins_anew(both):
    read, unread = both
    stream = FromDisk(unread, CPU, 2)
    first = iter(training(stream))
    next(first)
    second = iter(training(stream))
    next(second)
    assert len(multiprocessing.active_children()) == 2
    stream.close()
    assert multiprocessing.active_children() == []
    assert_same(training(read), training(stream))
    del first, second


@pytest.mark.parametrize("damage", ["cut", "no picture", "missing"])
def test_a_picture_that_cannot_be_decoded_is_named(both, damage):
    _, unread = both
    path = unread.images.paths[17]
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:200] if damage == "cut" else b"text")
    with pytest.raises(DataError) as error:
        list(training(FromDisk(unread, CPU, 2), batch_size=60))
    assert multiprocessing.active_children() == [], "though the error still refers to the pass"
    assert str(error.value).startswith(f"{path} cannot be read as a picture: ")
    assert "\n" not in str(error.value)
    assert "worker" not in str(error.value)


def test_batches_before_a_damaged_picture_are_given(both):
    read, unread = both
    expected = list(training(read))
    place = plan_epoch(60, AUGMENT.draws, 3, 2).order[4 * 8 + 1]
    unread.images.paths[place].write_bytes(b"")
    found = []
    with pytest.raises(DataError):
        found.extend(training(FromDisk(unread, CPU, 2)))
    assert len(found) == 4
    assert_same(expected[:4], found)


def test_a_killed_worker_is_an_error_and_no_endless_wait(both, monkeypatch):
    _, unread = both

    def die(paths):
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(type(unread.images.decoder), "__getitem__", lambda self, paths: die(paths))
    with pytest.raises(DataError, match=r"decoded further: DataLoader worker .*data\.workers=N"):
        list(training(FromDisk(unread, CPU, 1)))


def test_ctrl_c_in_a_terminal_does_not_reach_workers(both):
    read, unread = both
    batches = iter(training(FromDisk(unread, CPU, 2)))
    first = next(batches)
    own = os.getpgrp()
    workers = [child.pid for child in multiprocessing.active_children()]
    for _ in range(100):  # the other worker may still be on its way
        if own not in map(os.getpgid, workers):
            break
        time.sleep(0.1)
    assert own not in map(os.getpgid, workers)
    assert_same(training(read), [first, *batches])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_every_way_leads_to_the_same_batches_on_a_gpu(both):
    read, unread = both
    device = torch.device("cuda")
    feeds = (Split(read.images.to(device), read.labels.to(device)), FromMemory(read, device))
    expected = list(training(read))
    for one in (*feeds, FromDisk(unread, device, 2)):
        batches = list(training(one))
        assert {tensor.device.type for batch in batches for tensor in batch} == {"cuda"}
        assert_same([(images.cpu(), labels.cpu()) for images, labels in batches], expected)
