"""The cache of decoded images: when entries are reused and when they are rebuilt."""

import errno
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from vitrine.data.cache import cached, entry_key
from vitrine.errors import DataError

IMAGES = np.arange(48, dtype=np.uint8).reshape(3, 1, 4, 4)


@pytest.fixture
def sources(tmp_path):
    paths = [tmp_path / "one.png", tmp_path / "two.png"]
    for path in paths:
        path.write_bytes(b"image")
    return paths


@pytest.fixture
def request_images(tmp_path, sources):
    """Request images from the cache; return whether they had to be made."""

    def call(settings=None, images=IMAGES, label="digits", folder=tmp_path / "cache", sources=sources):
        made = []

        def make():
            made.append(True)
            return images

        result = cached(folder, label=label, key=entry_key(sources, settings or {"size": 4}), make=make)
        assert result.dtype == np.uint8
        np.testing.assert_array_equal(result, images)
        return bool(made)

    return call


@pytest.fixture
def entry(tmp_path, request_images):
    """The one entry of a cache."""
    request_images()
    (path,) = (tmp_path / "cache").glob("*.npz")
    return path


def test_images_are_made_once(request_images):
    assert request_images()
    assert not request_images()
    assert not request_images()


def test_changed_content_of_a_source_is_another_entry(request_images, sources):
    request_images()
    sources[1].write_bytes(b"larger image")
    assert request_images(images=IMAGES + 1)
    assert not request_images(images=IMAGES + 1)


