"""Real ranks that torchrun, srun, or a user's own program has started, compared with ranks that vitrine spawns."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.forking import Forked
from helpers.levels import slow
from helpers.running import ROOT, only_run, run_script, start_script

from vitrine import compose, fit

pytestmark = pytest.mark.whole

OVERRIDES = [
    "model=vit_nano",
    "depth=1",
    "trainer.max_epochs=2",
    "trainer.log_every_n_steps=1",
    "data.batch_size=200",
    "trainer.precision=32-true",
    "accelerator=cpu_ddp",
]
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


@pytest.fixture(scope="module")
def spawned(tmp_path_factory):
    """The run folder of a training in two ranks that vitrine starts itself."""
    return fit(compose([*OVERRIDES, f"paths.output_dir={tmp_path_factory.mktemp('spawned')}"])).run_dir


def weights(run: Path) -> dict[str, torch.Tensor]:
    return torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


def assert_equal_runs(run: Path, other: Path):
    expected, actual = weights(run), weights(other)
    assert expected.keys() == actual.keys()
    assert all(torch.equal(value, actual[name]) for name, value in expected.items())
    metrics = [json.loads((folder / "metrics.json").read_text()) for folder in (run, other)]
    assert all(value == metrics[1][name] for name, value in metrics[0].items() if name != "train_seconds")
    facts = json.loads((other / "run.json").read_text())
    assert (facts["status"], facts["processes"]) == ("finished", 2)


def torchrun(*arguments: str, cwd: Path, ranks: int = 2, options: tuple[str, ...] = ()) -> Forked:
    return start_script(TORCHRUN, f"--nproc-per-node={ranks}", *options, *arguments, cwd=cwd)


SCRIPT = """
import os, signal, sys
import torch
from lightning.pytorch.callbacks import Callback
from vitrine import compose, fit, resume
from vitrine.errors import DataError, Interrupted, RunError
from vitrine.training import load_data

rank = int(os.environ["RANK"])
overrides = sys.argv[1:]

class Broken(Callback):
    def on_train_batch_end(self, trainer, *others):
        if trainer.global_rank == 1:
            raise ValueError("out of luck")

class Stop(Callback):
    def on_train_batch_start(self, trainer, *others):
        if trainer.global_rank == 1 and trainer.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

class NoData(load_data.ImageDataModule):
    def __init__(self, *arguments):
        if rank == 1:
            raise DataError("no images on this machine")
        super().__init__(*arguments)

def attempt(name, work):
    try:
        print(rank, name, "returned", work().run_dir.name, flush=True)
    except (ValueError, DataError, RunError, Interrupted) as error:
        print(rank, name, type(error).__name__, error, flush=True)

loader, load_data.ImageDataModule = load_data.ImageDataModule, NoData
attempt("seeds", lambda: fit(compose([*overrides, f"seed={rank}"])))
attempt("no data", lambda: fit(compose([*overrides, "name=no_data"])))
load_data.ImageDataModule = loader
attempt("broken", lambda: fit(compose([*overrides, "name=broken"]), callbacks=[Broken()]))
attempt("stopped", lambda: fit(compose([*overrides, "name=stopped"]), callbacks=[Stop()]))
(stopped,) = (name for name in sorted(os.listdir("out/runs")) if "stopped" in name)
attempt("resumed", lambda: resume("out/runs/" + stopped))
"""


def test_two_machines_where_a_rank_lacks_data_or_fails_or_is_stopped(tmp_path, spawned):
    """Two torchrun agents, as on two machines. Every rank returns or raises, and the program goes on after that."""
    (tmp_path / "script.py").write_text(SCRIPT)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    agents = [
        torchrun(
            "script.py",
            *OVERRIDES,
            "paths.output_dir=out",
            cwd=tmp_path,
            ranks=1,
            options=(
                "--nnodes=2",
                "--master-addr=127.0.0.1",
                f"--master-port={port}",
                f"--node-rank={rank}",
            ),
        )
        for rank in range(2)
    ]
    (out, err), (other_out, other_err) = (agent.communicate(timeout=300) for agent in agents)
    assert [agent.returncode for agent in agents] == [0, 0], err + other_err
    runs = {path.name.split("_")[2]: path for path in (tmp_path / "out/runs").iterdir()}
    assert set(runs) == {"broken", "stopped"}, "nothing is written before every rank has its data"
    resumable = f"Interrupted interrupted; resume with: resume('{runs['stopped']}')"
    seeds = "seed is 1 on rank 1, and 0 on rank 0; ranks train one run together, with the same configuration"
    for line in (
        f"0 seeds OtherRankFailed rank 1 of 2: {seeds}",
        "0 no data OtherRankFailed rank 1 of 2: no images on this machine",
        "0 broken OtherRankFailed rank 1 of 2: ValueError: out of luck",
        f"0 stopped {resumable}",
        f"0 resumed returned {runs['stopped'].name}",
    ):
        assert line in out.splitlines()
    assert other_out.splitlines() == [
        f"1 seeds RunError {seeds}",
        "1 no data DataError no images on this machine",
        "1 broken ValueError out of luck",
        f"1 stopped {resumable}",
        f"1 resumed returned {runs['stopped'].name}",
    ], "other ranks print nothing themselves"
    assert "rank 1 of 2: ValueError: out of luck" in json.loads((runs["broken"] / "run.json").read_text())["error"]
    assert_equal_runs(spawned, runs["stopped"])


OWN_PROGRAM = """
import os, sys
import torch.distributed as dist
import torch.multiprocessing as mp
from vitrine import compose, fit

