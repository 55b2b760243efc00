"""A change of a data set changes its fingerprint, and the change is named; a copy of it does not."""

import shutil

import pytest
import torch
from helpers.running import write_image_folder
from PIL import Image

from vitrine.config.schema import DataConfig
from vitrine.data.datasets import load_dataset
from vitrine.data.fingerprint import fingerprint
from vitrine.data.image_dataset import ImageDataset, Split
from vitrine.runs.data_changes import changes, class_changes

CLASSES = ["a", "b"]
COMPOSED, DECOMPOSED = "Dr\u00fcse", "Dru\u0308se"  # one name, as Linux and as a Mac's zip file have it


@pytest.fixture
def read(tmp_path):
    def call(root, **settings):
        config = DataConfig(
            **{"name": "imagefolder", "image_size": 8, "in_channels": 3, "num_classes": 2, "patch_size": 4}
            | {"epochs": 1, "mean": [0.5], "std": [0.5], "flip": False, "root": str(root)}
            | settings
        )
        return load_dataset(config, tmp_path / "cache", with_fingerprint=True).fingerprint

    return call


@pytest.fixture
def root(tmp_path):
    write_image_folder(tmp_path / "data", "train", "val", "test")
    return tmp_path / "data"


def rename(root):
    (root / "val" / "b" / "3.png").rename(root / "val" / "b" / "x.png")


def replace_class(root):
    for split in ("train", "val", "test"):
        (root / split / "a").rename(root / split / "c")


def shrink(root):
    Image.new("RGB", (8, 8)).save(root / "train" / "a" / "3.png")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda root: (root / "train" / "a" / "3.png").unlink(), ["train has 39 images, not 40 (a: 19, not 20)"]),
        (lambda root: shutil.rmtree(root / "val"), ["there is no val split any more"]),
        (
            lambda root: (root / "test" / "a" / "3.png").rename(root / "test" / "b" / "x.png"),
            ["test has other numbers of images in its classes (a: 19, not 20 and b: 21, not 20)"],
        ),
        (
            lambda root: (root / "val" / "b" / "3.png").rename(root / "val" / "b" / "x.png"),
            ["val has files of other names"],
        ),
        (shrink, ["train has files of 10."]),
        (replace_class, [f"{split} has files of other names" for split in ("train", "val", "test")]),
    ],
    ids=["deleted", "without val", "moved", "renamed", "other size", "class renamed"],
)
def test_a_change_of_an_image_folder_is_named(read, root, change, expected):
    before = read(root)
    change(root)
    found = changes(before, read(root), CLASSES)
    assert len(found) == len(expected)
    assert all(text.startswith(start) for text, start in zip(found, expected, strict=True)), found


def test_a_copy_elsewhere_has_the_same_fingerprint_whatever_the_images_are_resized_to(read, root, tmp_path):
    before = read(root)
    copy = shutil.copytree(root, tmp_path / "a copy" / "elsewhere")
    assert read(copy, image_size=16) == before
    assert changes(before, read(copy), CLASSES) == []


def test_a_copy_whose_file_system_spells_names_otherwise_is_the_same_data(read, root, tmp_path):
    copy = shutil.copytree(root, tmp_path / "copy")
    for folder, name in ((root, COMPOSED), (copy, DECOMPOSED)):
        for split in ("train", "val", "test"):
            (folder / split / "a").rename(folder / split / name)
            (folder / split / name / "3.png").rename(folder / split / name / f"{name}.png")
    there, here = read(root), read(copy)
    assert changes(there, here) == changes(here, there) == []
    (copy / "test" / DECOMPOSED / f"{DECOMPOSED}.png").rename(copy / "test" / DECOMPOSED / "x.png")
    assert changes(there, read(copy)) == ["test has files of other names"]


def test_pixels_and_labels_in_memory_have_checksums():
    images = torch.randint(0, 256, (6, 1, 4, 4), dtype=torch.uint8)
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    before = fingerprint(ImageDataset(CLASSES, Split(images, labels), None, None))
    other = images.clone()
    other[5, 0, 3, 3] += 1
    swapped = torch.tensor([1, 1, 1, 0, 0, 0])
    for changed, description in (
        (Split(other, labels), "train has other images"),
        (Split(images, swapped), "train has other labels, or its images in another order"),
        (Split(images[:, :, :2], labels), "train has images of another shape"),
    ):
        assert changes(before, fingerprint(ImageDataset(CLASSES, changed, None, None))) == [description]
    assert changes(before, fingerprint(ImageDataset(CLASSES, Split(images.clone(), labels), None, None))) == []


def test_paths_of_a_csv_file_may_be_relative_and_absolute(read, root, monkeypatch):
    monkeypatch.chdir(root.parent)
    files = [*(root / "train" / "a").iterdir(), *(root / "train" / "b").iterdir()]
    for name in ("relative", "mixed"):
        start = {"a": "data" if name == "relative" else root, "b": "data"}
        rows = [f"{start[file.parent.name]}/train/{file.parent.name}/{file.name},{file.parent.name}" for file in files]
        (root.parent / f"{name}.csv").write_text("\n".join(["path,label", *rows]))
    before = read("relative.csv", name="csv")
    assert read("mixed.csv", name="csv") == before
    (root / "train" / "a" / "3.png").rename(root / "train" / "a" / "x.png")
    (root.parent / "mixed.csv").write_text((root.parent / "mixed.csv").read_text().replace("a/3.png", "a/x.png"))
    assert changes(before, read("mixed.csv", name="csv")) == ["train has files of other names"]


def test_packed_images_are_compared_with_files_by_what_both_have(read, root):
    files = read(root)
    labels = torch.tensor([0] * 20 + [1] * 20)
    split = Split(torch.zeros(40, 3, 8, 8, dtype=torch.uint8), labels)
    packed = fingerprint(ImageDataset(CLASSES, split, split, split))
    assert changes(files, packed) == []
    packed["val"]["images"] = 39
    assert changes(files, packed) == ["val has 39 images, not 40"]


def test_names_of_classes():
    assert class_changes(["cat", "dog"], ["cat", "dog"]) == []
    assert class_changes(["cat", "dog"], ["dog", "eel"]) == ["class 0 is dog, not cat and class 1 is eel, not dog"]
    assert class_changes([COMPOSED, "dog"], [DECOMPOSED, "eel"]) == ["class 1 is eel, not dog"]
    assert class_changes(["cat", "dog", "eel"], ["cat", "dog"]) == ["there are 2 classes, not 3"]
