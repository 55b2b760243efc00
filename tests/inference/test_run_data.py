"""A run's data is read where the user says it is; what a received run names is not downloaded."""

from dataclasses import replace

import pytest
import torch

from vitrine.config import EvalConfig
from vitrine.data.datasets import DATASETS, digits
from vitrine.errors import ConfigError, DataError, RunError
from vitrine.inference.calibrate import calibrate
from vitrine.inference.predictor import Predictor
from vitrine.inference.run_data import test_images as images_of_test
from vitrine.inference.run_data import validation_images
from vitrine.training.evaluate import evaluate_run


def calibrated(run, root=None, **given):
    return calibrate(run, Predictor(run.model, run.config, "cpu", run.transform), root, **given)


def evaluated(run, root=None):
    checkpoint = torch.load(run.record.best, weights_only=True)
    checkpoint["config"]["data"] |= {name: run.record.config["data"][name] for name in ("name", "root")}
    torch.save(checkpoint, run.record.best)
    return evaluate_run(EvalConfig(run=str(run.record.path), data_root=root, accelerator="cpu"))


@pytest.fixture
def downloads(run, tmp_path, monkeypatch):
    """Folders that a data set would be downloaded to; the run's is ``gone``."""
    config = run.record.path / "config.yaml"
    gone = f"root: {tmp_path / 'gone'}"
    config.write_text(config.read_text().replace("name: digits", "name: mnist").replace("root: data", gone))
    folders = []

    def download(dataset, root, train):
        folders.append(root)
        raise DataError("not downloaded")

    monkeypatch.setattr("vitrine.data.datasets._read_or_download", download)
    return folders


@pytest.mark.parametrize(
    ("read", "advice"),
    [
        (validation_images, ""),
        (images_of_test, "; --data-root DIR names the folder that holds it"),
        (calibrated, "; data_root=DIR names the folder that holds it"),
        (evaluated, "; data_root=DIR names the folder that holds it, or where it is downloaded to"),
    ],
)
def test_data_that_is_missing_where_the_run_names_it_is_not_downloaded(read, advice, run, downloads, tmp_path):
    problem = f"{tmp_path}/gone/MNIST/raw/.*, which the run used, is not there from this folder{advice}$"
    with pytest.raises(DataError, match=problem):
        read(run)
    assert downloads == []


@pytest.mark.parametrize(
    ("read", "advice"),
    [
        (images_of_test, "; --data-root DIR names the folder that holds it"),
        (evaluated, "; data_root=DIR names the folder that holds it"),
    ],
)
def test_pictures_that_have_moved_are_asked_for_by_the_key_that_names_them(read, advice, run, tmp_path):
    config = run.record.path / "config.yaml"
    moved = (
        config.read_text().replace("name: digits", "name: imagefolder").replace("root: data", f"root: {tmp_path}/gone")
    )
    config.write_text(moved)
    problem = f"^{tmp_path}/gone, which the run used, is not there from this folder{advice}$"
    with pytest.raises(DataError, match=problem):
        read(run)


@pytest.mark.parametrize("read", [images_of_test, calibrated])
def test_a_data_set_that_this_version_lacks_is_named(read, run):
    config = run.record.path / "config.yaml"
    config.write_text(config.read_text().replace("name: digits", "name: mnist1d"))
    with pytest.raises(DataError, match=r"^this version of vitrine has no data=mnist1d; did you mean mnist\?$"):
        read(run)


@pytest.mark.parametrize("read", [validation_images, images_of_test, calibrated, evaluated])
def test_data_is_downloaded_to_a_folder_that_the_user_names(read, run, downloads, tmp_path):
    with pytest.raises(DataError, match="not downloaded"):
        read(run, str(tmp_path / "given"))
    assert downloads == [tmp_path / "given"]


def test_without_test_images_those_for_validation_are_measured_as_in_training(run, capsys, monkeypatch):
    monkeypatch.setitem(DATASETS, "digits", lambda config: replace(digits(config), test=None))
    options = EvalConfig(run=str(run.record.path), accelerator="cpu", split="val")
    found = evaluate_run(options)
    for name in ("val/acc", "val/loss"):
        assert found[name] == pytest.approx(run.record.metrics[name], abs=1e-5)
    assert {name.partition("/")[0] for name in found} == {"val"}
    shown = capsys.readouterr().out
    assert f"validation accuracy  {found['val/acc']:.4f}" in shown
    assert "test" not in shown.partition("run folder")[0]
    with pytest.raises(RunError, match=r"has no test images; split=val measures its validation images$"):
        evaluate_run(replace(options, split="test"))


@pytest.mark.parametrize("read", [validation_images, images_of_test, calibrated, evaluated])
def test_a_folder_is_refused_for_data_that_is_read_from_none(read, run):
    with pytest.raises(ConfigError, match=r"data_root=elsewhere\n *has no effect on data=digits"):
        read(run, "elsewhere")


def test_a_temperature_says_whether_its_images_were_trained_on(run, monkeypatch):
    config = run.record.path / "config.yaml"
    config.write_text(config.read_text().replace("hold_out: true", "hold_out: false"))
    assert (
        "144 validation images, on which the model was trained:" in calibrated(run, accept_changed_data=True).lines[0]
    )
    monkeypatch.setattr("vitrine.inference.calibrate.validation_splits", lambda _: ["val"])  # the data's own
    assert "144 validation images:" in calibrated(run, accept_changed_data=True).lines[0]


@pytest.mark.parametrize("read", [validation_images, calibrated])
def test_other_validation_images_of_the_same_training_images_are_noticed(read, run, capsys):
    """As after changes of groups, which a fingerprint does not have."""
    run.record.update(validation="f586ffcd861ec2f5")
    with pytest.raises(RunError, match=r"the validation split is \w{16}, not f586ffcd861ec2f5; validation images are "):
        read(run)
    assert calibrated(run, accept_changed_data=True).temperature != 1
    assert "warning: the data is not what" in capsys.readouterr().err
