"""Training on pictures that are decoded as they are needed is training on the same pictures in memory."""

import csv
import json
import os
import shutil
import signal
import time

import pytest
from helpers.levels import slow
from helpers.running import SMALL, descendants, only_run, start_script, wait_until_gone, write_image_folder

from vitrine import compose, fit, resume
from vitrine.data import memory
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.decode import Decoder
from vitrine.errors import DataError
from vitrine.training import load_data as load_data_module

pytestmark = pytest.mark.whole

PICTURES = [*SMALL, "data=imagefolder", "data.root=pictures", "data.image_size=8", "patch=2", "data.batch_size=10"]


@pytest.fixture
def pictures(tmp_path):
    """40 pictures to train on, 40 to test on."""
    write_image_folder(tmp_path / "pictures", "train", "test", size=(12, 10))
    return tmp_path / "pictures"


def outcome(folder):
    """What a run has measured, without what a clock decides."""
    run = only_run(folder)
    with (run / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if not row["images_per_second"]]
    for row in rows:
        del row["seconds"]
    metrics = json.loads((run / "metrics.json").read_text())
    del metrics["train_seconds"]
    return rows, metrics


@pytest.mark.parametrize("device", ["cpu", slow("cpu_ddp")])
def test_streamed_images_train_the_same_as_images_in_memory(train, evaluate, pictures, tmp_path, device):
    overrides = [*PICTURES, f"accelerator={device}"]
    streamed = train(*overrides, "data.storage=disk", "data.workers=2", "paths.output_dir=disk")
    assert streamed.returncode == 0, streamed.stderr
    assert streamed.stderr == ""
    assert not list(tmp_path.glob("**/*.npz.lock")) + list(tmp_path.glob("data/cache/*")), "nothing is cached"
    several = " in each rank" if device == "cpu_ddp" else ""
    line = f"streamed from disk by 2 workers{several}: 15.4 kB, as data.storage=disk requests"
    assert f"images           {line}\n" in streamed.stdout
    facts = json.loads((only_run(tmp_path / "disk") / "run.json").read_text())
    assert facts["storage"] == {"place": "disk", "workers": 2, "line": line}

    read = train(*overrides, "paths.output_dir=memory")
    assert read.returncode == 0, read.stderr
    assert f"images           in memory{several}: 15.4 kB\n" in read.stdout
    facts = json.loads((only_run(tmp_path / "memory") / "run.json").read_text())
    assert facts["storage"]["place"] == "memory"
    assert outcome(tmp_path / "disk") == outcome(tmp_path / "memory")

    if device == "cpu":
        again = evaluate(f"run={only_run(tmp_path / 'disk')}")
        assert again.returncode == 0, again.stderr
        assert f"{outcome(tmp_path / 'disk')[1]['test/acc']:.4f}" in again.stdout


def test_images_are_streamed_automatically_if_memory_is_small(monkeypatch, capsys, pictures, tmp_path):
    overrides = [*PICTURES, f"data.root={pictures}", f"paths.data_dir={tmp_path}"]
    fit(compose([*overrides, f"paths.output_dir={tmp_path / 'memory'}"]))
    assert "in memory: 15.4 kB" in capsys.readouterr().out

    monkeypatch.setattr(memory, "available_memory", lambda: 30_400)
    fit(compose([*overrides, f"paths.output_dir={tmp_path / 'disk'}"]))
    shown = capsys.readouterr().out
    assert "streamed from disk by " in shown
    assert "15.4 kB exceeds the 15.2 kB of memory for images" in shown
    assert outcome(tmp_path / "disk") == outcome(tmp_path / "memory")


@pytest.mark.parametrize("device", ["cpu", slow("cpu_ddp")])
def test_a_damaged_picture_stops_training_with_its_name(train, pictures, tmp_path, device):
    damaged = pictures / "train" / "b" / "7.png"
    damaged.write_bytes(damaged.read_bytes()[:120])
    done = train(*PICTURES, "data.storage=disk", "data.workers=2", f"accelerator={device}")
    assert done.returncode == 1
    rank = "rank 0 of 2: " if device == "cpu_ddp" else ""
    problem = f"vitrine: {rank}pictures/train/b/7.png cannot be decoded as an image: "
    assert done.stderr.splitlines()[-1].startswith(problem)
    assert "Traceback" not in done.stderr
    facts = json.loads((only_run(tmp_path) / "run.json").read_text())
    assert facts["status"] == "failed"
    assert "7.png cannot be decoded" in facts["error"]


