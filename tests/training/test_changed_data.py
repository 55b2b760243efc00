"""A run whose data has changed is not resumed, tested or calibrated without ``accept_changed_data``."""

import shutil
from unittest.mock import Mock

import pytest
import torch
from helpers.levels import sampled
from helpers.running import SMALL, write_image_folder
from lightning.pytorch.callbacks import Callback

from vitrine import compose, fit, load_run, resume
from vitrine.cli import compare as compare_command
from vitrine.config import EvalConfig
from vitrine.config.schedule import ScheduleConfig
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.pixel_store import PixelStore
from vitrine.data.workers import WorkerFailed
from vitrine.errors import DataError, Interrupted, RunError
from vitrine.inference.calibrate import calibrate
from vitrine.inference.predictor import Predictor
from vitrine.runs import RunRecord
from vitrine.training.changed_data import check_data, data_facts, record_data
from vitrine.training.evaluate import evaluate_run
from vitrine.training.schedules import learning_rate_factor

COSINE = ScheduleConfig("cosine", warmup=0.1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An image folder with all splits, and a run of two epochs on it."""
    root = tmp_path_factory.mktemp("whole")
    write_image_folder(root / "data", "train", "val", "test", classes=("ant", "bee", "cat"))
    overrides = [*SMALL, "data=imagefolder", "data.image_size=8", "patch=4", f"data.root={root / 'data'}"]
    overrides += [f"paths.output_dir={root}", f"paths.cache_dir={root / 'cache'}", "trainer.compile=nothing"]
    fit(compose(overrides), folder=root / "run")
    return root


@pytest.fixture
def copy(whole, tmp_path):
    """The run as if it had been interrupted, and a copy of its data to be changed."""
    shutil.copytree(whole / "data", tmp_path / "data")
    record = RunRecord(shutil.copytree(whole / "run", tmp_path / "run"))
    record.end("interrupted")
    return record


@pytest.fixture
def again(copy, tmp_path):
    """Resume on the copy of the data."""

    def call(**permissions):
        given = [f"resume={copy.path}", f"data.root={tmp_path / 'data'}", "trainer.max_epochs=3"]
        return resume(copy.path, compose(given), **permissions)

    return call


def halve_training(root):
    for number in range(10):
        (root / "train" / "ant" / f"{number}.png").unlink()


def cut_validation(root):
    shutil.rmtree(root / "val" / "cat")


def rename_class(root):
    for split in ("train", "val", "test"):
        (root / split / "ant").rename(root / split / "dog")


def edit(root, folder="test/bee"):
    (root / folder / "3.png").write_bytes((root / folder / "3.png").read_bytes() + b"\n")


@pytest.mark.whole
@pytest.mark.parametrize(
    ("change", "difference"),
    sampled(
        [
            (halve_training, "train has 50 images, not 60 (ant: 10, not 20)"),
            (cut_validation, "val has 40 images, not 60 (cat: 0, not 20)"),
            (rename_class, "class 0 is bee, not ant, class 1 is cat, not bee and class 2 is dog, not cat"),
            (edit, "test has files of"),
        ],
        every=4,
    ),
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_resuming_on_changed_data_is_refused_and_says_what_differs(copy, again, tmp_path, change, difference):
    change(tmp_path / "data")
    before = (copy.path / "run.json").read_bytes()
    with pytest.raises(RunError) as refused:
        again()
    assert difference in str(refused.value)
    assert ", data.root=DIR, or continue with this data: accept_changed_data=true" in str(refused.value)
    assert (copy.path / "run.json").read_bytes() == before


@pytest.mark.whole
def test_accepted_changes_are_recorded_and_are_the_runs_data_from_then_on(whole, copy, again, tmp_path, capfd):
    halve_training(tmp_path / "data")
    again(accept_changed_data=True)
    assert "warning: the data is not what" in capfd.readouterr().err
    (change,) = copy.facts["data_changes"]
    assert change["changes"] == ["train has 50 images, not 60 (ant: 10, not 20)"]
    assert change["images"]["train"] == 60
    assert copy.facts["images"]["train"] == copy.facts["data_fingerprint"]["train"]["images"] == 50
    copy.end("interrupted")
    again()
    assert len(copy.facts["data_changes"]) == 1
    copy.end("interrupted")
    with pytest.raises(RunError, match="train has 60 images, not 50"):
        resume(copy.path, compose([f"resume={copy.path}", f"data.root={whole / 'data'}", "trainer.max_epochs=3"]))


def a_picture_more(root):
    shutil.copy(root / "train/a/0.png", root / "train/a/more.png")


def another_name(root):
    (root / "train/a/0.png").rename(root / "train/a/z.png")


@pytest.mark.parametrize(
    ("change", "more", "anew"),
    [
        (a_picture_more, "data.val_seed=0", True),
        (another_name, "data.val_seed=0", True),
        (another_name, "data.hold_out=false", False),
        (lambda root: edit(root, "train/a"), "data.val_seed=0", False),
    ],
    ids=["more", "renamed", "memorised", "edited"],
)
def test_validation_images_that_the_run_was_trained_on_are_reported_and_recorded(tmp_path, change, more, anew, capsys):
    write_image_folder(tmp_path / "data")
    folders = [f"data.root={tmp_path / 'data'}", f"paths.cache_dir={tmp_path}"]
    config = compose([*SMALL, "data=imagefolder", "data.image_size=8", "patch=4", *folders, more])
    record = RunRecord(tmp_path / "run")
    record.path.mkdir()
    record.update(**data_facts(ImageDataModule(config)))
    change(tmp_path / "data")
    data = ImageDataModule(config)
    record_data(record, data, check_data(record, data, accept=True))
    note = "; validation images are drawn anew, and the model was trained on some: val/acc is too high\n"
    assert (note in capsys.readouterr().err) is anew
    (recorded,) = record.facts["data_changes"]
    assert any("drawn anew" in found for found in recorded["changes"]) is anew


class StopAfterAnEpoch(Callback):
    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 1:
            raise KeyboardInterrupt


def test_the_schedule_ends_with_the_epochs_of_a_quarter_of_the_images(whole, tmp_path, capfd):
    root = shutil.copytree(whole / "data", tmp_path / "data")
    overrides = [*SMALL, "data=imagefolder", "data.image_size=8", "patch=4", f"data.root={root}", "data.batch_size=5"]
    overrides += ["trainer.max_epochs=3", f"paths.cache_dir={tmp_path}", "trainer.compile=nothing"]
    record = RunRecord(tmp_path / "run")
    with pytest.raises(Interrupted):
        fit(compose(overrides), folder=record.path, callbacks=[StopAfterAnEpoch()])
    for number in range(15):
        for path in (root / "train").glob(f"*/{number}.png"):
            path.unlink()
    resume(record.path, accept_changed_data=True)
    note = "epochs have 3 steps, not 12: schedule=cosine is now that of 18 steps: the learning rate goes from "
    assert note in capfd.readouterr().err
    rates = [(row["step"], row["lr"]) for row in record.history() if "lr" in row]
    assert [step for step, _ in rates] == [12, 15, 18]
    assert rates[-1][1] == pytest.approx(record.config["optimizer"]["lr"] * learning_rate_factor(17, COSINE, 18))


@pytest.mark.whole
def test_a_moved_copy_of_the_data_is_the_same_data(copy, again):
    again()
    assert copy.status == "finished"
    assert "data_changes" not in copy.facts


@pytest.mark.parametrize("folder", ["cache", "gone", "documents"])
def test_testing_writes_no_cache_to_a_folder_that_the_run_names(whole, copy, tmp_path, folder, monkeypatch):
    (tmp_path / "documents").mkdir()
    before = sorted(tmp_path.iterdir())
    named = whole / "cache" if folder == "cache" else tmp_path / folder
    checkpoint = torch.load(copy.best, weights_only=True)
    checkpoint["config"]["paths"]["cache_dir"] = str(named)
    torch.save(checkpoint, copy.best)
    decoded = []
    monkeypatch.setattr(PixelStore, "decode", lambda store, parts: decoded.append(store))
    found = evaluate_run(EvalConfig(run=str(copy.path), accelerator="cpu"))
    assert found["test/loss"] == pytest.approx(copy.final_metrics()["test/loss"], rel=1e-5)
    assert (sorted(tmp_path.iterdir()), list((tmp_path / "documents").iterdir()), decoded) == (before, [], [])


def test_a_failed_worker_is_reported_in_testing_without_a_key_of_training(copy, monkeypatch):
    failure = WorkerFailed("no room", "data.workers=1")
    assert str(failure) == "no room, or try data.workers=1"
    monkeypatch.setattr("vitrine.training.evaluate.ImageDataModule", Mock(side_effect=failure))
    with pytest.raises(DataError, match=r"^no room$"):
        evaluate_run(EvalConfig(run=str(copy.path), accelerator="cpu"))


def test_testing_on_changed_data_is_refused(whole, copy, tmp_path):
    options = EvalConfig(run=str(whole / "run"), data_root=str(tmp_path / "data"))
    halve_training(tmp_path / "data")
    known = evaluate_run(options)  # the test images are the same
    rename_class(tmp_path / "data")
    with pytest.raises(RunError, match=r"class 0 is bee, not ant.*, data_root=DIR, .* accept_changed_data=true"):
        evaluate_run(options)
    options.accept_changed_data = True
    assert evaluate_run(options)["test/acc"] != known["test/acc"]


def test_calibrating_on_changed_data_is_refused(whole, copy, tmp_path):
    run = load_run(whole / "run")
    predictor = Predictor(run.model, run.config, "cpu", run.transform)
    root = str(tmp_path / "data")
    known = calibrate(run, predictor, root).temperature
    cut_validation(tmp_path / "data")
    with pytest.raises(RunError, match=r"val has 40 images, not 60.*, data_root=DIR, "):
        calibrate(run, predictor, root)
    assert calibrate(run, predictor, root, accept_changed_data=True).temperature != known


@pytest.mark.whole
def test_runs_on_other_test_images_are_compared_only_knowingly(whole, copy, again, tmp_path, capsys):
    (tmp_path / "data" / "test" / "ant" / "3.png").rename(tmp_path / "data" / "test" / "ant" / "x.png")
    again(accept_changed_data=True)
    capsys.readouterr()
    arguments = [str(whole / "run"), str(copy.path)]
    with pytest.raises(SystemExit):
        compare_command.main(arguments)
    refused = capsys.readouterr().err
    assert "use different test sets (test has files of other names)" in refused
    assert refused.count("\n") == 1
    compare_command.main([*arguments, "--accept-changed-data"])
    assert "! these runs use different test sets" in capsys.readouterr().out
