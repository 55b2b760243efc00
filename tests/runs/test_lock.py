"""One process at a time writes to a run folder, on whichever machine; a dead one does not keep it."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from vitrine.errors import DiskFull, RunError
from vitrine.runs import MetricsFile, RunRecord, lock_file
from vitrine.runs.lock import RunLock, RunLocked, Timing, Watch, lock_state
from vitrine.runs.lock_file import NAME, LockState
from vitrine.runs.process import kernel
from vitrine.signals import restored_handlers

QUICK = Timing(beat=0.05, lease=0.5, settle=0.05)
PATIENT = Timing(beat=0.05, lease=5, settle=0.05)  # for a sign of life of a process that may get no core for a while

# Holds the lock of a folder until it is killed. On another machine, this one does not see the system's lock.
HOLDS = """
import fcntl, os, sys, time
from pathlib import Path
import vitrine.runs.lock as lock_module
from vitrine.runs.lock import RunLock, Timing

folder, machine = Path(sys.argv[1]), sys.argv[2]
if machine:
    def refuse(*_):
        raise OSError("no locks")
    fcntl.flock = refuse
    lock_module.kernel = lambda: machine
lock = RunLock(folder, Timing(beat=0.05))
lock.acquire()
if "forks" in sys.argv and os.fork() == 0:
    time.sleep(60)
    os._exit(0)
try:
    print("held", flush=True)  # inside: it may be stopped and interrupted before it sleeps
    for _ in range(600):  # a signal just before one long sleep would wait for its end
        time.sleep(0.1)
except KeyboardInterrupt:
    try:
        lock.claim.check()
    except Exception as error:
        print(error, flush=True)
"""


@contextmanager
def holder(folder, machine="", *options, prefix=()):
    """Another process that holds the lock, on a machine that is not this one if it has a name."""
    command = [*prefix, sys.executable, "-c", HOLDS, str(folder), machine, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def kill(process):
    process.kill()
    process.wait()


def takes(folder, timing=QUICK, **options):
    """Take the lock and give it back; return the dead holder that it was taken from."""
    lock = RunLock(folder, timing)
    lock.acquire(**options)
    lock.release()
    return lock.taken_from


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    return tmp_path / "run"


def test_the_second_writer_is_told_who_the_first_is_and_a_dead_one_holds_nothing(folder):
    with holder(folder) as process:
        named = rf"run is still running, as process {process.pid} on {socket.gethostname()}, since 20\d\d-"
        for options in ({}, {"force": True}, {"notify": print}):
            with pytest.raises(RunLocked, match=named):
                takes(folder, **options)
        assert lock_state(folder)[0] is LockState.HELD
        kill(process)
    assert lock_state(folder)[0] is LockState.DEAD
    assert takes(folder).pid == process.pid
    assert takes(folder) is None
    assert [path.name for path in folder.iterdir()] == ["run.json"]


def test_a_child_that_outlives_a_killed_holder_does_not_keep_the_lock(folder):
    with holder(folder, "", "forks") as process:
        kill(process)
        assert takes(folder).pid == process.pid


def test_threads_exclude_each_other(folder):
    lock = RunLock(folder)
    lock.acquire()
    with pytest.raises(RunLocked, match=f"process {os.getpid()}"):
        takes(folder)
    lock.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may rename its host")
@pytest.mark.whole
def test_in_a_container_of_the_same_machine_the_holder_is_known_at_once(folder):
    renamed = ["unshare", "--uts", "sh", "-c", 'hostname spot-7 && exec "$@"', "sh"]
    with holder(folder, prefix=renamed) as process:
        with pytest.raises(RunLocked, match=rf"process {process.pid} on spot-7, since"):
            takes(folder, notify=print)
        kill(process)
        assert takes(folder).host == "spot-7"


def test_a_holder_on_another_machine_is_watched_and_taken_over_when_its_lease_is_over(folder):
    lines = []
    with holder(folder, "another machine") as process:
        with pytest.raises(RunLocked) as refused:
            takes(folder)
        assert refused.value.elsewhere
        with pytest.raises(RunLocked, match=f"process {process.pid}"):
            takes(folder, PATIENT, notify=lines.append)
        assert "watching it for a sign of life, up to 5 s (force=true does not wait)" in lines[0]
        kill(process)
    assert lock_state(folder)[0] is LockState.UNKNOWN
    begin = time.monotonic()
    assert takes(folder, notify=lines.append).pid == process.pid
    assert 0.5 < time.monotonic() - begin < 60
    assert len(lines) == 2


def test_force_does_not_wait_and_the_holder_that_lost_the_lock_stops(folder):
    with holder(folder, "another machine") as process:
        process.send_signal(signal.SIGSTOP)
        lock = RunLock(folder, QUICK)
        lock.acquire(force=True)
        process.send_signal(signal.SIGCONT)
        line = process.stdout.readline()
        assert f"was taken over by process {os.getpid()} on" in line
        assert "writes nothing more" in line
        assert lock.claim.taken_by() is None
        lock.release()


def test_a_holder_that_ignores_ctrl_c_and_lost_the_lock_stops_too(folder):
    """As one that was started with & in a job's script."""
    lock = RunLock(folder, QUICK)
    lock.acquire()
    metrics = MetricsFile(RunRecord(folder, lock.claim))
    new = json.loads((folder / NAME).read_text()) | {"host": "node9", "token": "other"}
    with restored_handlers():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        (folder / "new").write_text(json.dumps(new))
        (folder / "new").replace(folder / NAME)
        with pytest.raises(KeyboardInterrupt):
            time.sleep(10)
    with pytest.raises(RunError, match=f"taken over by process {os.getpid()} on node9"):
        metrics.append({"step": 1, "seconds": 0.1})
    assert (folder / "metrics.csv").read_text() == "epoch,step,seconds\n"
    lock.release()


