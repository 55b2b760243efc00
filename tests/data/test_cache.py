import os

import numpy as np
import pytest

from vitrine.data.cache import cached
from vitrine.errors import DataError

IMAGES = np.arange(48, dtype=np.uint8).reshape(3, 1, 4, 4)


@pytest.fixture
def sources(tmp_path):
    paths = [tmp_path / "one.png", tmp_path / "two.png"]
    for path in paths:
        path.write_bytes(b"picture")
    return paths


@pytest.fixture
def ask(tmp_path, sources):
    """Ask the cache; says whether it had to make the images."""

    def call(settings=None, images=IMAGES, label="digits", folder=tmp_path / "cache", sources=sources):
        made = []

        def make():
            made.append(True)
            return images

        result = cached(folder, label=label, sources=sources, settings=settings or {"size": 4}, make=make)
        assert result.dtype == np.uint8
        np.testing.assert_array_equal(result, images)
        return bool(made)

    return call


@pytest.fixture
def entry(tmp_path, ask):
    """The one entry of a cache."""
    ask()
    (path,) = (tmp_path / "cache").glob("*.npz")
    return path


def test_what_was_made_once_is_not_made_again(ask):
    assert ask()
    assert not ask()
    assert not ask()


def test_other_contents_of_a_source_are_another_entry(ask, sources):
    ask()
    sources[1].write_bytes(b"larger picture")
    assert ask(images=IMAGES + 1)
    assert not ask(images=IMAGES + 1)


def test_another_time_of_change_of_a_source_is_another_entry(ask, sources):
    ask()
    facts = sources[0].stat()
    os.utime(sources[0], ns=(facts.st_atime_ns, facts.st_mtime_ns + 1_000_000))
    assert ask(images=IMAGES + 1)


def test_another_size_of_a_source_is_another_entry_though_its_time_is_the_same(ask, sources):
    ask()
    facts = sources[0].stat()
    sources[0].write_bytes(b"larger picture")
    os.utime(sources[0], ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert ask(images=IMAGES + 1)


def test_other_or_fewer_sources_in_another_order_are_other_entries(ask, sources):
    ask()
    assert ask(sources=sources[:1])
    assert ask(sources=sources[::-1])
    sources[1].rename(sources[1].with_name("three.png"))
    assert ask(sources=[sources[0], sources[1].with_name("three.png")])


def test_other_settings_are_another_entry_and_their_order_is_nothing(ask):
    ask({"size": 4, "channels": 1})
    assert not ask({"channels": 1, "size": 4})
    assert ask({"size": 5, "channels": 1}, images=IMAGES + 1)
    assert not ask({"size": 4, "channels": 1})


def test_an_entry_of_another_key_under_the_same_name_is_not_used(ask, entry):
    np.savez(entry, key=np.array("another"), images=IMAGES + 1)
    assert ask()
    assert not ask()


@pytest.mark.parametrize("kept", [0, 1, 0.5, -1])
def test_a_truncated_entry_is_made_anew(ask, entry, kept):
    whole = entry.read_bytes()
    entry.write_bytes(whole[: int(len(whole) * kept) if 0 < kept < 1 else kept])
    assert ask()
    assert not ask()


def test_garbage_in_place_of_an_entry_is_made_anew(ask, entry):
    for garbage in (b"no archive at all", bytes(1000), b"\x93NUMPY\x01\x00", b"PK\x03\x04" + bytes(100)):
        entry.write_bytes(garbage)
        assert ask(), garbage
    assert not ask()


class Remade(Exception):
    """In place of making images: the entry was found unfit."""


def remake():
    raise Remade


@pytest.mark.filterwarnings("ignore")  # of zipfile and numpy
@pytest.mark.parametrize("mask", [0x01, 0xFF])
def test_no_single_damaged_byte_changes_the_images_or_stops_the_program(tmp_path, sources, entry, mask):
    whole = entry.read_bytes()
    remade = 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= mask
        entry.write_bytes(damaged)
        try:
            found = cached(tmp_path / "cache", label="digits", sources=sources, settings={"size": 4}, make=remake)
            np.testing.assert_array_equal(found, IMAGES)
        except Remade:
            remade += 1
    assert len(whole) / 2 < remade < len(whole)  # times and attributes decide nothing


def test_a_damaged_header_that_leaves_out_images_is_noticed(tmp_path, ask):
    images = np.zeros((9, 1, 100, 100), dtype=np.uint8)
    ask(images=images)
    (path,) = (tmp_path / "cache").glob("*.npz")
    whole = path.read_bytes()
    assert whole.count(b"(9, 1, 100, 100)") == 1
    path.write_bytes(whole.replace(b"(9, 1, 100, 100)", b"(8, 1, 100, 100)"))
    assert ask(images=images)


def test_no_entry_needs_pickle(ask, entry):
    np.savez(entry, key=np.array(["key"], dtype=object), images=IMAGES)
    assert ask()


def test_a_failure_to_make_leaves_no_entry(tmp_path, ask, sources):
    def fail():
        raise DataError("broken picture")

    with pytest.raises(DataError, match="broken picture"):
        cached(tmp_path / "cache", label="digits", sources=sources, settings={"size": 4}, make=fail)
    assert not [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"]
    assert ask()


def test_a_folder_that_cannot_be_written_to_is_an_error_that_says_what_to_set(tmp_path, ask):
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(DataError, match=r"cannot use .*file.* for decoded images: .*set paths\.cache_dir=DIR"):
            ask(folder=folder)
