"""Files with equal bytes are found in whichever splits they are, and reported before training."""

import re
import shutil

import pytest
from helpers.hub_files import write_hub_dataset
from helpers.running import write_image_folder

from vitrine.data import leakage
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.leakage import TAIL, repeated


def test_equal_files_in_two_splits_are_found_under_any_name(tmp_path):
    contents = {
        "train/a": b"x" * 3 * TAIL,
        "train/b": b"y" + b"x" * (3 * TAIL - 1),  # of equal size and end
        "train/c": b"z" * 9,
        "train/c again": b"z" * 9,
        "val/d": b"x" * 3 * TAIL,
        "val/e": b"w" * 3 * TAIL,
        "test/f": b"z" * 9,
        "test/g": b"",
        "test/h": b"x" * 3 * TAIL,
    }
    entries = []
    for name, content in contents.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        entries.append((path.parent.name, path, b"label"))
    leaked, contradictory = repeated(entries)
    assert {(first.name, second.name) for first, second in leaked} == {("a", "d"), ("a", "h"), ("c", "f")}
    assert contradictory == []
    others = [(split, path, b"other" if path.name in "ch" else label) for split, path, label in entries]
    leaked, contradictory = ({(first.name, second.name) for first, second in pairs} for pairs in repeated(others))
    assert leaked == {("a", "d"), ("c again", "f")}
    assert contradictory == {("a", "h"), ("c", "c again")}


@pytest.fixture
def warnings(tmp_path, compose, capsys):
    """Returns the warnings that the data gives."""

    def load(name, root, *more):
        given = [f"data={name}", f"data.root={root}", "patch=4", "data.image_size=8", *more]
        ImageDataModule(compose(*given, f"paths.cache_dir={tmp_path}/cache"))
        return capsys.readouterr().err

    return load


def test_no_more_is_read_than_a_start_may_take(tmp_path, monkeypatch):
    entries = [(split, tmp_path / f"{split}.bmp", b"") for split in ("train", "test")]
    for _, file, _ in entries:
        file.write_bytes(bytes(2 * TAIL))
    assert len(repeated(entries)[0]) == 1
    monkeypatch.setattr(leakage, "MAX_BYTES", 3 * TAIL)
    assert repeated(entries) == ([], [])
    small = [(split, tmp_path / f"{split} small.bmp", b"") for split in ("train", "test")]
    for _, file, _ in small:
        file.write_bytes(b"small")
    assert repeated([*entries, *small]) == ([(small[0][1], small[1][1])], [])


def test_an_image_of_a_folder_that_is_in_two_splits_is_reported(tmp_path, warnings):
    write_image_folder(tmp_path / "own", "train")
    shutil.copytree(tmp_path / "own/train/a", tmp_path / "own/test/a")
    for number in range(1, 20):
        (tmp_path / f"own/test/a/{number}.png").unlink()
    found = warnings("imagefolder", tmp_path / "own", "data.hold_out=false")
    pair = f"{tmp_path}/own/test/a/0.png = {tmp_path}/own/train/a/0.png"
    assert f"1 image of one split with the bytes of an image of another: {pair}: leakage" in found
    (tmp_path / "own/test/a/0.png").write_bytes((tmp_path / "own/train/a/0.png").read_bytes() + b" ")
    assert warnings("imagefolder", tmp_path / "own") == ""


def test_an_image_of_two_classes_is_reported_in_one_split_too(tmp_path, warnings):
    write_image_folder(tmp_path / "own", "train", "val")
    shutil.copy(tmp_path / "own/train/a/3.png", tmp_path / "own/train/b/copy.png")
    found = warnings("imagefolder", tmp_path / "own")
    pair = f"{tmp_path}/own/train/b/copy.png = {tmp_path}/own/train/a/3.png"
    assert f"own: 1 image with the bytes of an image with another label: {pair}: one of the labels is wrong\n" in found
    assert "leakage" not in found


@pytest.mark.parametrize("more", [["data.val_fraction=0.2"], ["data.folds=5", "data.fold=1"]])
def test_copies_on_both_sides_of_a_validation_split_are_reported(tmp_path, warnings, more):
    write_image_folder(tmp_path, "images")
    rows = ["path,label"]
    for name in ("a", "b"):
        for number in range(20):
            shutil.copy(tmp_path / f"images/{name}/{number}.png", tmp_path / f"images/{name}/copy {number}.png")
            rows += [f"images/{name}/{number}.png,{name}", f"images/{name}/copy {number}.png,{name}"]
    (tmp_path / "list.csv").write_text("\n".join(rows))
    found = re.search(r"warning: .*list\.csv: (\d+) images of one split", warnings("csv", tmp_path / "list.csv", *more))
    assert 0 < int(found[1]) <= 16
    assert warnings("csv", tmp_path / "list.csv", *more, "data.hold_out=false") == "", "they are meant to be the same"


def test_an_image_of_a_hub_dataset_that_is_in_two_splits_is_reported(tmp_path, warnings):
    write_hub_dataset(tmp_path / "hub", train=5, validation=2)
    assert "2 images of one split with the bytes" in warnings("huggingface", tmp_path / "hub")
