"""Training in two ranks that vitrine spawns, connected by gloo."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.levels import slow
from helpers.running import ROOT, only_run, run_script, start_script, write_image_folder
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.demos.boring_classes import BoringModel
from torch.multiprocessing.spawn import ProcessExitedException

from vitrine import compose
from vitrine.distributed import spawn
from vitrine.distributed.hardware import choose_hardware
from vitrine.errors import DiskFull, Interrupted
from vitrine.training.trainer import build_trainer

pytestmark = pytest.mark.whole

OVERRIDES = [
    "model=vit_nano",
    "depth=1",
    "trainer.max_epochs=3",
    "trainer.log_every_n_steps=1",
    "data.batch_size=200",
    "trainer.precision=32-true",
]


def start(folder, *overrides):
    return start_script("train.py", *OVERRIDES, f"paths.output_dir={folder}", *overrides, cwd=ROOT)


def history(folder):
    return np.genfromtxt(only_run(folder) / "metrics.csv", delimiter=",", names=True)


def children(pid):
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return [int(child) for child in found.split()]


@pytest.mark.parametrize("group", [slow("digits"), "strong"])
def test_two_ranks_train_the_same_as_one(tmp_path, group):
    in_parts = ("accelerator=cpu_ddp", "trainer.accumulate_grad_batches=2", "logger=wandb", "logger.wandb.mode=offline")
    together = start(tmp_path / "two", *in_parts, f"augment={group}")
    alone = run_script("train.py", *OVERRIDES, "paths.output_dir=one", f"augment={group}", cwd=tmp_path)
    assert (alone.returncode, alone.stderr) == (0, "")
    out, err = together.communicate(timeout=300)
    assert (together.returncode, err) == (0, "")
    assert "2 processes" in out
    assert out.count("epoch 3/3") == 1, "only rank 0 prints"
    one, two = history(tmp_path / "one"), history(tmp_path / "two")
    assert len(one) == len(two)
    for column in ("trainloss", "valloss", "valacc"):
        np.testing.assert_allclose(two[column], one[column], atol=2e-6)
    metrics = [json.loads((only_run(tmp_path / name) / "metrics.json").read_text()) for name in ("one", "two")]
    assert metrics[0]["test/acc"] == metrics[1]["test/acc"]
    assert json.loads((only_run(tmp_path / "two") / "run.json").read_text())["processes"] == 2
    assert len(list(only_run(tmp_path / "two").glob("wandb/*run-*/*.wandb"))) == 1, "only rank 0 logs"


def test_all_ranks_have_the_weights_and_statistics_of_rank_0(tmp_path):
    """Batch normalisation included; otherwise each rank would validate and continue another model."""
    code = f"""
import torch
from vitrine import compose
from vitrine import fit
from vitrine.training import trainer

class Watching(trainer.GracefulStop):  # a callback that every rank has
    def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        if batch_idx == 0:
            self.compare(module)  # the average

    def on_validation_end(self, trainer, module):
        self.compare(module)  # the weights that the next step trains

    def compare(self, module):
        statistics = [one for layer in module.batch_norms for one in layer.buffers()]
        assert sum(one.double().abs().sum() for one in statistics) > 1
        values = torch.cat([one.detach().double().flatten() for one in (*statistics, *module.model.parameters())])
        first, second = module.all_gather(values)
        assert torch.equal(first, second)
        print("the same", flush=True)

