"""Hugging Face data sets on disk: read as ``datasets`` reads them, and one line for each that cannot be."""

import json
import os
import shutil
from dataclasses import replace

import pyarrow as pa
import pytest
import torch
from helpers.hub_files import write_hub_dataset

from vitrine.data.datasets import load_dataset
from vitrine.data.hub_dataset import HubDataset, _table
from vitrine.data.pixel_store import PixelStore
from vitrine.errors import DataError


@pytest.fixture
def root(tmp_path):
    return write_hub_dataset(tmp_path / "flowers", train=7, validation=3, test=2)


@pytest.fixture
def config(data_config, root):
    return data_config(name="huggingface", root=str(root), image_size=6, in_channels=3, num_classes=2)


def rewrite(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_images_and_labels_come_in_the_order_of_the_rows(config, root, tmp_path):
    found = load_dataset(config, tmp_path / "cache", with_fingerprint=True)
    assert found.classes == ["aster", "rose"]
    assert [len(split) for split in (found.train, found.val, found.test)] == [7, 3, 2]
    assert found.train.labels.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert found.train.images[:, 0, 0, 0].tolist() == [10 * row for row in range(7)]
    assert set(found.fingerprint["train"]) == {"images", "per_class", "labels", "bytes", "sizes"}


def test_streamed_images_are_those_in_memory(config, tmp_path):
    read = load_dataset(config, tmp_path / "cache").train
    unread = load_dataset(config, tmp_path / "none", memory=0).train
    chosen = torch.tensor([5, 0, 5])
    assert torch.equal(unread.images[chosen], read.images[chosen])
    assert not (tmp_path / "none").exists()


def test_compressed_arrow_files_are_read(config, root, tmp_path):
    before = load_dataset(config, tmp_path / "none", memory=0).test.images[torch.arange(2)]
    path = next(root.glob("test/*.arrow"))
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_stream(source).read_all()
    path.unlink()  # it is mapped
    with pa.ipc.new_stream(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(table)
    assert torch.equal(load_dataset(config, tmp_path / "cache").test.images, before)


def test_changed_arrow_files_are_decoded_again(config, root, tmp_path):
    before = load_dataset(config, tmp_path / "cache").test.images
    shutil.rmtree(root)  # otherwise what is mapped changes with the file
    write_hub_dataset(root, train=7, validation=3, test=2, brighter=5)
    for _ in range(2):  # the second time from the cache
        assert torch.equal(load_dataset(config, tmp_path / "cache").test.images, before + 5)


def test_an_arrow_file_that_changes_after_it_was_listed_is_not_cached_as_the_new_one(config, root, tmp_path):
    old = load_dataset(config, memory=0, cache_dir=tmp_path).test.images
    pixels = old[torch.arange(2)]
    write_hub_dataset(tmp_path / "new", train=7, validation=3, test=2, brighter=5)
    arrow = "test/data-00000-of-00001.arrow"
    (tmp_path / "new" / arrow).replace(root / arrow)
    assert PixelStore(old, tmp_path / "cache", 1).complete()  # from the file that was listed
    assert torch.equal(load_dataset(config, tmp_path / "cache").test.images, pixels + 5)
    _table.cache_clear()  # as a process does that is started later
    with pytest.raises(DataError, match=r"arrow has changed since its rows were listed; start again"):
        old[torch.arange(2)]


def with_patients(root, patients):
    shutil.rmtree(root)
    write_hub_dataset(root, train=8, test=4, patients=patients)


def test_a_column_of_texts_or_whole_numbers_tells_groups(config, root, capsys):
    with_patients(root, lambda split, row: {"train": 0, "test": 10}[split] + row // 2)
    load_dataset(config, root.parent, memory=0)
    assert "column patient is not read; data.group=patient keeps" in capsys.readouterr().err
    groups = load_dataset(replace(config, group="patient"), root.parent, memory=0).groups
    assert groups == {"train": ["0", "0", "1", "1", "2", "2", "3", "3"], "test": ["10", "10", "11", "11"]}
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("patients", "column", "message"),
    [
        (lambda split, row: f"P{row}", "patient", r"flowers: 4 groups .* two splits.*: P0 \(train and test\)"),
        (lambda split, row: " " if row == 5 else f"{split}{row}", "patient", r"row 5 of .*arrow: there is no patient"),
        (lambda split, row: None if row == 5 else split, "patient", r"row 5 of .*arrow: there is no patient"),
        (lambda split, row: split, "patiens", r"train has no column patiens of .* patient; did you mean patient\?"),
        (lambda split, row: 0.5, "patient", r"train has no column patient of texts or whole numbers; it has none"),
    ],
    ids=["shared", "blank", "null", "misspelt", "floats"],
)
def test_groups_that_cannot_be_told_are_refused(config, root, patients, column, message):
    with_patients(root, patients)
    with pytest.raises(DataError, match=message):
        load_dataset(replace(config, group=column), root.parent, memory=0)


def test_a_single_split_is_for_training(root):
    assert set(HubDataset.scan(root / "test").splits) == {"train"}


def test_scanning_opens_no_arrow_file(root):
    for path in root.rglob("*.arrow"):
        path.unlink()
    assert HubDataset.scan(root).classes == ["aster", "rose"]


def with_features(features):
    return lambda root: rewrite(root / "train/dataset_info.json", features=features)


def with_offsets_beyond_the_file(root):
    """Offsets of images as a damaged file has them, which would be read as places in memory."""
    path = next(root.glob("train/*.arrow"))
    with pa.memory_map(str(path)) as source:
        offsets = pa.ipc.open_stream(source).read_all()["image"].chunk(0).field("bytes").buffers()[1].to_pybytes()
    content = path.read_bytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, offsets[:4] + (2**30).to_bytes(4, "little") * (len(offsets) // 4 - 1)))


def of_nothing(root):
    """Replaces the training images by rows that take no bytes."""
    path = next(root.glob("train/*.arrow"))
    path.unlink()
    table = pa.table({"image": pa.nulls(10**7), "label": pa.nulls(10**7)})
    with pa.ipc.new_stream(str(path), table.schema) as stream:
        stream.write_table(table)


def as_a_pipe(root):
    path = next(root.glob("train/*.arrow"))
    path.unlink()
    os.mkfifo(path)


def with_column(name, values=None):
    """Replaces a column of the training images' file, or takes it out; dataset_info.json stays."""

    def change(root):
        path = next(root.glob("train/*.arrow"))
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_stream(source).read_all()
        place = table.column_names.index(name)
        table = table.remove_column(place) if values is None else table.set_column(place, name, pa.array(values))
        path.unlink()  # it is mapped
        with pa.ipc.new_stream(str(path), table.schema) as stream:
            stream.write_table(table)

    return change


@pytest.mark.parametrize(("values", "kind"), [(None, "missing"), ([b"\xff"] * 8, "binary")])
def test_a_column_of_groups_that_is_not_as_described_is_named(config, root, values, kind):
    with_patients(root, lambda split, row: f"{split}{row}")
    with_column("patient", values)(root)
    with pytest.raises(DataError, match=rf"train/data-00000-of-00001\.arrow is damaged: its column patient is {kind}"):
        load_dataset(replace(config, group="patient"), root.parent, memory=0)


def without_labels(root):
    write_hub_dataset(root, train=7, test=2, labels=[-1])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda root: (root / "dataset_dict.json").unlink(), "no dataset_dict.json: .*save_to_disk"),
        (lambda root: rewrite(root / "dataset_dict.json", splits=["train", "tests"]), "split tests, .*mean test?"),
        (lambda root: rewrite(root / "dataset_dict.json", splits=["test"]), "no split train; found test"),
        (
            lambda root: rewrite(root / "dataset_dict.json", splits=["train", "test", "test"]),
            "has test and test, of which one at most can be the test split",
        ),
        (lambda root: rewrite(root / "train/dataset_info.json", features={}), "needs one column of images"),
        (
            lambda root: rewrite(
                root / "train/dataset_info.json",
                features={"image": {"_type": "Image"}, "label": {"_type": "Value", "dtype": "string"}},
            ),
            r"column of class labels, type ClassLabel, and has 0; its columns are image \(Image\), label \(Value\); "
            "class_encode_column",
        ),
        (lambda root: (root / "train/state.json").write_text("{"), "state.json is damaged"),
        (lambda root: (root / "train/state.json").write_text("[" * 100_000), "state.json is damaged: it is nested"),
        (lambda root: rewrite(root / "train/state.json", _data_files=5), "_data_files must be a list, not a number"),
        (lambda root: rewrite(root / "train/state.json", _data_files=[{"filename": "/dev/zero"}]), "'/dev/zero'; a fi"),
        (
            lambda root: rewrite(root / "train/state.json", _data_files=[{"filename": "../test/a.arrow"}]),
            "names the file '../test/a.arrow'; a file must be in the folder itself",
        ),
        (lambda root: rewrite(root / "train/state.json", _data_files=[{}]), "names the file None"),
        (lambda root: rewrite(root / "dataset_dict.json", splits=[["train"]]), "an item of splits must be text"),
        (of_nothing, "it claims to have 10,000,000 rows, more than it has bytes"),
        (as_a_pipe, "arrow is damaged: it is not a file"),
        (lambda root: next(root.glob("train/*.arrow")).unlink(), "arrow is missing"),
        (lambda root: next(root.glob("train/*.arrow")).write_bytes(b"nothing"), "arrow is damaged"),
        (with_offsets_beyond_the_file, "arrow is damaged"),
        (with_column("image"), "arrow is damaged: its column image is missing, unlike in dataset_info.json"),
        (with_column("image", [b"image"] * 7), "arrow is damaged: its column image is binary"),
        (with_column("label"), "arrow is damaged: its column label is missing"),
        (with_column("label", ["rose"] * 7), "arrow is damaged: its column label is string"),
        (with_features([]), "features must be an object"),
        (
            with_features({"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": None}}),
            "list of texts",
        ),
        (without_labels, "train has 7 images without a label"),
    ],
)
def test_a_data_set_that_cannot_be_read_is_one_line(config, root, tmp_path, change, problem):
    change(root)
    with pytest.raises(DataError, match=problem.replace("?", r"\?")) as error:
        load_dataset(config, tmp_path / "cache")
    assert "\n" not in str(error.value)


def test_a_damaged_image_is_named_by_its_row(config, root, tmp_path):
    write_hub_dataset(root, train=7, test=2, damaged=3)
    with pytest.raises(DataError, match=r"row 3 of .*train/data-00000-of-00001\.arrow cannot be decoded"):
        load_dataset(config, tmp_path / "cache")
