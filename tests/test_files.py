"""Files are there whole or not at all."""

import errno
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from vitrine.errors import DiskFull
from vitrine.files import REPLACED, copy, disk_full, move_aside, remove_leftovers, replacing, staging, write_text

KILLED_MIDWAY = """
import os, signal, sys
from pathlib import Path
from vitrine.files import replacing

with replacing(Path(sys.argv[1])) as temporary:
    with temporary.open("w") as file:
        file.write("half of the ne")
        file.flush()
        os.fsync(file.fileno())
        os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fail_midway(path: Path, error: BaseException) -> None:
    with replacing(path) as temporary:
        temporary.write_text("half of the ne")
        raise error


def test_a_write_replaces_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent  # a rename across file systems would be a copy
    assert path.read_text() == "new"
    assert names(tmp_path) == ["file"]


def test_an_error_keeps_the_old_file_and_leaves_no_other(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError):
        fail_midway(path, ZeroDivisionError())
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_an_error_leaves_no_new_file(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fail_midway(tmp_path / "file", KeyboardInterrupt())
    assert names(tmp_path) == []


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED_MIDWAY, str(path)], timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    assert [(tmp_path / name).read_text() for name in names(tmp_path) if name != "file"] == ["half of the ne"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664)])
def test_a_new_file_has_the_default_permissions_and_one_that_is_replaced_keeps_its_own(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_text(tmp_path / "file", "text")
        os.umask(0o077)
        write_text(tmp_path / "file", "by a user who is more careful")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
    (tmp_path / "file").chmod(0o4400)
    write_text(tmp_path / "file", "of a copy that could only be read")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_a_missing_folder_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "no" / "file"):
        pass


def test_text_is_written_as_utf8(tmp_path):
    write_text(tmp_path / "file", "Größe ≥ 1\n")
    assert (tmp_path / "file").read_bytes() == "Größe ≥ 1\n".encode()


def test_a_copy_is_a_file_of_its_own(tmp_path):
    source, path = tmp_path / "last", tmp_path / "best"
    source.write_bytes(os.urandom(100_000))
    path.write_text("older weights")
    copy(source, path)
    assert path.read_bytes() == source.read_bytes()
    assert not path.samefile(source)
    assert names(tmp_path) == ["best", "last"]


def test_without_the_systems_copy_a_file_is_copied_by_reading_it(tmp_path, monkeypatch):
    def refuse(reader, writer, size):
        os.write(writer, b"half")
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    (tmp_path / "last").write_bytes(b"weights")
    copy(tmp_path / "last", tmp_path / "best")
    assert (tmp_path / "best").read_bytes() == b"weights"


def test_a_copy_of_a_missing_file_leaves_the_old_file(tmp_path):
    path = tmp_path / "best"
    path.write_text("old")
    with pytest.raises(FileNotFoundError):
        copy(tmp_path / "last", path)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["best"]


def stage(path: Path, *names: str) -> None:
    """Write a file, or with names a folder of files."""
    with staging(path) as staged:
        assert staged.name == path.name
        if not names:
            staged.write_text("new")
            return
        staged.mkdir()
        for name in names:
            (staged / name).write_text("new")


def test_a_staged_file_or_folder_replaces_what_was_there(tmp_path):
    stage(tmp_path / "a" / "b" / "file")
    stage(tmp_path / "a" / "folder", "one", "two")
    stage(tmp_path / "a" / "folder", "three")
    (tmp_path / "a" / "b" / "file").write_text("old")
    stage(tmp_path / "a" / "b" / "file")
    assert names(tmp_path / "a") == ["b", "folder"]
    assert names(tmp_path / "a" / "folder") == ["three"]
    assert (tmp_path / "a" / "b" / "file").read_text() == "new"


def test_what_killed_writers_left_is_removed_after_a_day(tmp_path):
    for name, age in {".folder.old.partial": 90_000, ".folder.new.partial": 3600, ".other.old.partial": 90_000}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").touch()
        os.utime(tmp_path / name, (0, time.time() - age))
    stage(tmp_path / "folder", "one")
    assert names(tmp_path) == [".folder.new.partial", ".other.old.partial", "folder"]


@pytest.mark.parametrize(
    ("write", "files"),
    [
        (lambda path: write_text(path, "new"), 1),
        (lambda path: stage(path), 1),
        (lambda path: stage(path, "one", "two"), 2),
    ],
    ids=["replacing", "staging", "staging-a-folder"],
)
def test_what_was_written_is_on_disk_before_it_is_renamed_and_the_rename_after(tmp_path, monkeypatch, write, files):
    done, replace = [], os.replace

    def sync(descriptor):
        about = os.fstat(descriptor)
        done.append(("sync", "folder") if stat.S_ISDIR(about.st_mode) else ("sync", about.st_size))

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append(("rename", Path(paths[1]).name)), replace(*paths)))
    write(tmp_path / "written")
    assert done == [*[("sync", len("new"))] * files, ("rename", "written"), ("sync", "folder")]


def fail_in_staging(path: Path) -> None:
    with staging(path) as staged:
        staged.mkdir()
        (staged / "half").touch()
        raise KeyboardInterrupt


def test_an_error_in_staging_leaves_what_was_there_and_no_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").touch()
    with pytest.raises(KeyboardInterrupt):
        fail_in_staging(tmp_path / "folder")
    with pytest.raises(KeyboardInterrupt):
        fail_in_staging(tmp_path / "new" / "deeper" / "folder")
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["old"]


@pytest.mark.parametrize("error", [OSError(errno.EDQUOT, "Disk quota exceeded"), KeyboardInterrupt()], ids=type)
def test_a_folder_that_cannot_be_replaced_stays(tmp_path, monkeypatch, error):
    stage(tmp_path / "folder", "old")
    monkeypatch.setattr(Path, "replace", Mock(side_effect=error))
    with pytest.raises((DiskFull, KeyboardInterrupt)):
        stage(tmp_path / "folder", "new")
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["old"]


def test_a_folder_that_cannot_be_put_back_either_is_not_deleted(tmp_path, monkeypatch, capsys):
    path, rename = tmp_path / "folder", Path.rename
    stage(path, "old")
    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError(errno.EIO, "Input/output error")))

    def move(old, new):
        if new == path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return rename(old, new)

    monkeypatch.setattr(Path, "rename", move)
    with pytest.raises(OSError, match="Input/output error"):
        stage(path, "new")
    (hidden,) = tmp_path.iterdir()
    assert names(hidden / REPLACED) == ["old"]
    line = f"{path} is now {hidden / REPLACED}, as it cannot be put back: Permission denied"
    assert capsys.readouterr().err == f"vitrine: {line}\n"


def test_a_folder_that_a_killed_writer_was_about_to_replace_is_put_back_before_its_leftover_is_removed(tmp_path):
    leftover = tmp_path / ".folder.x1.partial"
    (leftover / REPLACED).mkdir(parents=True)
    (leftover / REPLACED / "old").touch()
    os.utime(leftover, (0, 0))
    with pytest.raises(KeyboardInterrupt):
        fail_in_staging(tmp_path / "folder")
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["old"]


@pytest.mark.parametrize("links", [True, False], ids=["with-hard-links", "without"])
def test_the_file_that_is_replaced_can_be_kept(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", lambda path, target: os.link(target / "no", path))
    last, previous = tmp_path / "last", tmp_path / "previous"
    for number in range(4):
        with replacing(last, keep=previous) as temporary:
            temporary.write_text(f"epoch {number}")
        assert last.read_text() == f"epoch {number}"
        assert not previous.exists() or previous.read_text() == f"epoch {number - 1}"
    assert not last.samefile(previous)
    assert names(tmp_path) == ["last", "previous"]


def test_a_damaged_file_is_kept_under_another_name_each_time(tmp_path):
    for content in ("first", "second", "third"):
        (tmp_path / "last").write_text(content)
        assert move_aside(tmp_path / "last").read_text() == content
    assert names(tmp_path) == ["last.damaged", "last.damaged2", "last.damaged3"]


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path):
    for name in (".a.npz.x1.tmp", ".b.npz.x2.tmp", "a.npz", ".hidden"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path, "a.npz")
    assert names(tmp_path) == [".b.npz.x2.tmp", ".hidden", "a.npz"]


def full_disk(path: Path | None = None) -> OSError:
    return OSError(errno.ENOSPC, "No space left on device", *([str(path)] if path else []))


def test_a_full_disk_is_reported_with_the_file_and_the_space_left(tmp_path):
    with pytest.raises(DiskFull) as error:
        fail_midway(tmp_path / "file", full_disk())
    message = rf"the disk is full: cannot write {tmp_path}/file; [\d.]+ [kMGT]B left on that disk"
    assert re.fullmatch(message, error.value.problem)
    assert names(tmp_path) == []


def test_a_limit_of_file_sizes_is_reported_as_a_full_disk_is(tmp_path):
    with pytest.raises(DiskFull, match=r"is reached \(ulimit -f\): cannot write .*/file; raise it and rerun"):
        fail_midway(tmp_path / "file", OSError(errno.EFBIG, "File too large"))


def test_an_error_names_the_file_and_not_a_temporary_one(tmp_path, monkeypatch):
    def refuse(path, *_):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr("vitrine.files.os.open", refuse)
    with pytest.raises(PermissionError) as error, replacing(tmp_path / "file"):
        pass
    assert error.value.filename == str(tmp_path / "file")


def test_of_several_errors_the_first_full_disk_is_reported(tmp_path):
    """As where a checkpoint does not fit, and then not even the record of that."""
    try:
        raise full_disk(tmp_path / "first")
    except OSError:
        with pytest.raises(DiskFull, match=r"cannot write .*/first;"):
            fail_midway(tmp_path / "second", full_disk())


def test_an_error_that_is_its_own_cause_has_no_endless_history():
    error, effect = ValueError("no"), ValueError("neither")
    effect.__cause__, error.__cause__ = error, effect
    assert disk_full(effect) is None
