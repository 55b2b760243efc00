"""Images that are decoded while training goes on make the batches that decoded images make, and the same cache."""

import errno
import gc
import multiprocessing
import time
from itertools import count

import pytest
import torch
from filelock import FileLock
from helpers.levels import quick
from helpers.running import write_image_folder
from PIL import Image

from vitrine.data import batch_source, decode, pixel_store
from vitrine.data.datasets import load_dataset
from vitrine.data.decode import Decoder, ImageFiles
from vitrine.data.loader import EvalLoader, TrainLoader
from vitrine.data.pixel_store import PixelStore, StoredFiles, StoredSource, complete_all
from vitrine.data.transforms.augment import Chain, RandomCrop, RandomHorizontalFlip
from vitrine.errors import DataError

CPU = torch.device("cpu")
AUGMENT = Chain([RandomCrop(2), RandomHorizontalFlip()])


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    """60 files are several parts, which workers decode; none outlives its test."""
    for name, value in (("FIRST", 0.0), ("ALONE", 0.0), ("MAX_FILES", 7)):
        monkeypatch.setattr(pixel_store, name, value)
    yield
    gc.collect()
    assert multiprocessing.active_children() == []


@pytest.fixture
def config(data_config, tmp_path):
    """60 image files in three classes, larger than the decoded images and not square."""
    write_image_folder(tmp_path / "images", "train", classes=("a", "b", "c"), size=(20, 13))
    settings = {"image_size": 9, "in_channels": 3, "num_classes": 3, "workers": 2}
    return data_config(name="imagefolder", root=str(tmp_path / "images"), **settings)


@pytest.fixture
def partial(config, tmp_path):
    """The images with the first of them decoded, as time was up."""
    train = load_dataset(config, tmp_path / "cache", patience=0).train
    assert isinstance(train.images, StoredFiles)
    assert train.images.store.known.sum() == 1
    assert list((tmp_path / "cache").glob("*.npz*")) == []
    return train


