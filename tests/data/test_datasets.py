"""Data sets: their content, sizes and splits, and the errors for damaged or missing files."""

import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
import yaml
from filelock import FileLock
from helpers.mnist_files import write_fashion_mnist, write_idx
from PIL import Image
from sklearn.datasets import load_digits

from vitrine.config.schema import DOWNLOADED, SOURCES
from vitrine.data.datasets import DATASETS, FILES, load_dataset, refuse_damaged
from vitrine.errors import DataError

CONF = Path(__file__).parents[2] / "conf" / "data"
CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@pytest.fixture
def read(data_config, tmp_path):
    """Load the data set of a changed configuration."""

    def call(**changes):
        return load_dataset(data_config(**changes), tmp_path / "cache")

    return call


@pytest.fixture
def no_network(monkeypatch):
    """Make servers unreachable and record the requested URLs."""
    requested = []

    def refuse(request, *args, **kwargs):
        requested.append(request.full_url)
        raise URLError("Network is unreachable")

    monkeypatch.setattr("torchvision.datasets.utils.urllib.request.urlopen", refuse)
    return requested


@pytest.fixture
def mnist_raw(shared_data, tmp_path):
    """A copy of MNIST's raw folder, to be damaged."""
    original = shared_data / "MNIST" / "raw"
    if not original.is_dir():
        pytest.skip("there is no copy of MNIST in ../shared/data")
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for path in original.iterdir():
        (raw / path.name).symlink_to(path)
    return raw


def damage(path, change):
    whole = bytearray(path.read_bytes())
    path.unlink()
    path.write_bytes(change(whole))


def flip_a_byte(whole):
    whole[-5] ^= 0xFF
    return whole


def flip_the_kind(whole):
    whole[2] ^= 0xFF
    return whole


