"""Sharded data sets: written, read back, and refused if damaged."""

import hashlib
import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.running import SMALL, only_run, run_script

from vitrine.data.datasets import at_train_size, load_dataset
from vitrine.data.shards import read_shards, write_shards
from vitrine.errors import DataError

CLASSES = ["left", "right"]


def arrays(count, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8), random.integers(0, 2, count)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """25 training and 7 test images in shards of at most 10."""
    folder = tmp_path_factory.mktemp("packed") / "data" / "cifar10-packed"
    write_shards(
        folder, "cifar10", CLASSES, {"train": arrays(25), "test": arrays(7, seed=1)}, shard_size=10 * 200 + 1024
    )
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "data" / "cifar10-packed")


def test_shards_are_read_back_in_order(whole):
    assert sorted(path.name for path in whole.iterdir()) == [
        "index.json",
        "test-00.npz",
        "train-00.npz",
        "train-01.npz",
        "train-02.npz",
    ]
    shards = list(whole.glob("*.npz"))
    assert len(shards) == 4
    assert all(path.stat().st_size <= 10 * 200 + 1024 for path in shards)
    classes, splits = read_shards(whole, "cifar10")
    assert classes == CLASSES
    assert set(splits) == {"train", "test"}
    for split, expected in (("train", arrays(25)), ("test", arrays(7, seed=1))):
        for array, original in zip(splits[split], expected, strict=True):
            np.testing.assert_array_equal(array, original)


def test_a_data_set_is_loaded_from_shards_in_its_root(folder, data_config, tmp_path):
    config = data_config(name="cifar10", root=str(folder.parent), in_channels=3, num_classes=2)
    images = load_dataset(config, tmp_path / "cache")
    assert images.classes == CLASSES
    assert images.val is None
    for split, (pixels, labels) in ((images.train, arrays(25)), (images.test, arrays(7, seed=1))):
        assert split.images.dtype is torch.uint8
        assert torch.equal(split.images, torch.from_numpy(pixels))
        assert torch.equal(split.labels, torch.from_numpy(labels))
    larger = load_dataset(replace(config, image_size=16), tmp_path / "cache")
    assert larger.train.images.shape == (25, 3, 16, 16)
    with pytest.raises(DataError, match=r"^data.train_size=\[8,16\]: .*/data is packed, as images of one size; train"):
        at_train_size(images.train, replace(config, train_size=[8, 16]))


def test_shards_of_more_classes_than_the_model_has_are_refused(data_config, tmp_path):
    names = [str(number) for number in range(11)]
    write_shards(tmp_path / "cifar10-packed", "cifar10", names, {"train": arrays(3)}, shard_size=10_000)
    with pytest.raises(DataError, match=r"data=cifar10 has 11 classes, not data\.num_classes=10"):
        load_dataset(data_config(name="cifar10", root=str(tmp_path), in_channels=3), tmp_path / "cache")


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)


def from_another_write(path):
    other = path.parent.parent / "other"
    write_shards(other, "cifar10", CLASSES, {"train": arrays(25, seed=5)}, shard_size=10 * 200 + 1024)
    shutil.copy(other / path.name, path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (flip_a_byte, "train-01.npz does not match its SHA-256 checksum"),
        (from_another_write, "train-01.npz does not match its SHA-256 checksum"),
        (lambda path: path.write_bytes(path.read_bytes()[:700]), "train-01.npz does not match its SHA-256 checksum"),
        (lambda path: path.unlink(), "train-01.npz is missing"),
    ],
    ids=["damaged", "mixed", "cut", "missing"],
)
def test_a_damaged_shard_is_named(folder, change, problem):
    change(folder / "train-01.npz")
    with pytest.raises(DataError) as error:
        read_shards(folder, "cifar10")
    assert str(error.value).startswith(f"{folder} is damaged: {problem}")
    assert "Copy it again, or run python scripts/pack.py again" in str(error.value)
    assert "train-00" not in str(error.value)


def test_all_problems_are_reported_at_once(folder):
    flip_a_byte(folder / "train-00.npz")
    (folder / "train-02.npz").unlink()
    (folder / "test-00.npz").unlink()
    with pytest.raises(
        DataError, match=r"train-00\.npz does not match.*; train-02\.npz is missing; test-00\.npz is missing"
    ):
        read_shards(folder, "cifar10")


def replace_shard(path, save=np.savez, **changes):
    """Write another shard, with its checksum in the index."""
    images, labels = arrays(5)
    save(path, **({"images": images, "labels": labels} | changes))
    index = json.loads((path.parent / "index.json").read_text())
    for entry in index["splits"]["train"]:
        if entry["file"] == path.name:
            entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (path.parent / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"save": np.savez_compressed}, r"cannot be read \(it is compressed, and could be of any size"),
        ({"save": lambda path, **_: path.write_bytes(b"PK")}, "cannot be read"),
        ({"images": np.zeros((5, 8, 8), np.uint8)}, r"has images \(5, 8, 8\) uint8; they must be \(N, C, H, W\) uint8"),
        ({"images": np.zeros((5, 3, 8, 8))}, r"has images \(5, 3, 8, 8\) float64"),
        ({"labels": np.zeros(4, np.int64)}, r"has labels \(4,\) int64; they must be \(5,\) int64"),
        ({"labels": np.zeros(5)}, r"has labels \(5,\) float64"),
        ({"labels": np.array([0, 1, -7, 0, 0])}, "has labels from -7 to 1; they must be >= 0 and < 2"),
        ({"labels": np.array([0, 1, 2, 0, 0])}, "has labels from 0 to 2; they must be >= 0 and < 2"),
    ],
)
def test_a_shard_of_others_that_is_none_is_named(folder, changes, problem):
    replace_shard(folder / "train-01.npz", **changes)
    with pytest.raises(DataError, match=rf"is damaged: train-01\.npz {problem}"):
        read_shards(folder, "cifar10")