def entries(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache").glob("*.npz"))


def epochs(source, balanced=None):
    """All batches of two epochs, each followed by a pass over the images in order."""
    found = []
    for epoch in range(2):
        values = {"augmentation": AUGMENT, "seed": 3, "position": lambda epoch=epoch: (epoch, 0)}
        found += TrainLoader(source, batch_size=8, balanced=balanced, **values)
        found += EvalLoader(source, batch_size=16)
    return found


@pytest.mark.whole
@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("resident", quick([False, True], [False]))
def test_batches_equal_those_of_the_finished_cache(config, partial, tmp_path, balanced, resident):
    read = load_dataset(config, tmp_path / "other cache").train
    assert isinstance(read.images, torch.Tensor)
    part = torch.arange(60)[torch.arange(60) % 5 > 0]  # the rest is for validation
    labels = read[part].labels if balanced else None
    streamed = epochs(StoredSource(partial[part], CPU, resident=resident), labels)
    for (images, targets), (same, same_targets) in zip(streamed, epochs(read[part], labels), strict=True):
        assert torch.equal(images, same)
        assert torch.equal(targets, same_targets)
    store = partial.images.store
    assert set(part.tolist()) <= set(store.known.nonzero()[:, 0].tolist())
    assert not store.known.all()

    complete_all([store], lambda: False)
    assert store.known.all()
    assert torch.equal(load_dataset(config, tmp_path / "cache").train.images, read.images)
    assert entries(tmp_path) == sorted(path.name for path in (tmp_path / "other cache").glob("*.npz"))


def test_a_finished_cache_is_reused_and_one_of_another_process_taken(config, partial, tmp_path, monkeypatch):
    whole = load_dataset(config, tmp_path / "cache").train  # another process was faster
    monkeypatch.setattr(Decoder, "read", lambda *_: pytest.fail("decoded again"))
    complete_all([partial.images.store], lambda: False)
    assert torch.equal(partial.images.store.pixels, whole.images)
    assert torch.equal(load_dataset(config, tmp_path / "cache", patience=0).train.images, whole.images)


def test_what_changes_while_files_are_decoded_is_not_taken_for_what_it_was(config, partial, tmp_path):
    early, late = partial.images.paths[partial.images.store.known.nonzero()[0, 0]], partial.images.paths[40]
    whole = load_dataset(config, tmp_path / "other cache").train.images
    for path in (early, late):
        Image.new("RGB", (20, 13), (200, 0, 0)).save(path)
    complete_all([partial.images.store], lambda: False)
    assert not torch.equal(partial.images.store.pixels, whole)  # the later one was not decoded before
    found = load_dataset(config, tmp_path / "cache").train
    for path in (early, late):
        place = found.labels.new_tensor(partial.images.paths.index(path))
        assert (found.images[place][0] == 200).all()


def test_files_that_disappear_once_they_are_decoded_are_not_missed(config, partial):
    whole = partial.images.store
    complete = list(StoredSource(partial, CPU, resident=False).batches([torch.arange(60)]))
    partial.images.paths[40].unlink()
    complete_all([whole], lambda: False)
    assert torch.equal(whole.pixels, complete[0][0])


def test_what_was_stopped_leaves_nothing_that_is_taken_for_whole(config, partial, tmp_path):
    asked = count()
    assert not partial.images.store.complete(stop=lambda: next(asked) > 4)
    assert 5 < partial.images.store.known.sum() < 60
    assert entries(tmp_path) == []
    again = load_dataset(config, tmp_path / "cache", patience=0).train
    assert again.images.store.known.sum() == 1


@pytest.fixture
def slow(monkeypatch, tmp_path):
    """A quick file, and one that takes 50 ms."""
    read = Decoder.read

    def delayed(decoder, paths):
        time.sleep(0.05 * sum(path.stem == "slow" for path in paths))
        return read(decoder, paths)

    monkeypatch.setattr(Decoder, "read", delayed)
    for name in ("quick", "slow"):
        Image.new("RGB", (9, 9)).save(tmp_path / f"{name}.png")
    return tmp_path / "quick.png", tmp_path / "slow.png"


@pytest.mark.parametrize("workers", [1, 2])
def test_files_that_turn_out_slow_are_decoded_for_as_long_as_it_is_allowed(slow, tmp_path, capsys, workers):
    files = ImageFiles("slow", [slow[0]] * 3 + [slow[1]] * 197, Decoder(9, 3))
    store = PixelStore(files, tmp_path / "cache", workers)
    assert not store.complete(1.0)
    assert 3 < store.known.sum() < 60
    assert "decoding 19" in capsys.readouterr().out


@pytest.mark.parametrize("workers", [1, 2])
def test_files_that_take_longer_than_allowed_are_left_at_once(slow, tmp_path, capsys, workers):
    store = PixelStore(ImageFiles("slow", [slow[1]] * 200, Decoder(9, 3)), tmp_path / "cache", workers)
    assert not store.complete(4.0)  # of the ten seconds that they take, or five by two processes
    assert store.known.sum() == 3
    assert capsys.readouterr().out == ""


def test_files_that_two_workers_decode_in_time_are_begun(slow, tmp_path, capsys):
    store, asked = PixelStore(ImageFiles("slow", [slow[1]] * 200, Decoder(9, 3)), tmp_path / "cache", 2), count()
    store.complete(7.0, stop=lambda: next(asked) > 3)  # one process would take ten seconds
    assert "decoding 197 images" in capsys.readouterr().out


def test_waiting_for_another_process_ends_with_a_signal_and_with_the_time(partial, tmp_path):
    (path,) = (tmp_path / "cache").glob("*.lock")
    store, begin = partial.images.store, time.monotonic()
    with FileLock(path):
        assert not store.complete(stop=lambda: True)
        assert not store.complete(seconds=0.2)
        assert not store.complete(seconds=-1.0)
    complete_all([store], lambda: True)
    assert time.monotonic() - begin < 20
    assert store.known.sum() == 1


def test_damaged_files_are_named_when_the_first_of_them_is_due(config, partial, monkeypatch):
    path, *others = [partial.images.paths[row] for row in (30, 40, 55, 59)]
    for damaged in (path, *others):
        damaged.write_bytes(b"damaged")
    source = StoredSource(partial, CPU, resident=False)
    monkeypatch.setattr(decode, "MAX_LISTED", 2)
    rest = f"; others that cannot be decoded: {others[0]}, {others[1]} and 1 more"
    for parts in ([torch.arange(20), torch.arange(20, 60)], [torch.arange(20, 42)]):  # by workers, and in this process
        with pytest.raises(DataError, match=rf"^{path} cannot be decoded as an image: .*{rest}$"):
            list(source.batches(parts))
    monkeypatch.setattr(batch_source, "SEARCH", -1.0)
    with pytest.raises(DataError, match=rf"^{path} cannot be decoded as an image: [^;]*$"):
        complete_all([partial.images.store], lambda: False)


def test_a_cache_that_cannot_be_written_is_reported_once_and_training_goes_on(partial, monkeypatch, capfd):
    def full(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("vitrine.data.cache.np.savez", full)
    store = partial.images.store
    complete_all([store], lambda: False)
    assert "cannot cache decoded images" in capfd.readouterr().err
    assert store.known.all()
    assert store.cached
