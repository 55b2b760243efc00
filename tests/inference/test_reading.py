"""Pictures are read a few batches ahead, however many there are."""

import errno
from itertools import count, islice

import pytest

from vitrine.errors import DiskFull
from vitrine.files import naming_full_disk
from vitrine.inference.inputs import Listed
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
    with pytest.raises(DiskFull, match=r"^shared memory is full: .*/dev/shm.*--shm-size"), naming_full_disk():
        next(read_batches(listed, [run.transform], batch_size=4, workers=2, pin=False))
    assert capfd.readouterr().err == ""
