"""Stored predictions are read as they were written; a file that is damaged or unpacks to gigabytes is refused."""

import os
import zipfile

import numpy as np
import pytest

from vitrine.errors import RunError
from vitrine.runs.predictions import MAX_PREDICTIONS, read_groups, read_predictions, write_predictions

LOGITS = np.array([[0.5, -1.5], [2.0, 3.0]], dtype=np.float32)
LABELS = np.array([0, 1])


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "predictions.npz"
    write_predictions(path, {"logits": LOGITS, "labels": LABELS, "labels/above5": 1 - LABELS})
    return path


def test_arrays_are_read_as_they_were_written(path):
    logits, labels, above5 = read_predictions(path, "logits", "labels", "labels/above5")
    assert np.array_equal(logits, LOGITS)
    assert np.array_equal(labels, LABELS)
    assert np.array_equal(above5, 1 - LABELS)
    assert (logits.dtype, labels.dtype) == (np.float32, np.int64)


def test_a_missing_array_is_named(path):
    with pytest.raises(RunError, match=r"cannot read .*predictions\.npz: .*logits/below5"):
        read_predictions(path, "logits/below5")


def test_groups_are_read_if_there_are_any(path):
    assert read_groups(path) is None
    write_predictions(path, {"labels": LABELS, "groups": np.array([7, 3], np.int32)})
    assert read_groups(path).tolist() == [1, 0]


@pytest.mark.parametrize("groups", [np.zeros(3, int), np.zeros((2, 1), int), np.zeros(2), np.array(3)])
def test_groups_that_are_not_of_the_images_are_refused(path, groups):
    write_predictions(path, {"labels": LABELS, "groups": groups})
    with pytest.raises(RunError, match=r"cannot read .*predictions\.npz: groups are (int|float)64 .*, of 2 images"):
        read_groups(path)


def test_a_file_that_unpacks_to_gigabytes_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "predictions.npz"
    block = bytes(2**20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("logits.npy", "labels.npy"):
            with archive.open(name, "w", force_zip64=True) as file:
                for _ in range(8):
                    file.write(block)
    _declare(path, int(MAX_PREDICTIONS))
    with pytest.raises(RunError, match=r"cannot read .*: it unpacks to more than 4 GB"):
        read_predictions(path, "logits", "labels")


def test_no_file_is_written_that_would_not_be_read(path, monkeypatch, capsys):
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    arrays = {"logits": LOGITS, "labels": LABELS, "labels/above5": LABELS}
    monkeypatch.setattr("vitrine.runs.predictions.MAX_PREDICTIONS", size)
    write_predictions(path, arrays)
    assert np.array_equal(read_predictions(path, "labels/above5")[0], LABELS)
    monkeypatch.setattr("vitrine.runs.predictions.MAX_PREDICTIONS", size - 1)
    write_predictions(path, arrays)
    assert not path.exists()
    assert (
        capsys.readouterr().err
        == f"vitrine: predictions.npz is not written, as it would unpack to more than {size - 1} bytes\n"
    )


def _declare(path, size):
    """Let the archive's directory give ``size`` bytes for each of its files, too few for ZIP64."""
    content = path.read_bytes()
    path.write_bytes(content.replace((8 * 2**20).to_bytes(4, "little"), size.to_bytes(4, "little")))


@pytest.mark.parametrize("content", [b"", b"PK", b"x" * 1000], ids=["empty", "begun", "other"])
def test_what_is_no_archive_is_refused(tmp_path, content):
    path = tmp_path / "predictions.npz"
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"cannot read .*predictions\.npz: "):
        read_predictions(path, "logits")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "predictions.npz")
    with pytest.raises(RunError, match="it is not a file"):
        read_predictions(tmp_path / "predictions.npz", "logits")
