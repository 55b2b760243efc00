"""One training in processes that torchrun or srun has started, against one whose processes vitrine starts."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.running import ROOT, only_run

from vitrine import compose
from vitrine.distributed import rendezvous as launching
from vitrine.distributed.hardware import choose
from vitrine.errors import ConfigError
from vitrine.training.fit import fit

WORDS = [
    "model=vit_nano",
    "depth=1",
    "trainer.max_epochs=2",
    "trainer.log_every_n_steps=1",
    "data.batch_size=200",
    "trainer.precision=32-true",
    "accelerator=cpu_ddp",
]


@pytest.fixture(scope="module")
def spawned(tmp_path_factory):
    """The run folder of what vitrine's own two processes train."""
    return fit(compose([*WORDS, f"paths.output_dir={tmp_path_factory.mktemp('spawned')}"])).run_dir


@pytest.fixture
def started(monkeypatch):
    """Has this process be one that torchrun or srun has started, as their variables say."""
    launching.launched.cache_clear()
    yield monkeypatch.setenv
    launching.launched.cache_clear()


def assert_equal_runs(one: Path, other: Path):
    weights = [torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    metrics = [json.loads((run / "metrics.json").read_text()) for run in (one, other)]
    assert all(value == metrics[1][name] for name, value in metrics[0].items() if name != "train_seconds")
    facts = json.loads((other / "run.json").read_text())
    assert (facts["status"], facts["processes"]) == ("finished", 2)


SCRIPT = """
import os, signal, sys
from lightning.pytorch.callbacks import Callback
from vitrine import compose
from vitrine.errors import Interrupted, RunError
from vitrine.training import fit as fitting
from vitrine.training.resume import resume

class Broken(fitting.CleanStop):  # the callback that every process has
    def on_train_batch_end(self, trainer, module, *others):
        if module.config.seed == 1 and trainer.global_rank == 1:
            raise ValueError("out of luck")
        super().on_train_batch_end(trainer, module, *others)

class Stop(Callback):
    def on_train_batch_start(self, trainer, *others):
        if trainer.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

fitting.CleanStop = Broken
words = sys.argv[1:]
try:
    fitting.fit(compose([*words, "name=broken", "seed=1"]))
except RunError as error:
    print("error:", error)
try:
    fitting.fit(compose([*words, "name=stopped"]), callbacks=[Stop()])
except Interrupted as error:
    print("stopped")
    (folder,) = (word.split("=")[1] for word in words if word.startswith("paths.output_dir="))
    (run,) = (one for one in os.listdir(folder + "/runs") if "stopped" in one)
    print("finished", resume(folder + "/runs/" + run).run_dir)
"""


def test_torchrun_on_two_machines(tmp_path, spawned):
    """Two agents, as on two machines: a process that fails, one that is asked to stop, and going on."""
    (tmp_path / "script.py").write_text(SCRIPT)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    meeting = ["--master-addr=127.0.0.1", f"--master-port={port}"]
    agents = [
        subprocess.Popen(
            [*torchrun, *meeting, f"--node-rank={rank}", "script.py", *WORDS, "paths.output_dir=out"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    (out, err), (other_out, other_err) = (agent.communicate(timeout=200) for agent in agents)
    assert [agent.returncode for agent in agents] == [0, 0], err + other_err
    assert "error: process 1 of 2: ValueError: out of luck" in out
    assert other_err.count("process 1 of 2: ValueError: out of luck") == 1
    assert other_out == "", "only the first process shows"
    finished = tmp_path / out.split("finished ")[-1].strip()
    assert "stopped" in out
    assert_equal_runs(spawned, finished)
    (broken,) = (tmp_path / "out/runs").glob("*broken*/run.json")
    assert "out of luck" in json.loads(broken.read_text())["error"]


def test_srun(tmp_path, spawned, slurm):
    """Two tasks of a real Slurm, and a mistake in their command, which is told once."""
    command = [
        "srun",
        "--quiet",
        "--ntasks=2",
        sys.executable,
        str(ROOT / "train.py"),
        *WORDS,
        f"paths.output_dir={tmp_path}",
    ]
    mistaken = subprocess.run([*command, "deepth=2"], env=slurm, capture_output=True, text=True, timeout=200)
    assert mistaken.returncode == 2
    assert mistaken.stderr.count("did you mean depth?") == 1
    done = subprocess.run(command, env=slurm, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("epoch 2/2") == 1
    assert_equal_runs(spawned, only_run(tmp_path))


def test_as_many_devices_as_processes(started):
    for name, value in {"RANK": 0, "WORLD_SIZE": 8, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 4}.items():
        started(name, str(value))
    config = compose([*WORDS, "accelerator=cpu"])
    with pytest.raises(ConfigError, match=r"(?s)torchrun has started 8 processes.*did you mean trainer\.devices=8"):
        choose(config)
    config.trainer.devices = None
    hardware = choose(config)
    assert (hardware.devices, hardware.nodes, hardware.per_node) == (8, 2, 4)


def test_one_process_of_torchrun_is_alone(started):
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}.items():
        started(name, str(value))
    assert launching.launched() is None


@pytest.mark.parametrize("tasks", ["2,1", "2(x2),1"])
def test_machines_with_different_numbers_of_processes(started, tasks):
    for name, value in {"STEP_NUM_TASKS": "3", "STEP_NUM_NODES": "2", "PROCID": "0", "LOCALID": "0"}.items():
        started(f"SLURM_{name}", value)
    started("SLURM_STEP_TASKS_PER_NODE", tasks)
    with pytest.raises(launching.RunError, match="each machine needs as many"):
        launching.launched()
