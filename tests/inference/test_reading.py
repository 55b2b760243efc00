"""Pictures are read a few batches ahead, however many there are."""

import errno
from itertools import count, islice

import pytest
import torch

from vitrine.data.decode import Decoder, ImageFiles
from vitrine.data.image_dataset import Split
from vitrine.errors import DataError, DiskFull
from vitrine.files import naming_full_disk
from vitrine.inference import calibrate, reading
from vitrine.inference.export import checks
from vitrine.inference.inputs import Listed
from vitrine.inference.predictor import Predictor
from vitrine.inference.reading import read_batches


@pytest.mark.parametrize("workers", [0, 2])
def test_an_endless_list_is_read_only_a_few_batches_ahead(run, pictures, workers):
    path = str(min(pictures.rglob("*.png")))
    listed = 0

    def endless():
        nonlocal listed
        for listed in count(1):
            yield Listed(path if listed % 3 else "missing.png")

    batches = read_batches(endless(), [run.transform], batch_size=4, workers=workers, pin=False)
    for batch, (images, errors, _) in islice(batches, 5):
        assert len(batch) == 4
        assert [index for index, picture in enumerate(batch) if picture.path == "missing.png"] == sorted(errors)
        assert images[0].shape == (4 - len(errors), 1, 8, 8)
    assert listed <= 4 * (5 + 2 * workers)
    batches.close()


def test_shared_memory_without_room_for_the_locks_of_workers_is_named(run, pictures, monkeypatch, capfd):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", full)
    listed = [Listed(str(path)) for path in pictures.rglob("*.png")]
    with pytest.raises(DiskFull, match=r"^shared memory \(/dev/shm\) is full: .*--shm-size"), naming_full_disk():
        next(read_batches(listed, [run.transform], batch_size=4, workers=2, pin=False))
    assert capfd.readouterr().err == ""


def full(*_):
    raise RuntimeError("unable to allocate shared memory")


def test_files_of_a_split_that_shared_memory_has_no_room_for_are_an_error_without_a_key(files, monkeypatch, capsys):
    monkeypatch.setattr(torch.UntypedStorage, "_share_fd_cpu_", full)
    monkeypatch.setattr(reading, "BATCH", 8)
    monkeypatch.setattr(reading, "PART", 4)
    with pytest.raises(DataError, match=r"unable to allocate shared memory; .*\(docker run --shm-size=8g\)$"):
        list(reading.read_split(files, 2))
    assert capsys.readouterr().err == "decoding 30 images\n"


@pytest.fixture
def files(pictures):
    """30 images and labels of digits, as files."""
    paths = sorted(pictures.rglob("*.png"))[::12]
    return Split(ImageFiles("digits", paths, Decoder(8, 1)), torch.tensor([int(path.parent.name) for path in paths]))


@pytest.mark.parametrize("by", ["logits_of", "calibrate_export", "accuracy_cost"])
def test_many_files_of_a_split_are_decoded_by_workers_to_the_same_images(run, files, monkeypatch, by):
    predictor = Predictor(run.model, run.config, "cpu", run.transform)
    logits = predictor.logits_of(Split(files.stored[torch.arange(30)], files.labels))
    run.config.data.workers = predictor.workers = 2
    seen = []

    def logits_of(images):
        seen.append(predictor.logits(images))
        return seen[-1]

    share = torch.UntypedStorage._share_fd_cpu_
    monkeypatch.setattr(
        torch.UntypedStorage, "_share_fd_cpu_", lambda part: share(part) if len(part) <= 256 else full()
    )
    monkeypatch.setattr(reading, "BATCH", 8)
    monkeypatch.setattr(reading, "PART", 4)
    read = Decoder.read
    monkeypatch.setattr(Decoder, "read", lambda *given: here.append(given) or read(*given))
    here = []  # what this process decodes
    for module in (calibrate, checks):
        monkeypatch.setattr(module, "validation_images", lambda *_, **__: (files, False))
    if by == "logits_of":
        seen.append(predictor.logits_of(files))
    elif by == "calibrate_export":
        calibrate.calibrate_export(run, logits_of, None, exact=False)
    else:
        assert checks.accuracy_cost(logits_of, predictor.logits, run, None, "logits").images == 30
    torch.testing.assert_close(torch.cat(seen), logits)
    assert here == []
    predictor.workers = 0
    torch.testing.assert_close(predictor.logits_of(files), logits)
    assert len(here) == 8