def test_a_run_continues_in_the_epoch_in_which_a_picture_was_damaged(pictures, tmp_path, capsys):
    data = [f"data.root={pictures}", "data.storage=disk", "data.workers=1", "data.batch_size=4"]
    trainer = ["trainer.max_epochs=1", "trainer.compile=nothing", "trainer.log_every_n_steps=2"]
    overrides = [*PICTURES, *data, *trainer, "callbacks=[default,ema]"]
    fit(compose([*overrides, f"paths.output_dir={tmp_path / 'whole'}"]))
    damaged = pictures / "train" / "a" / "0.png"  # the thirteenth of the epoch
    content = damaged.read_bytes()
    damaged.write_bytes(content[:120])
    with pytest.raises(DataError, match=r"0\.png cannot be decoded as an image: "):
        fit(compose([*overrides, f"paths.output_dir={tmp_path / 'damaged'}"]))
    run = only_run(tmp_path / "damaged")
    saved = f"step 3 is saved; once the data can be read, resume={run} accept_changed_data=true continues after it"
    assert f"vitrine: {saved}\n" in capsys.readouterr().err
    damaged.write_bytes(content)
    resume(run, accept_changed_data=True)
    assert outcome(tmp_path / "damaged") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("of", ["training images", "its own"])
def test_a_damaged_validation_picture_is_found_before_the_last_step(monkeypatch, pictures, tmp_path, capsys, of):
    """Which can be saved, unlike the end of the epoch before its validation."""
    if of == "its own":
        shutil.copytree(pictures / "test", pictures / "val")
    overrides = [*PICTURES, f"data.root={pictures}", "data.batch_size=4", "trainer.max_epochs=2", "data.workers=1"]
    overrides += [f"paths.cache_dir={tmp_path / 'cache'}", "trainer.compile=nothing", "callbacks=[default,ema]"]
    fit(compose([*overrides, f"paths.output_dir={tmp_path / 'whole'}"]))
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr(load_data_module, "PATIENCE", 0.0)
    data = ImageDataModule(compose(overrides), patience=0.0)
    damaged = data.val.stored.paths[-1]
    content = damaged.read_bytes()
    damaged.write_bytes(content[:120])
    with pytest.raises(DataError, match=rf"{damaged.name} cannot be decoded as an image: "):
        fit(compose([*overrides, f"paths.output_dir={tmp_path / 'damaged'}"]))
    run = only_run(tmp_path / "damaged")
    assert f"vitrine: step {data.steps_per_epoch - 1} is saved; " in capsys.readouterr().err
    damaged.write_bytes(content)
    resume(run, accept_changed_data=True)
    assert outcome(tmp_path / "damaged") == outcome(tmp_path / "whole")


def test_a_first_epoch_that_decodes_trains_the_same_and_fills_the_cache(monkeypatch, capsys, pictures, tmp_path):
    overrides = [*PICTURES, f"data.root={pictures}", f"paths.cache_dir={tmp_path / 'cache'}", "trainer.compile=nothing"]
    monkeypatch.setattr(load_data_module, "PATIENCE", 0.0)
    fit(compose([*overrides, f"paths.output_dir={tmp_path / 'first'}"]))
    assert "in memory: 15.4 kB; 78 images still to be decoded, in the first epoch\n" in capsys.readouterr().out
    assert len(list((tmp_path / "cache").glob("*.npz"))) == 2  # of train and test
    monkeypatch.setattr(Decoder, "read", lambda *_: pytest.fail("decoded again"))
    fit(compose([*overrides, f"paths.output_dir={tmp_path / 'second'}"]))
    assert "in memory: 15.4 kB\n" in capsys.readouterr().out
    assert outcome(tmp_path / "first") == outcome(tmp_path / "second")


@pytest.mark.quick
def test_only_pictures_in_folders_are_streamed(train):
    done = train("data=digits", "data.storage=disk")
    assert done.returncode == 2
    assert (
        "data.storage=disk\n      is for data=imagefolder, csv and huggingface: data=digits is always read into memory"
        in done.stderr
    )


@pytest.mark.parametrize("device", ["cpu", slow("cpu_ddp")])
def test_ctrl_c_finishes_the_step_and_leaves_no_worker(pictures, tmp_path, device):
    overrides = [*PICTURES, f"accelerator={device}", "data.storage=disk", "data.workers=2", "trainer.max_epochs=5000"]
    running = start_script("train.py", *overrides, cwd=tmp_path)
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob("**/best.ckpt")) and time.monotonic() < deadline:
        time.sleep(0.05)
    started = descendants(running.pid)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, err = running.communicate(timeout=300)
    assert running.returncode == 130, err
    stopping, interrupted = err.splitlines()
    assert stopping.startswith("vitrine: stopping after this "), err
    assert interrupted.startswith("vitrine: interrupted; resume with"), err
    assert json.loads((only_run(tmp_path) / "run.json").read_text())["status"] == "interrupted"
    wait_until_gone(started)
