"""A lock of a sweep that is waited for names its holder, and a dead process does not keep it."""

import errno
import fcntl
import os
import socket
import threading

import pytest
from filelock import FileLock

from vitrine.sweeps import locks
from vitrine.sweeps.locks import held


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(locks, "SILENT_WAIT", 0.05)
    monkeypatch.setattr(locks, "LEASE_SECONDS", 0.1)


def test_a_line_names_the_holder_of_a_lock_that_is_waited_for(tmp_path, capsys):
    path = tmp_path / "locks" / "sweep.lock"
    taken = threading.Event()

    def take():
        with held(FileLock(path)):
            taken.set()

    waits = threading.Thread(target=take)
    with held(FileLock(path)):
        waits.start()
        assert not taken.wait(0.5)
    waits.join()
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    assert capsys.readouterr().err == f"vitrine: waiting for {holder}, which holds {path}\n"


def test_a_link_in_the_place_of_a_lock_is_not_written_to(tmp_path):
    (tmp_path / "mine").write_text("text")
    (tmp_path / "sweep.lock").hardlink_to(tmp_path / "mine")
    with held(FileLock(tmp_path / "sweep.lock")):
        assert (tmp_path / "mine").read_text() == "text"


def test_without_locks_of_the_file_system_the_lock_of_a_dead_process_elsewhere_is_taken_over(
    tmp_path, monkeypatch, capsys
):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "locks" / "sweep.lock"
    path.parent.mkdir()
    path.write_text("4711\nnode7\n")
    with held(FileLock(path)):
        assert path.read_text().split("\n")[:2] == [str(os.getpid()), socket.gethostname()]
    assert not path.exists()
    assert capsys.readouterr().err == f"vitrine: waiting for process 4711 on node7, which holds {path}\n"