trainer.GracefulStop = Watching
if __name__ == "__main__":
    overrides = {OVERRIDES!r} + ["patch_embed=conv_stem", "optimizer=muon", "accelerator=cpu_ddp"]
    overrides += ["callbacks=[default,ema]"]
    overrides += ["paths.output_dir={tmp_path}"]
    fit(compose(overrides))
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    done = run_script(str(script), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the same") == 2 * 3 * 2


def test_a_rank_without_validation_images_takes_part_in_metrics_of_all_images(tmp_path):
    write_image_folder(tmp_path / "pictures", "train", "val", "test", size=(8, 8))
    for path in sorted((tmp_path / "pictures" / "val").rglob("*.png"))[1:]:
        path.unlink()
    pictures = ["data=imagefolder", "data.root=pictures", "data.image_size=8", "patch=4", "data.batch_size=4"]
    done = run_script(
        "train.py",
        *("model=vit_nano", "depth=1", "trainer.max_epochs=1", "trainer.precision=32-true", *pictures),
        *("accelerator=cpu_ddp", "callbacks.metrics=[balanced_acc]"),
        cwd=tmp_path,
    )
    warning = "vitrine: warning: there is no validation image of b (20 in train): metrics say nothing of it\n"
    assert (done.returncode, done.stderr) == (0, warning)
    metrics = json.loads((only_run(tmp_path / "outputs" / "runs") / "metrics.json").read_text())
    assert metrics["val/balanced_acc"] == metrics["val/acc"]


def test_a_sweep_with_two_ranks_runs_each_trial_once(tmp_path):
    short = ("trainer.max_epochs=1", "debug.limit_batches=2")
    running = start(tmp_path, "-m", "accelerator=cpu_ddp", *short, "seed=0,1")
    _, err = running.communicate(timeout=300)
    assert running.returncode == 0, err
    records = [json.loads(path.read_text()) for path in tmp_path.glob("sweeps/*/*/run.json")]
    assert sorted(one["varies"] for one in records) == ["seed=0", "seed=1"]
    assert {one["status"] for one in records} == {"finished"}


def test_ranks_out_of_time_stop_together(tmp_path):
    running = start(tmp_path, "accelerator=cpu_ddp", "trainer.max_time=1s")
    _, err = running.communicate(timeout=300)
    assert running.returncode == 75
    run = only_run(tmp_path)
    assert err == f"vitrine: trainer.max_time is over; resume with: python train.py resume={run}\n"
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    assert (run / "checkpoints" / "last.ckpt").exists()


@pytest.mark.parametrize(
    ("number", "status", "code"), [slow(signal.SIGINT, "interrupted", 130), (signal.SIGKILL, "failed", 1)]
)
def test_a_run_with_a_stopped_or_killed_rank_records_it_and_resumes(tmp_path, number, status, code):
    running = start(tmp_path, "accelerator=cpu_ddp", "trainer.max_epochs=2000")
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob("**/best.ckpt")) and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = [pid for pid in children(running.pid) if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(workers) == 2
    if number == signal.SIGINT:
        os.killpg(running.pid, number)  # as a terminal does: to all of them
    else:
        os.kill(workers[1], number)
    _, err = running.communicate(timeout=300)

    assert running.returncode == code
    assert "Traceback" not in err
    facts = json.loads((only_run(tmp_path) / "run.json").read_text())
    assert facts["status"] == status
    if number == signal.SIGKILL:
        assert "rank 1 of 2 was killed by SIGKILL" in facts["error"]

    epochs = int(np.nanmax(history(tmp_path)["epoch"]))
    again = run_script("train.py", f"resume={only_run(tmp_path)}", f"trainer.max_epochs={epochs + 1}", cwd=ROOT)
    assert again.returncode == 0, again.stderr
    assert json.loads((only_run(tmp_path) / "run.json").read_text())["status"] == "finished"


def fake_spawn(monkeypatch, pids, join, during=lambda: None):
    """Replace the start of the ranks."""

    def started(*_, **__):
        during()
        return SimpleNamespace(pids=lambda: pids, join=join)

    monkeypatch.setattr(spawn, "spawn", started)


@pytest.mark.quick
def test_a_signal_while_ranks_are_started_stops_them(monkeypatch):
    rank = subprocess.Popen(["sleep", "60"])

    def join(grace_period):
        code = rank.wait(timeout=5)
        raise ProcessExitedException("", 0, rank.pid, code, "SIGTERM")

    fake_spawn(monkeypatch, [rank.pid], join, during=lambda: signal.raise_signal(signal.SIGTERM))
    try:
        with pytest.raises(Interrupted):
            spawn.run_all(print, SimpleNamespace(), 1, "cpu")
    finally:
        rank.kill()
        rank.wait()


@pytest.mark.quick
def test_a_full_disk_is_reported_although_a_signal_has_come(monkeypatch):
    """The checkpoint that a message of an interrupted run promises was not written."""

    def join(grace_period):
        signal.raise_signal(signal.SIGTERM)
        raise ProcessExitedException("", 0, 0, spawn.FULL_EXIT_CODE)

    fake_spawn(monkeypatch, [], join)
    with pytest.raises(DiskFull, match=r"cannot write last\.ckpt"):
        spawn.run_all(print, SimpleNamespace(facts={"error": "cannot write last.ckpt"}), 1, "cpu")


@pytest.mark.quick
def test_a_second_ctrl_c_reaches_the_ranks_as_such(monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    with spawn._forwarded_signals() as signals:
        signals.forward_to([7])
        signal.raise_signal(signal.SIGINT)
        assert sent == [(7, signal.SIGTERM)], "a terminal sends SIGINT itself"
        signal.raise_signal(signal.SIGINT)
    assert sent[1:] == [(7, signal.SIGTERM), (7, signal.SIGINT)]


@pytest.mark.quick
def test_lightning_does_not_handle_signals(tmp_path):
    """Its handler of SIGTERM would wait for the other ranks."""

    class Look(Callback):
        def on_train_start(self, *_):
            handlers.append(signal.getsignal(signal.SIGTERM))

    handlers = [signal.getsignal(signal.SIGTERM)]
    config = compose([*OVERRIDES, "accelerator=cpu"])
    run = SimpleNamespace(config=config, hardware=choose_hardware(config), record=SimpleNamespace(path=tmp_path))
    build_trainer(run, None, [Look()], max_steps=1, limit_val_batches=0, logger=False).fit(BoringModel())
    assert len(handlers) == 2
    assert len(set(handlers)) == 1