def main(rank, overrides):
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=2)
    for seed in (0, 1):
        result = fit(compose([*overrides, f"seed={seed}"]))
        gathered = [None, None]
        dist.all_gather_object(gathered, (str(result.run_dir), result.metrics))  # the caller's group is intact
        assert gathered[0] == gathered[1], gathered
        sys.stdout.write(f"rank {dist.get_rank()} has {result.run_dir.name}\\n")
        sys.stdout.flush()
    dist.destroy_process_group()

if __name__ == "__main__":
    if "RANK" in os.environ:
        main(int(os.environ["RANK"]), sys.argv[1:])
    else:
        mp.spawn(main, (sys.argv[1:],), 2)
"""


@pytest.mark.parametrize("command", [[TORCHRUN, "--nproc-per-node=2"], slow([])], ids=["torchrun", "spawn"])
def test_fit_in_a_users_own_distributed_program(tmp_path, spawned, command):
    """Its process group is used and left as it was, and every rank gets the same result."""
    (tmp_path / "own.py").write_text(OWN_PROGRAM)
    program = str(tmp_path / "own.py")
    done = run_script(*command, program, *OVERRIDES, "paths.output_dir=out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = sorted((tmp_path / "out/runs").iterdir())
    assert len(runs) == 2
    for rank in range(2):
        assert all(f"rank {rank} has {run.name}" in done.stdout for run in runs)
    assert_equal_runs(spawned, next(run for run in runs if "-s0_" in run.name))


KILLED_ONCE = """
import os, signal, sys
from lightning.pytorch.callbacks import Callback
from vitrine import compose, fit

class Kill(Callback):
    def on_train_batch_end(self, trainer, *others):
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        if trainer.global_rank == 1 and (attempt, trainer.global_step) in (("0", 3), ("1", 20)):
            os.kill(os.getpid(), signal.SIGKILL)

overrides = sys.argv[1:]
for seed in (0, 1):
    result = fit(compose([*overrides, f"seed={seed}"]), callbacks=[Kill()] if seed == 1 else [])
    print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], "seed", seed, result.run_dir.name, flush=True)
"""


@pytest.mark.slow
def test_torchrun_restarts_resume_the_same_runs(tmp_path):
    """Killed before the first checkpoint and again in a later epoch; the run before that one is not trained again."""
    (tmp_path / "program.py").write_text(KILLED_ONCE)
    overrides = [*OVERRIDES, "trainer.max_epochs=5"]
    restarted = torchrun("program.py", *overrides, "paths.output_dir=out", cwd=tmp_path, options=("--max-restarts=3",))
    out, err = restarted.communicate(timeout=400)
    assert restarted.returncode == 0, err
    first, second = sorted((tmp_path / "out/runs").iterdir(), key=lambda run: "-s1_" in run.name)
    assert out.count(f"seed 0 {first.name}") == 6, "both ranks, in three attempts"
    assert out.count(f"attempt 2 seed 1 {second.name}") == 2
    facts = json.loads((second / "run.json").read_text())
    assert len(facts["resumed"]) == 2
    assert [start["step"] for start in facts["start_ups"]] == [0, 0, 18]
    assert "resumed" not in json.loads((first / "run.json").read_text())
    undisturbed = fit(compose([*overrides, "seed=1", f"paths.output_dir={tmp_path / 'undisturbed'}"])).run_dir
    assert_equal_runs(undisturbed, second)


ALONE = """
import os, signal, sys
from lightning.pytorch.callbacks import Callback
from vitrine import compose, fit