def test_shards_of_images_of_several_shapes_are_refused(folder):
    replace_shard(folder / "train-01.npz", images=np.zeros((5, 3, 9, 8), np.uint8))
    with pytest.raises(DataError, match="the shards of train have images of several shapes"):
        read_shards(folder, "cifar10")


@pytest.mark.parametrize("file", ["/dev/zero", "../train-00.npz", "inner/train-00.npz", "a\0b"])
def test_a_shard_outside_the_folder_is_not_opened(folder, file):
    index = json.loads((folder / "index.json").read_text())
    index["splits"]["train"][0]["file"] = file
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=r"index\.json names the shard .*; a shard must be in the folder itself"):
        read_shards(folder, "cifar10")


def test_a_shard_that_is_named_twice_is_refused(folder):
    """A small index could otherwise fill the memory with one shard."""
    index = json.loads((folder / "index.json").read_text())
    index["splits"]["train"] += index["splits"]["train"][:1]
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=r"index\.json names 5 shards, of which 4 differ; all must"):
        read_shards(folder, "cifar10")


def test_a_shard_that_is_a_pipe_is_not_read(folder):
    (folder / "train-01.npz").unlink()
    os.mkfifo(folder / "train-01.npz")
    with pytest.raises(DataError, match=r"train-01\.npz is not a file"):
        read_shards(folder, "cifar10")


def test_an_index_without_training_images_is_refused(folder):
    index = json.loads((folder / "index.json").read_text())
    index["splits"]["train"] = []
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=r"index\.json has no shards of train"):
        read_shards(folder, "cifar10")


@pytest.mark.parametrize(
    "content", ["[" * 100_000, "{", "[]", '{"data": "cifar10", "classes": []}', '{"splits": {"train": [{}]}}']
)
def test_a_damaged_index_is_named(folder, content):
    (folder / "index.json").write_text(content)
    with pytest.raises(DataError, match=r"index\.json is damaged"):
        read_shards(folder, "cifar10")


def test_shards_without_an_index_are_incomplete(folder):
    (folder / "index.json").unlink()
    with pytest.raises(DataError, match=r"has no index\.json: writing or copying it was not finished"):
        read_shards(folder, "cifar10")


def test_shards_of_another_data_set_are_refused(folder):
    with pytest.raises(DataError, match=r"index\.json belongs to data=cifar10, not to data=cifar100"):
        read_shards(folder.rename(folder.parent / "cifar100-packed"), "cifar100")


def test_existing_shards_are_not_overwritten(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(DataError, match="already holds a sharded data set; delete the folder"):
        write_shards(folder, "cifar10", CLASSES, {"train": arrays(3)}, shard_size=10_000)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_an_interrupted_write_can_be_repeated(folder):
    (folder / "index.json").unlink()
    write_shards(folder, "cifar10", CLASSES, {"train": arrays(3)}, shard_size=10_000)
    np.testing.assert_array_equal(read_shards(folder, "cifar10")[1]["train"][0], arrays(3)[0])


def test_a_shard_size_below_one_image_is_refused(tmp_path):
    with pytest.raises(DataError, match="shards of 1,000 bytes are too small: one image takes 1,224"):
        write_shards(tmp_path / "x", "cifar10", CLASSES, {"train": arrays(3)}, shard_size=1000)


@pytest.mark.whole
def test_the_command_packs_real_mnist_and_training_reads_it(shared_data, tmp_path):
    script = "scripts/pack.py"
    arguments = ["mnist", "--root", str(shared_data), "--to", "packed", "--part-size"]
    done = run_script(script, *arguments, "20M", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    parts = sorted(path.name for path in (tmp_path / "packed" / "mnist-packed").glob("*.npz"))
    assert parts == ["test-00.npz", "train-00.npz", "train-01.npz", "train-02.npz"]
    assert all(
        str(tmp_path.joinpath("packed", "mnist-packed", name).relative_to(tmp_path)) in done.stdout for name in parts
    )

    again = run_script(script, *arguments, "20M", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (
        1,
        "vitrine: packed/mnist-packed already holds a sharded data set; delete the folder to write it again\n",
    )
    assert "20X is not a size such as 500k, 60M or 2G" in run_script(script, *arguments, "20X", cwd=tmp_path).stderr

    short = ["data=mnist", "data.root=packed", "debug.limit_batches=1", "trainer.max_epochs=1"]
    trained = run_script("train.py", *SMALL, *short, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert json.loads((only_run(tmp_path) / "run.json").read_text())["images"] == {
        "train": 54000,
        "val": 6000,
        "test": 10000,
    }
