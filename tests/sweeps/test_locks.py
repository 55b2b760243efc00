"""A lock of a sweep that is waited for names its holder."""

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


def start_to_take(path):
    """Take a lock in another thread; return the thread, and the event that tells when it has it."""
    taken = threading.Event()

    def take():
        with held(FileLock(path)):
            taken.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    return thread, taken


def test_a_line_names_the_holder_of_a_lock_that_is_waited_for(tmp_path, capsys):
    path = tmp_path / "locks" / "sweep.lock"
    with held(FileLock(path)):
        waits, taken = start_to_take(path)
        assert not taken.wait(0.5)
    waits.join()
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    assert capsys.readouterr().err == f"vitrine: waiting for {holder}, which holds {path}\n"


def test_a_link_in_the_place_of_a_lock_is_not_written_to(tmp_path):
    (tmp_path / "mine").write_text("text")
    (tmp_path / "sweep.lock").hardlink_to(tmp_path / "mine")
    with held(FileLock(tmp_path / "sweep.lock")):
        assert (tmp_path / "mine").read_text() == "text"


def test_without_locks_of_the_file_system_the_line_says_to_delete_the_file_of_a_dead_process(
    tmp_path, monkeypatch, capsys
):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "locks" / "sweep.lock"
    path.parent.mkdir()
    path.write_text("4711\nnode7\n")
    waits, taken = start_to_take(path)
    assert not taken.wait(0.3)
    line = f"waiting for process 4711 on node7, which holds {path}; delete this file if that process is gone"
    assert (path.read_text(), capsys.readouterr().err) == ("4711\nnode7\n", f"vitrine: {line}\n")
    path.unlink()
    assert taken.wait(10)
    waits.join()
    assert not path.exists()