def cut_off(whole):
    return whole[: len(whole) // 2]


def empty(whole):
    return b""


def test_every_name_in_the_configuration_has_a_function():
    assert set(DATASETS) == set(SOURCES)
    assert set(FILES) == set(DOWNLOADED), "without its files, a data set is downloaded for a run that others made"


def test_digits_are_those_of_scikit_learn_scaled_to_bytes(read):
    images = read()
    assert images.val is None
    assert images.classes == [str(digit) for digit in range(10)]
    assert (len(images.train), len(images.test)) == (1437, 360)
    full = torch.cat([images.train.images, images.test.images])
    assert full.dtype is torch.uint8
    assert full.shape == (1797, 1, 8, 8)
    assert (full.min(), full.max()) == (0, 255)
    bunch = load_digits()
    pairs = zip(bunch.data.tolist(), bunch.target.tolist(), strict=True)
    expected = sorted([*(round(value * 255 / 16) for value in row), label] for row, label in pairs)
    labels = torch.cat([images.train.labels, images.test.labels])
    given = [[*row, label] for row, label in zip(full.flatten(1).tolist(), labels.tolist(), strict=True)]
    assert sorted(given) == expected  # each image is in exactly one split, with its own label


def test_the_test_digits_are_a_fifth_of_each_class_and_fixed(read):
    images = read()
    train, test = images.train.labels.bincount(), images.test.labels.bincount()
    assert (test / (train + test)).tolist() == pytest.approx([0.2] * 10, abs=0.004)
    digest = hashlib.sha256(images.test.images.numpy().tobytes() + images.test.labels.numpy().tobytes())
    assert digest.hexdigest()[:16] == "99ac20baf448e93e"
    torch.manual_seed(1)
    np.random.seed(1)
    assert torch.equal(read().test.images, images.test.images)


def test_another_number_of_classes_than_a_built_in_data_set_has_is_refused(read):
    with pytest.raises(DataError, match=r"data=digits has 10 classes, not data\.num_classes=5"):
        read(num_classes=5)


def test_another_number_of_channels_than_configured_is_refused(read):
    with pytest.raises(DataError, match=r"data=digits has train images with 1 channel, not data\.in_channels=3"):
        read(in_channels=3)


@pytest.mark.parametrize("size", [5, 8, 32])
def test_images_are_resized_as_by_pillow(read, size):
    small, images = read(), read(image_size=size)
    for ours, given in ((images.train, small.train), (images.test, small.test)):
        assert ours.images.dtype is torch.uint8
        assert torch.equal(ours.labels, given.labels)
        for index in (0, len(given) - 1):
            pillow = Image.fromarray(given.images[index, 0].numpy()).resize((size, size), Image.Resampling.BILINEAR)
            difference = ours.images[index, 0].int() - torch.from_numpy(np.array(pillow)).int()
            assert difference.abs().max() <= 1


def resized_and_cropped(path, size):
    """Scale the shorter side to ``size`` with Pillow, then crop the centre with numpy."""
    image = Image.open(path)
    width, height = image.size
    if width < height:
        width, height = size, round(height * size / width)
    else:
        width, height = round(width * size / height), size
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
    top, left = (height - size) // 2, (width - size) // 2
    return pixels[top : top + size, left : left + size]


@pytest.fixture
def flowers(tmp_path, image_file):
    """Two classes of random image files of several shapes."""
    random = np.random.default_rng(0)
    for split, count in (("train", 3), ("val", 1), ("test", 2)):
        for name in ("aster", "rose"):
            for index, shape in enumerate([(8, 8), (8, 20), (30, 16)][:count]):
                image_file(tmp_path / "data" / split / name / f"{index}.png", random.integers(0, 256, (*shape, 3)))
    return tmp_path / "data"


FOLDER = {"name": "imagefolder", "num_classes": 2, "in_channels": 3}


def test_image_files_are_scaled_by_their_shorter_side_and_centre_cropped(read, flowers):
    images = read(**FOLDER)
    assert images.classes == ["aster", "rose"]
    for split, count in (("train", 3), ("val", 1), ("test", 2)):
        given = getattr(images, split)
        assert given.images.dtype is torch.uint8
        assert given.labels.tolist() == [0] * count + [1] * count
        paths = [flowers / split / name / f"{index}.png" for name in ("aster", "rose") for index in range(count)]
        for path, pixels in zip(paths, given.images, strict=True):
            np.testing.assert_array_equal(pixels.permute(1, 2, 0).numpy(), resized_and_cropped(path, 8), str(path))


def test_image_files_are_decoded_once_and_again_after_a_change(read, flowers, image_file):
    first = read(**FOLDER)
    entries = {path: path.stat().st_mtime_ns for path in (flowers.parent / "cache").glob("*.npz")}
    assert len(entries) == 3
    assert torch.equal(read(**FOLDER).train.images, first.train.images)
    assert {path: path.stat().st_mtime_ns for path in (flowers.parent / "cache").glob("*.npz")} == entries
    image_file(flowers / "train/aster/0.png", np.full((8, 8, 3), 7))
    assert (read(**FOLDER).train.images[0] == 7).all()


def test_files_that_are_left_out_are_reported(read, flowers, capsys):
    (flowers / "train/aster/phone.heic").touch()
    read(**FOLDER)
    warning = f"vitrine: warning: {flowers}: left out: 1 file of another type (.heic); pictures are .bmp, .gif, "
    assert capsys.readouterr().err.startswith(warning)


def test_image_files_are_decoded_to_any_size_and_number_of_channels(read, flowers):
    assert read(**FOLDER).train.images.shape == (6, 3, 8, 8)
    assert read(**FOLDER, image_size=6).train.images.shape == (6, 3, 6, 6)
    grey = read(**FOLDER | {"in_channels": 1}).train.images
    assert grey.shape == (6, 1, 8, 8)
    expected = np.asarray(Image.open(flowers / "train/aster/0.png").convert("L"))
    np.testing.assert_array_equal(grey[0, 0].numpy(), expected)
    alpha = read(**FOLDER | {"in_channels": 4}).train.images
    assert alpha.shape == (6, 4, 8, 8)
    assert (alpha[:, 3] == 255).all()


def test_grey_images_among_coloured_ones_are_repeated_over_the_channels(read, tmp_path, image_file):
    pixels = np.arange(64).reshape(8, 8)
    image_file(tmp_path / "data/train/grey/a.png", pixels)
    image_file(tmp_path / "data/train/red/a.png", np.stack([pixels, 0 * pixels, 0 * pixels], axis=-1))
    images = read(**FOLDER).train.images
    np.testing.assert_array_equal(images[0].numpy(), np.stack([pixels] * 3))
    np.testing.assert_array_equal(images[1].numpy(), np.stack([pixels, 0 * pixels, 0 * pixels]))


def test_image_folders_without_val_or_test_have_no_such_splits(read, tmp_path, image_file):
    for name in ("aster", "rose"):
        image_file(tmp_path / "data" / "train" / name / "a.png", np.zeros((8, 8)))
    images = read(**FOLDER)
    assert images.val is None
    assert images.test is None


def test_files_that_a_csv_file_lists_are_read_like_those_of_folders(read, flowers):
    rows = ["path,label,split"]
    for split, count in (("train", 3), ("val", 1), ("test", 2)):
        rows += [f"{split}/{name}/{index}.png,{name},{split}" for name in ("aster", "rose") for index in range(count)]
    table = flowers / "flowers.csv"
    table.write_text("\n".join(rows))
    expected, listed = read(**FOLDER), read(**FOLDER | {"name": "csv", "root": str(table)})
    assert listed.classes == expected.classes
    for split in ("train", "val", "test"):
        assert torch.equal(getattr(listed, split).images, getattr(expected, split).images)
        assert torch.equal(getattr(listed, split).labels, getattr(expected, split).labels)


def test_classes_that_differ_in_capital_letters_only_are_reported(read, flowers, capsys):
    rows = ["train/aster/0.png,Rose", "train/aster/1.png,aster", "train/rose/0.png,rose"]
    (flowers / "list.csv").write_text("\n".join(["path,label", *rows]))
    read(**FOLDER | {"name": "csv", "root": str(flowers / "list.csv"), "num_classes": 3})
    problem = "classes Rose and rose differ in capital letters only; if they are one class, give them one name"
    assert capsys.readouterr().err == f"vitrine: warning: {flowers / 'list.csv'}: {problem}\n"


@pytest.mark.parametrize(
    ("several", "problem"),
    [
        (False, "aster|rose taken for one label each; data.multi_label=true makes them several labels of an image"),
        (True, "no image of train has several labels, or none; | separates them"),
    ],
)
def test_labels_that_look_like_one_or_several_against_the_configuration_are_reported(
    read, flowers, capsys, several, problem
):
    table = flowers / "flowers.csv"
    third = "" if several else "train/aster/1.png,aster|rose\n"
    table.write_text(f"path,label\ntrain/aster/0.png,aster\ntrain/rose/0.png,rose\n{third}")
    settings = {"name": "csv", "root": str(table), "num_classes": 2 if several else 3, "multi_label": several}
    read(**FOLDER | settings, val_fraction=0)
    assert capsys.readouterr().err == f"vitrine: warning: {table}: {problem}\n"


def test_another_way_to_make_images_square_is_another_entry_of_the_cache(read, flowers):
    padded, cropped = read(**FOLDER | {"resize": "pad"}), read(**FOLDER)
    wide = flowers / "train/aster/1.png"
    np.testing.assert_array_equal(cropped.train.images[1].permute(1, 2, 0).numpy(), resized_and_cropped(wide, 8))
    assert (padded.train.images[1, :, :2] == 128).all(), "the configured mean"
    assert torch.equal(read(**FOLDER | {"resize": "pad"}).train.images, padded.train.images)


@pytest.mark.parametrize("change", [cut_off, empty, lambda whole: b"not an image"])
def test_a_damaged_image_file_is_named(read, flowers, change):
    broken = flowers / "test/rose/1.png"
    damage(broken, change)
    with pytest.raises(DataError, match="cannot be decoded as an image") as error:
        read(**FOLDER)
    assert str(broken) in str(error.value)


def test_another_number_of_classes_than_configured_is_refused(read, flowers):
    with pytest.raises(DataError, match=r"data has 2 classes, not data\.num_classes=10"):
        read(**FOLDER | {"num_classes": 10})


def test_two_channels_are_refused_for_image_files(read, flowers):
    with pytest.raises(DataError, match=r"data\.in_channels=2.*1.*3.*4"):
        read(**FOLDER | {"in_channels": 2})


def test_cifar10_is_read_from_class_folders(read, tmp_path, image_file):
    random = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in CIFAR10:
            image_file(tmp_path / "data/cifar10" / split / name / "a.png", random.integers(0, 256, (32, 32, 3)))
    images = read(name="cifar10", image_size=32, in_channels=3)
    assert images.classes == CIFAR10
    assert images.train.images.shape == images.test.images.shape == (10, 3, 32, 32)
    assert images.train.labels.tolist() == images.test.labels.tolist() == list(range(10))
    expected = np.asarray(Image.open(tmp_path / "data/cifar10/train/cat/a.png"))
    np.testing.assert_array_equal(images.train.images[3].permute(1, 2, 0).numpy(), expected)


def test_mnist_is_complete_and_has_the_statistics_of_its_configuration(read, mnist_raw):
    images = read(name="mnist", root=str(mnist_raw.parents[1]), image_size=28)
    assert images.train.images.shape == (60_000, 1, 28, 28)
    assert images.test.images.shape == (10_000, 1, 28, 28)
    assert images.val is None
    assert images.train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert images.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    counts = images.train.images.flatten().bincount(minlength=256).double()
    levels = torch.arange(256) / 255
    mean = (counts * levels).sum() / counts.sum()
    std = ((counts * (levels - mean) ** 2).sum() / counts.sum()).sqrt()
    known = yaml.safe_load((CONF / "mnist.yaml").read_text())
    assert [round(mean.item(), 4)] == known["mean"]
    assert [round(std.item(), 4)] == known["std"]


@pytest.mark.parametrize("change", [flip_a_byte, flip_the_kind, cut_off, empty])
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"])
def test_a_damaged_file_of_mnist_is_named(read, mnist_raw, name, change):
    damage(mnist_raw / name, change)
    with pytest.raises(DataError, match="is damaged") as error:
        read(name="mnist", root=str(mnist_raw.parents[1]), image_size=28)
    assert str(error.value).startswith(f"{mnist_raw / name} is damaged")
    assert "delete it to download it again" in str(error.value)


def test_a_file_that_another_process_is_still_writing_is_waited_for(tmp_path):
    path, lock, held = tmp_path / "images", tmp_path / ".MNIST.lock", threading.Event()
    path.write_bytes(b"half")
    known = hashlib.md5(b"half and half").hexdigest()

    def write():
        with FileLock(lock):
            held.set()
            time.sleep(0.3)
            path.write_bytes(b"half and half")

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        assert held.wait(60)
        refuse_damaged(path, known, lock)
        writing.result()
    path.write_bytes(b"half and hale")
    with pytest.raises(DataError, match="images is damaged"):
        refuse_damaged(path, known, lock)


def test_a_missing_file_of_mnist_is_downloaded_again(read, mnist_raw, no_network):
    (mnist_raw / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="could not be downloaded"):
        read(name="mnist", root=str(mnist_raw.parents[1]), image_size=28)
    assert no_network


@pytest.mark.parametrize(
    ("name", "label"),
    [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST"), ("cifar10", "CIFAR10"), ("cifar100", "CIFAR100")],
)
def test_missing_data_without_a_network_suggests_what_works_offline(read, no_network, tmp_path, capsys, name, label):
    with pytest.raises(DataError) as error:
        read(name=name, root=str(tmp_path / "nowhere"), image_size=28)
    assert no_network
    message = str(error.value)
    assert message.startswith(f"{label} was not found in {tmp_path / 'nowhere'} and could not be downloaded (")
    assert "offline, use data=digits" in message
    assert capsys.readouterr().out == f"downloading {label} to {tmp_path / 'nowhere'}\n"


def test_a_root_that_cannot_be_created_is_named(read, no_network, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file/data and could not be downloaded"):
        read(name="mnist", root=str(tmp_path / "file" / "data"), image_size=28)


@pytest.fixture
def fashion(tmp_path):
    return write_fashion_mnist(tmp_path / "data")


def test_fashion_mnist_is_read_from_torchvisions_layout(read, fashion):
    images = read(name="fashion_mnist", image_size=28)
    assert images.classes[9] == "Ankle boot"
    assert images.train.labels.tolist() == [5, 6, 7, 8]
    assert images.test.labels.tolist() == [5, 6]
    pixels = np.frombuffer((fashion / "t10k-images-idx3-ubyte").read_bytes()[16:], np.uint8).reshape(2, 1, 28, 28)
    np.testing.assert_array_equal(images.test.images.numpy(), pixels)


@pytest.mark.parametrize("change", [flip_the_kind, cut_off, empty])
@pytest.mark.parametrize("kind", ["images-idx3", "labels-idx1"])
def test_a_damaged_file_of_fashion_mnist_is_an_error_naming_its_folder(read, fashion, kind, change):
    damage(fashion / f"t10k-{kind}-ubyte", change)
    with pytest.raises(DataError, match="is damaged") as error:
        read(name="fashion_mnist", image_size=28)
    assert str(error.value).startswith(str(fashion))


def test_labels_that_do_not_match_the_images_are_an_error(read, fashion):
    write_idx(fashion / "train-labels-idx1-ubyte", np.arange(3))
    with pytest.raises(DataError, match=r"raw is damaged: 4 images, 3 labels up to 2"):
        read(name="fashion_mnist", image_size=28)
    write_idx(fashion / "train-labels-idx1-ubyte", np.array([1, 2, 3, 10]))
    with pytest.raises(DataError, match=r"raw is damaged: 4 images, 4 labels up to 10"):
        read(name="fashion_mnist", image_size=28)