def test_no_clock_but_the_watchers_own_counts(folder, monkeypatch):
    """Neither the times in the file nor the system's time matter, which another machine may set back."""
    with holder(folder, "another machine") as process:
        kill(process)
    monkeypatch.setattr(time, "time", lambda: pytest.fail("a clock that can be set was asked"))
    values = json.loads((folder / NAME).read_text())
    (folder / NAME).write_text(json.dumps(values | {"since": "2099-01-01T00:00:00+00:00"}))
    os.utime(folder / NAME, (4e9, 4e9))
    assert takes(folder, notify=print).since.startswith("2099")


def test_a_watch_counts_from_the_last_change_that_it_saw(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = Watch(120)
    for at, holder_then, expired in ((0, "a", False), (119, "a", False), (120, "a", True), (121, "b", False)):
        now[0] = 100 + at
        assert watch.has_expired(tmp_path, holder_then) is expired
    now[0] += 120
    assert watch.has_expired(tmp_path, "b")
    assert not watch.has_expired(tmp_path / "other", "b")


def test_of_many_that_take_over_a_dead_holders_lock_one_gets_it(folder):
    with holder(folder) as process:
        kill(process)
    left = (folder / NAME).read_bytes()
    for _ in range(4):
        (folder / NAME).write_bytes(left)
        locks, got = [RunLock(folder) for _ in range(6)], []

        def take(lock, got=got):
            try:
                lock.acquire()
                got.append(lock)
            except RunLocked:
                pass

        threads = [threading.Thread(target=take, args=(lock,)) for lock in locks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) == 1
        got[0].release()


def test_without_locks_of_the_file_system_the_process_id_decides(folder, monkeypatch):
    """As on a network file system that is mounted without them."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    with holder(folder) as process:
        monkeypatch.setattr(fcntl, "flock", refuse)
        with pytest.raises(RunLocked, match=f"process {process.pid}"):
            takes(folder)
        kill(process)
        left = json.loads((folder / NAME).read_text())
        assert takes(folder).pid == process.pid
    assert takes(folder) is None
    # In another container of this machine the id may be that of a living process.
    (folder / NAME).write_text(json.dumps(left | {"namespace": "pid:[7]"}))
    assert lock_state(folder)[0] is LockState.UNKNOWN
    with pytest.raises(RunLocked):
        takes(folder)
    assert takes(folder, notify=print).pid == process.pid


def test_a_deleted_lock_file_is_written_again(folder):
    lock = RunLock(folder, QUICK)
    lock.acquire()
    (folder / NAME).unlink()
    while not (folder / NAME).exists():
        time.sleep(0.01)
    with pytest.raises(RunLocked):
        takes(folder)
    lock.release()
    assert lock_state(folder) == (LockState.FREE, None)


@pytest.mark.whole
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[" * 4000, b"\xff" * 9, b'{"pid": 1e999}', b"[]", json.dumps({"pid": "x" * 9999}).encode()],
    ids=["empty", "half", "deep", "not-utf8", "infinite", "list", "huge"],
)
def test_a_lock_file_that_names_nobody_is_watched_like_that_of_another_machine(folder, content):
    (folder / NAME).write_bytes(content)
    with pytest.raises(RunLocked, match="still running, as another process"):
        takes(folder)
    assert takes(folder, notify=print) is None
    (folder / NAME).write_bytes(content)
    assert takes(folder, force=True) is None


def test_a_holders_name_is_printed_without_control_characters(folder):
    values = {"host": "a\x1b[2Jb", "process": "1", "kernel": "other", "since": "s", "token": "t", "pid": 1, "beat": 0}
    (folder / NAME).write_text(json.dumps(values))
    with pytest.raises(RunLocked, match=r"process 1 on a\[2Jb, since s$"):
        takes(folder)


def test_a_folder_that_cannot_be_locked_is_a_run_error(tmp_path):
    with pytest.raises(RunError, match=r"cannot lock .*gone: No such file or directory"):
        takes(tmp_path / "gone")


def test_a_lock_that_finds_no_room_names_the_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("vitrine.runs.lock.write", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(DiskFull, match=f"the disk is full: cannot write {tmp_path}"):
        takes(tmp_path)


def test_an_empty_folder_goes_with_its_lock(tmp_path):
    (tmp_path / "trial").mkdir()
    takes(tmp_path / "trial")
    assert not (tmp_path / "trial").exists()
    assert lock_state(tmp_path / "trial") == (LockState.FREE, None)


def test_the_kernel_is_known_on_linux():
    assert kernel() == (Path("/proc/sys/kernel/random/boot_id").read_text().strip() or socket.gethostname())
    assert lock_file.SIZE_LIMIT > 1000