def test_another_modification_time_of_a_source_is_another_entry(request_images, sources):
    request_images()
    stat = sources[0].stat()
    os.utime(sources[0], ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
    assert request_images(images=IMAGES + 1)


def test_another_size_of_a_source_is_another_entry(request_images, sources):
    request_images()
    stat = sources[0].stat()
    sources[0].write_bytes(b"larger image")
    os.utime(sources[0], ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert request_images(images=IMAGES + 1)


def test_other_or_fewer_sources_in_another_order_are_other_entries(request_images, sources):
    request_images()
    assert request_images(sources=sources[:1])
    assert request_images(sources=sources[::-1])
    sources[1].rename(sources[1].with_name("three.png"))
    assert request_images(sources=[sources[0], sources[1].with_name("three.png")])


def test_other_settings_are_another_entry_in_whatever_order(request_images):
    request_images({"size": 4, "channels": 1})
    assert not request_images({"channels": 1, "size": 4})
    assert request_images({"size": 5, "channels": 1}, images=IMAGES + 1)
    assert not request_images({"size": 4, "channels": 1})


def test_an_entry_of_another_key_under_the_same_name_is_not_used(request_images, entry):
    np.savez(entry, key=np.array("another"), images=IMAGES + 1)
    assert request_images()
    assert not request_images()


@pytest.mark.parametrize("kept", [0, 1, 0.5, -1])
def test_a_truncated_entry_is_rebuilt(request_images, entry, kept):
    whole = entry.read_bytes()
    entry.write_bytes(whole[: int(len(whole) * kept) if 0 < kept < 1 else kept])
    assert request_images()
    assert not request_images()


def test_garbage_in_place_of_an_entry_is_replaced(request_images, entry):
    for garbage in (b"no archive at all", bytes(1000), b"\x93NUMPY\x01\x00", b"PK\x03\x04" + bytes(100)):
        entry.write_bytes(garbage)
        assert request_images(), garbage
    assert not request_images()


class Remade(Exception):
    """Raised instead of making images: the entry was rejected."""


def remake():
    raise Remade


@pytest.mark.filterwarnings("ignore")  # of zipfile and numpy
@pytest.mark.parametrize("mask", [0x01, 0xFF])
@pytest.mark.whole
def test_no_single_damaged_byte_changes_the_images_or_stops_the_program(tmp_path, sources, entry, mask):
    whole = entry.read_bytes()
    remade = 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= mask
        entry.write_bytes(damaged)
        try:
            found = cached(tmp_path / "cache", label="digits", key=entry_key(sources, {"size": 4}), make=remake)
            np.testing.assert_array_equal(found, IMAGES)
        except Remade:
            remade += 1
    assert len(whole) / 2 < remade < len(whole)  # the rest are timestamps and attributes


def test_a_damaged_header_that_drops_images_is_detected(tmp_path, request_images):
    images = np.zeros((9, 1, 100, 100), dtype=np.uint8)
    request_images(images=images)
    (path,) = (tmp_path / "cache").glob("*.npz")
    whole = path.read_bytes()
    assert whole.count(b"(9, 1, 100, 100)") == 1
    path.write_bytes(whole.replace(b"(9, 1, 100, 100)", b"(8, 1, 100, 100)"))
    assert request_images(images=images)


def test_no_entry_needs_pickle(request_images, entry):
    np.savez(entry, key=np.array(["key"], dtype=object), images=IMAGES)
    assert request_images()


def test_a_process_says_that_it_waits_for_another(request_images, entry, monkeypatch, capsys):
    monkeypatch.setattr("vitrine.data.cache.SILENT_WAIT", 0.1)
    path, held = entry.with_suffix(".lock"), threading.Event()
    entry.unlink()

    def hold():
        with FileLock(path):
            held.set()
            time.sleep(1)

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    assert request_images()
    other.join()
    message = f"vitrine: waiting for another process, which decodes the same images ({path})"
    assert capsys.readouterr().err.splitlines() == [message]


def test_a_failure_to_make_leaves_no_entry(tmp_path, request_images, sources):
    def fail():
        raise DataError("damaged image")

    with pytest.raises(DataError, match="damaged image"):
        cached(tmp_path / "cache", label="digits", key=entry_key(sources, {"size": 4}), make=fail)
    assert not [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"]
    assert request_images()


def test_an_unwritable_folder_is_an_error_that_names_the_key_to_set(tmp_path, request_images):
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(DataError, match=r"cannot cache decoded images in .*file.*: .*set paths\.cache_dir=DIR"):
            request_images(folder=folder)


def test_a_finished_entry_is_read_from_a_folder_that_cannot_be_written_to(request_images, entry, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("vitrine.data.cache.FileLock", refuse)
    assert not request_images()
    with pytest.raises(DataError, match=r"cannot cache decoded images in .*: Permission denied; set paths\.cache_dir"):
        request_images({"size": 5})


def test_an_error_of_decoding_is_not_one_of_the_cache(tmp_path, sources):
    def make():
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with pytest.raises(DataError, match=r"^cannot decode the images: Resource temporarily unavailable$"):
        cached(tmp_path / "cache", label="digits", key=entry_key(sources, {}), make=make)


def test_a_source_that_has_disappeared_is_named(sources):
    sources[1].unlink()
    with pytest.raises(DataError, match=r"two\.png cannot be read: No such file"):
        entry_key(sources, {})


def test_a_change_of_cached_pixels_stays_in_the_process_that_makes_it(request_images, tmp_path, sources, entry):
    found = cached(tmp_path / "cache", label="digits", key=entry_key(sources, {"size": 4}), make=remake)
    found[:] = 0
    assert not request_images()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory map of a process from /proc")
def test_processes_share_cached_pixels(tmp_path, sources):
    images = np.zeros((100, 1, 100, 100), dtype=np.uint8)
    for make in (lambda: images, remake):  # the process that made them, and one that found them
        found = cached(tmp_path / "cache", label="digits", key=entry_key(sources, {}), make=make)
        assert found.sum() == 0
        (path,) = (tmp_path / "cache").glob("*.npz")
        mapped = Path("/proc/self/smaps").read_text().partition(str(path))[2].partition("VmFlags")[0]
        kilobytes = {line.split()[0]: int(line.split()[1]) for line in mapped.splitlines()[1:] if " kB" in line}
        assert kilobytes["Rss:"] >= images.nbytes // 1024
        assert kilobytes["Anonymous:"] == 0  # nothing of this process alone