class Kill(Callback):
    def on_train_batch_end(self, trainer, *others):
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and trainer.global_rank == 0 and trainer.global_step == 9:
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    print("returned", fit(compose(sys.argv[1:]), callbacks=[Kill()]).run_dir.name)
"""


@pytest.mark.slow
@pytest.mark.parametrize("accelerator", ["cpu", "cpu_ddp"])
def test_torchrun_restarts_a_single_process(tmp_path, accelerator):
    """Trained in it, or in two ranks that vitrine spawns from it; killed in the second epoch."""
    (tmp_path / "alone.py").write_text(ALONE)
    overrides = [*OVERRIDES[:-1], f"accelerator={accelerator}", "paths.output_dir=out"]
    running = torchrun("alone.py", *overrides, cwd=tmp_path, ranks=1, options=("--max-restarts=1",))
    out, err = running.communicate(timeout=300)
    assert running.returncode == 0, err
    run = only_run(tmp_path)
    assert out.endswith(f"returned {run.name}\n")
    assert [start["step"] for start in json.loads((run / "run.json").read_text())["start_ups"]] == [0, 6]


DEADLY = """
import os, signal
from lightning.pytorch.callbacks import Callback

class Kill(Callback):
    def on_train_batch_end(self, trainer, *others):
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and trainer.global_rank == 1 and trainer.global_step == 9:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_command_restarted_by_torchrun_after_a_kill(tmp_path, spawned, monkeypatch):
    """``train.py`` itself, a rank killed in the second epoch."""
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    command = [str(ROOT / "train.py"), *OVERRIDES, "callbacks.parts=[deadly.Kill]", "paths.output_dir=killed"]
    running = torchrun(*command, cwd=tmp_path, options=("--max-restarts=3",))
    _, err = running.communicate(timeout=300)
    assert running.returncode == 0, err
    run = only_run(tmp_path / "killed")
    facts = json.loads((run / "run.json").read_text())
    assert len(facts["resumed"]) == 1
    assert [start["step"] for start in facts["start_ups"]] == [0, 6]
    assert_equal_runs(spawned, run)


@pytest.mark.slow
def test_a_sweep_under_torchrun_and_its_rerun(tmp_path):
    """Rank 0 hands out the trials; run again, it hands out none."""
    command = [
        str(ROOT / "train.py"),
        "-m",
        *OVERRIDES,
        "debug.limit_batches=2",
        "optimizer.lr=1e-3,2e-3",
        f"paths.output_dir={tmp_path}",
    ]
    running = torchrun(*command, cwd=tmp_path)
    out, err = running.communicate(timeout=300)
    assert running.returncode == 0, err
    records = [json.loads(path.read_text()) for path in tmp_path.glob("sweeps/*/*/run.json")]
    assert [(record["status"], record["processes"]) for record in records] == [("finished", 2)] * 2
    assert out.count("trial 2 of 2") == 2, "its begin and its end"
    again = torchrun(*command, cwd=tmp_path)
    out, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert "2 already finished" in out
    assert "epoch 1/" not in out


def test_a_configuration_error_is_printed_once(tmp_path):
    """By one of the ranks, and not again after a restart."""
    command = [str(ROOT / "train.py"), *OVERRIDES, "deepth=2", f"paths.output_dir={tmp_path}"]
    done = torchrun(*command, cwd=tmp_path, options=("--max-restarts=1",))
    out, err = done.communicate(timeout=300)
    assert done.returncode != 0
    assert out == ""
    assert err.count("did you mean depth?") == 1
    assert err.count("vitrine: ") == 1, err
    assert list(tmp_path.iterdir()) == []


def test_srun(tmp_path, spawned, slurm):
    """Two tasks of a real Slurm, and an error in their command, which is printed once."""
    command = [
        "srun",
        "--quiet",
        "--ntasks=2",
        sys.executable,
        str(ROOT / "train.py"),
        *OVERRIDES,
        f"paths.output_dir={tmp_path}",
    ]
    mistaken = subprocess.run([*command, "deepth=2"], env=slurm, capture_output=True, text=True, timeout=300)
    assert mistaken.returncode == 2
    assert mistaken.stderr.count("did you mean depth?") == 1
    done = subprocess.run(command, env=slurm, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("epoch 2/2") == 1
    assert_equal_runs(spawned, only_run(tmp_path))
