"""The commands about data sets, as they are typed."""

import pytest
import yaml
from helpers.mnist_files import write_fashion_mnist
from helpers.running import ROOT, run_script, write_image_folder

from vitrine.cli.channel_statistics import channel_statistics
from vitrine.data.shards import read_shards


def test_a_data_set_is_packed_into_files_of_the_given_size(tmp_path):
    write_fashion_mnist(tmp_path / "data")
    arguments = ["fashion_mnist", "--root", "data", "--to", "packed", "--part-size", "3k"]
    done = run_script("scripts/pack.py", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    folder = tmp_path / "packed" / "fashion_mnist-packed"
    files = ["test-00.npz", "train-00.npz", "train-01.npz", "index.json"]
    assert {line.split()[-1] for line in done.stdout.splitlines()} == {
        f"packed/fashion_mnist-packed/{name}" for name in files
    }
    parts = list(folder.glob("*.npz"))
    assert len(parts) == 3
    assert all(path.stat().st_size <= 3000 for path in parts)
    classes, splits = read_shards(folder, "fashion_mnist")
    assert classes[5:7] == ["Sandal", "Shirt"]
    assert {split: labels.tolist() for split, (_, labels) in splits.items()} == {"train": [5, 6, 7, 8], "test": [5, 6]}


def test_channel_statistics_are_those_of_the_configuration(tmp_path):
    done = run_script("scripts/channel_statistics.py", "data=digits", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    known = yaml.safe_load((ROOT / "conf" / "data" / "digits.yaml").read_text())
    assert yaml.safe_load(done.stdout) == {"mean": known["mean"], "std": known["std"]}


@pytest.mark.parametrize("statistics", [[], ["data.mean=[0.1,0.2,0.3]"]])
def test_statistics_of_other_channels_than_the_data_is_configured_for_need_none_given(tmp_path, statistics):
    write_image_folder(tmp_path / "grey", "train")
    given = ["data=imagefolder", f"data.root={tmp_path / 'grey'}", "data.image_size=8", "data.in_channels=1", "patch=4"]
    mean, std = channel_statistics([*given, f"paths.cache_dir={tmp_path / 'cache'}", *statistics])
    assert len(mean) == len(std) == 1


@pytest.mark.parametrize("storage", ["auto", "disk"])
def test_padding_does_not_count_and_what_does_not_fit_in_memory_is_not_cached(tmp_path, storage):
    write_image_folder(tmp_path / "wide", "train", size=(16, 8))
    given = ["data=imagefolder", f"data.root={tmp_path / 'wide'}", "data.image_size=[8,16]", "patch=4"]
    given += [f"paths.cache_dir={tmp_path / 'cache'}", f"data.storage={storage}"]
    whole = channel_statistics([*given, "data.resize=squash"])
    padded = channel_statistics([*given, "data.resize=pad", "data.image_size=16"])
    assert padded[0] == pytest.approx(whole[0], abs=0.01)
    assert (tmp_path / "cache").exists() is (storage == "auto")
