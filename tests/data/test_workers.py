"""The processes that decode images."""

import errno
import time

import pytest
from helpers.running import ROOT, python

from vitrine.data.workers import WorkerContext
from vitrine.errors import DataError

LEFT_BEHIND = """
import time
from torch.utils.data import DataLoader
from vitrine.data.workers import WorkerContext

class Slow(list):
    __getitem__ = lambda self, index: time.sleep(300)

batches = iter(DataLoader(Slow([1]), num_workers=2, multiprocessing_context=WorkerContext()))
print("started")
"""


def test_a_worker_can_be_terminated_although_signals_do_not_reach_it():
    worker = WorkerContext().Process(target=time.sleep, args=[300], daemon=True)
    worker.start()
    worker.terminate()
    worker.join(60)
    assert not worker.is_alive()


def test_workers_without_a_folder_for_temporary_files_are_refused(monkeypatch):
    """They would wait for ever, as in a container that can write nowhere."""

    def none():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("tempfile._get_default_tempdir", none)
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(
        DataError, match=r"^No usable temporary directory found in \['/tmp'\]; make room in one, or set"
    ):
        WorkerContext()


@pytest.mark.whole
def test_workers_that_are_left_behind_neither_keep_the_command_nor_are_reported():
    began = time.monotonic()
    done = python("-c", LEFT_BEHIND, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")
    assert time.monotonic() - began < 100
