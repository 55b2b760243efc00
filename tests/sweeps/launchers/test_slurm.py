"""Trials as jobs of a real Slurm."""

import errno
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from helpers.running import SMALL, start_script
from helpers.searching import TWO, search, train

from vitrine import compose
from vitrine.config.sweep import LauncherConfig
from vitrine.distributed.launch import Launch
from vitrine.distributed.rendezvous import Ranks
from vitrine.errors import ConfigError, DiskFull, Interrupted, RunError
from vitrine.runs import RunRecord
from vitrine.runs.lock import Watch
from vitrine.signals import restored_handlers
from vitrine.sweeps.launchers import slurm as cluster
from vitrine.sweeps.launchers import slurm_job as job
from vitrine.sweeps.launchers.slurm import Resources, resources
from vitrine.sweeps.queue import GridQueue
from vitrine.sweeps.run import _prepare_launcher
from vitrine.sweeps.search_summary import describe_search
from vitrine.sweeps.trial import Trial, locked, read_result
from vitrine.training.fit import fit

LONG = [*SMALL, "trainer.max_epochs=50", "trainer.precision=32-true", "trainer.compile=nothing"]


def command(folder, env, *overrides):
    """Start a sweep with the given overrides in ``folder``."""
    return start_script("train.py", "-m", "launcher.threads=1", "paths.output_dir=out", *overrides, cwd=folder, env=env)


def ended(running, seconds=240):
    out, err = running.communicate(timeout=seconds)
    assert "Traceback" not in err, err
    return running.returncode, out, err


def until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.1)
    return found


def weights(run):
    return torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


@pytest.mark.whole
def test_a_preempted_job_is_resumed_from_its_checkpoint(tmp_path, slurm):
    """It is stopped with a grace time, then preempted without one, after the command that submitted it has ended.

    The command runs within a job, and after ``su``, which keeps the LOGNAME of another user.
    """
    shell = {**slurm, "SLURM_MEM_PER_CPU": "100", "SBATCH_JOB_NAME": "bash", "LOGNAME": "daemon"}

    def ask(*command):
        return subprocess.run(command, env=slurm, capture_output=True, text=True, check=True).stdout

    def jobs():
        return dict(line.split() for line in ask("squeue", "--array", "--noheader", "--format=%i %T").splitlines())

    overrides = [*LONG, "seed=0,1", "hydra/launcher=slurm", "launcher.workers=1"]
    first = command(tmp_path, shell, *overrides)
    until(lambda: list(tmp_path.glob("out/sweeps/*/*/checkpoints/last.ckpt")))
    first.send_signal(signal.SIGINT)
    code, out, err = ended(first)
    assert code == 130
    assert "rerun the same command to continue" in err

    (sweep,) = tmp_path.glob("out/sweeps/*")
    job, waiting = sorted(jobs())
    assert f"2 jobs left with Slurm; to cancel: scancel {job.removesuffix('_0')}\n" in out
    assert (jobs()[job], jobs()[waiting]) == ("RUNNING", "PENDING")
    second = command(tmp_path, shell, *overrides)
    until(lambda: "2 jobs submitted earlier" in second.printed()[0])
    ask("scancel", waiting)
    ask("scancel", "--signal=TERM", job)  # as at the start of a grace time, or before the job's time limit
    until(lambda: jobs()[job] == "PENDING")
    until(lambda: jobs()[job] == "RUNNING")
    (run,) = sweep.glob("seed-0_*/")
    before = (run / "metrics.csv").stat().st_size
    until(lambda: (run / "metrics.csv").stat().st_size > before)
    ask("sbatch", "--partition=urgent", "--cpus-per-task=4", "--output=/dev/null", "--wrap=true")

    code, out, err = ended(second)
    assert (code, "1 job was stopped" in out) == (130, True), out + err
    assert "trial 1 of 2 finished" in out
    said = next(sweep.glob(f"jobs/*/{job}_0_log.out")).read_text()
    assert said.count("Loading pickle") == 3
    assert "DUE TO PREEMPTION" in said
    assert (sweep / "logs" / f"{run.name}.txt").read_text().count("epoch 50/50") == 1
    alone = fit(compose([*LONG, "seed=0", f"paths.output_dir={tmp_path}/alone"])).run_dir
    assert all(torch.equal(value, weights(run)[name]) for name, value in weights(alone).items())


@pytest.mark.whole
def test_slurm_s_reason_for_rejecting_jobs_is_printed_once(tmp_path, slurm):
    code, _, err = ended(
        command(tmp_path, slurm, *SMALL, "hydra/launcher=slurm", "seed=0,1", "launcher.partition=nope")
    )
    assert code == 1
    assert err.count("Invalid partition name") == 1


@pytest.mark.whole
def test_a_host_without_slurm_is_refused(tmp_path):
    code, _, err = ended(
        command(tmp_path, {**os.environ, "PATH": "/nowhere"}, *SMALL, "hydra/launcher=slurm", "seed=0")
    )
    assert code == 2
    assert "sbatch is not installed here" in err
    assert "hydra/launcher=process" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("overrides", "settings", "needed"),
    [
        ([], {}, Resources(4, 0, 4)),
        (["accelerator=cpu_ddp"], {"threads": 3}, Resources(6, 0, 6)),
        (["accelerator=auto"], {"gpus": 1}, Resources(4, 1, 4)),
        (["trainer.accelerator=gpu", "trainer.devices=2"], {}, Resources(8, 2, 4)),
    ],
)
def test_the_resources_of_a_job(overrides, settings, needed):
    config = compose([override for override in overrides if "gpu" not in override])
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "trainer.accelerator":
            config.trainer.accelerator = value
        elif key == "trainer.devices":
            config.trainer.devices = int(value)
    assert resources(config, LauncherConfig(**settings)) == needed


def test_all_gpus_of_an_unknown_node_cannot_be_asked_for():
    config = compose(["accelerator=cpu"])
    config.trainer.accelerator, config.trainer.devices = "gpu", None
    with pytest.raises(ConfigError, match="the number of GPUs per job"):
        resources(config, LauncherConfig())


class RecordingQueue:
    """Records what it is given."""

    def __init__(self):
        self.results, self.returned = [], []
        self.watch = Watch()

    def tell(self, trial, result):
        self.results.append(result)

    def put_back(self, trial):
        self.returned.append(trial)


@pytest.fixture
def trial(tmp_path):
    return Trial(
        number=0, config=compose(["model=vit_nano"]), varies={"seed": "0"}, folder=tmp_path / "sweep" / "seed=0"
    )


@pytest.fixture
def inside(monkeypatch):
    """The job 7_0 as Slurm sees it: its state, and the commands that it gives."""
    seen = SimpleNamespace(state="RUNNING", commands=[])

    def run(command, **options):
        seen.commands.append(command)
        return SimpleNamespace(stdout=f"{seen.state}\n")

    monkeypatch.setattr(job, "redirect_output", lambda trial: None)
    monkeypatch.setattr(job.subprocess, "run", run)
    monkeypatch.setattr(job.submitit, "JobEnvironment", lambda: SimpleNamespace(job_id="7_0"))
    with restored_handlers():
        yield seen


@pytest.mark.parametrize(
    ("before", "state", "status", "error"),
    [
        ("new", "OUT_OF_MEMORY", "failed", "ran out of memory; launcher.mem_gb=N"),
        ("new", "TIMEOUT", "failed", "before it could save"),
        ("new", "NODE_FAIL", "failed", "lost its node"),
        ("new", "FAILED", "failed", "ended without a result; see"),
        ("new", "CANCELLED", "new", ""),
        ("interrupted", "OUT_OF_MEMORY", "failed", "ran out of memory; launcher.mem_gb=N"),
        ("interrupted", "FAILED", "failed", "ended without a result; see"),
        ("interrupted", "COMPLETED", "interrupted", ""),
        ("interrupted", "PREEMPTED", "interrupted", ""),
    ],
)
def test_the_state_of_a_job_without_a_result_explains_the_failure(trial, left, before, state, status, error):
    """A resumed job may die before it has begun to train: the trial is still what the job before it left."""
    if before != "new":
        left(trial, before)
    queue = RecordingQueue()
    cluster._collect(queue, trial, state, trial.folder / "1_0_log.out")
    (result,) = queue.results
    assert result.status == status
    assert error in result.error


def test_the_result_of_a_job_is_passed_on(trial, tmp_path):
    queue = RecordingQueue()
    with locked(trial):
        cluster._collect(queue, trial, "COMPLETED", tmp_path / "1_0_log.out")
    assert queue.returned == [trial], "another process is training it"
    trial.folder.mkdir(parents=True)
    RunRecord(trial.folder).end("pruned", "at epoch 3")
    cluster._collect(queue, trial, "COMPLETED", tmp_path / "1_0_log.out")
    assert [(result.status, result.error) for result in queue.results] == [("pruned", "at epoch 3")]


def test_a_job_that_was_cancelled_after_its_trial_had_ended_is_not_reported(monkeypatch, trial, tmp_path, capsys):
    monkeypatch.setattr(cluster, "MAX_POLL_SECONDS", 0.0)
    scheduler = SimpleNamespace(
        folder=tmp_path,
        find_submitted=dict,
        submit=lambda trials: dict(zip("1", trials, strict=False)),
        states=lambda jobs: dict.fromkeys(jobs, "CANCELLED"),
        detach=list,
    )
    with pytest.raises(Interrupted):
        cluster.train_in_jobs(GridQueue([trial]), scheduler)
    assert "1 job was stopped before the trial was finished" in capsys.readouterr().out
    trial.folder.mkdir(parents=True)
    RunRecord(trial.folder).end("pruned", "at epoch 3")
    cluster.train_in_jobs(GridQueue([trial]), scheduler)
    assert capsys.readouterr().out == ""


def test_a_search_leaves_the_trial_of_a_cancelled_job_to_the_next_command(monkeypatch, tmp_path):
    """It trains the others, and is not complete."""
    monkeypatch.setattr(cluster, "MAX_POLL_SECONDS", 0.0)
    overrides = [*TWO, "sweep.sampler=random", "sweep.n_trials=3"]
    one, submitted = search(tmp_path, *overrides), []

    def submit(trials):
        for trial in trials:
            submitted.append(trial.folder)
            if len(submitted) > 1:
                train(trial)
        return {trial.folder.name: trial for trial in trials}

    scheduler = SimpleNamespace(
        folder=tmp_path,
        find_submitted=dict,
        submit=submit,
        states=lambda jobs: {job: "CANCELLED" if job == submitted[0].name else "COMPLETED" for job in jobs},
        detach=list,
    )
    with pytest.raises(Interrupted):
        cluster.train_in_jobs(one, scheduler)
    assert [run.folder for run in one.sweep.trials] == submitted
    assert not describe_search(one)["complete"]

    again = search(tmp_path, *overrides)
    scheduler.states = lambda jobs: dict.fromkeys(jobs, "COMPLETED")
    cluster.train_in_jobs(again, scheduler)
    assert submitted[3:] == submitted[:1]
    assert describe_search(again)["complete"]


def test_nothing_in_the_folder_of_a_sweep_is_unpickled(monkeypatch, trial, tmp_path):
    """It may be a copy from someone else, with files under the ids of the next jobs."""
    monkeypatch.setattr(cluster.shutil, "which", str)
    monkeypatch.setattr("pickle.load", lambda *_: pytest.fail("unpickled"))
    monkeypatch.setattr("pickle.loads", lambda *_: pytest.fail("unpickled"))
    jobs = trial.folder.parent / "jobs"
    (jobs / "earlier").mkdir(parents=True)
    for folder in (jobs, jobs / "earlier"):
        for name in ("7_submitted.pkl", "7_0_result.pkl"):
            (folder / name).write_bytes(b"code")
    (jobs / "earlier" / "7.trial").write_text(trial.folder.name)
    submitter = cluster.Slurm(jobs, LauncherConfig())
    monkeypatch.setattr(submitter, "_squeue", lambda tries: {"7": ("RUNNING", "None")})
    assert submitter.find_submitted() == {trial.folder.name: "7"}
    assert not submitter.own_folder.exists()
    assert submitter.own_folder != cluster.Slurm(jobs, LauncherConfig()).own_folder
    queue = GridQueue([trial])
    monkeypatch.setattr(submitter, "_squeue", lambda tries: {"7": ("RUNNING" if not started else "FAILED", "None")})
    started = []
    monkeypatch.setattr(queue, "started", started.append)
    monkeypatch.setattr(cluster, "MAX_POLL_SECONDS", 0.0)
    cluster.train_in_jobs(queue, submitter)
    assert started == [trial]
    assert "ended without a result" in read_result(trial.folder).error


@pytest.mark.parametrize(
    ("open_folder", "mode", "problem"),
    [
        ("jobs", 0o777, "is writable by everyone"),
        (".", 0o777, "is writable by everyone"),
        ("jobs", 0o1777, None),
        ("jobs", 0o770, None),
        pytest.param(
            "jobs", 0o700, "belongs to another user", marks=pytest.mark.skipif(os.getuid() != 0, reason="chown")
        ),
    ],
)
def test_no_job_is_submitted_where_other_users_could_replace_it(monkeypatch, trial, open_folder, mode, problem):
    monkeypatch.setattr(cluster.shutil, "which", str)
    jobs = trial.folder.parent / "jobs"
    jobs.mkdir(parents=True)
    (jobs.parent / open_folder).chmod(mode)
    if mode == 0o700:
        os.chown(jobs, 12345, -1)
    slurm = cluster.Slurm(jobs, LauncherConfig())
    monkeypatch.setattr(slurm, "_submit_array", lambda part, needed: ["1"])
    if problem is None:
        assert list(slurm.submit([trial])) == ["1"]
    else:
        folder = re.escape(str(jobs.parent / open_folder))
        with pytest.raises(RunError, match=f"{folder} {problem}: whoever may write to it could run code in your jobs"):
            slurm.submit([trial])


def test_a_job_that_was_stopped_and_that_slurm_requeues_is_no_crash(monkeypatch, trial, inside):
    def run_trial(trial, began, *, patient):
        inside.state = "PREEMPTED"
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(job, "run_trial", run_trial)
    with pytest.raises(SystemExit) as ended:
        job.Job(trial, 1, 60)()
    assert not ended.value.code
    assert [command[0] for command in inside.commands] == ["squeue"]


def test_a_job_that_finds_the_disk_full_stops_the_sweep(monkeypatch, trial, inside):
    def run_trial(trial, began, *, patient):
        trial.folder.mkdir(parents=True)
        RunRecord(trial.folder).end("interrupted", "no space")
        raise DiskFull("no space")

    monkeypatch.setattr(job, "run_trial", run_trial)
    monkeypatch.setattr(cluster, "MAX_POLL_SECONDS", 0.0)
    scheduler = SimpleNamespace(
        folder=trial.folder.parent,
        find_submitted=dict,
        submit=lambda trials: {trial.label: trial for trial in trials if job.Job(trial, 1, 60)()},
        states=lambda jobs: dict.fromkeys(jobs, "COMPLETED"),
        detach=list,
    )
    with pytest.raises(DiskFull, match="no space"):
        cluster.train_in_jobs(GridQueue([trial]), scheduler)


@pytest.mark.parametrize("saves", [True, False])
def test_a_job_is_requeued_before_its_time_limit_only_after_a_step(monkeypatch, trial, inside, saves):
    """Without a step in its time it would never finish."""

    def run_trial(trial, began, *, patient):
        monkeypatch.setattr(job.time, "time", lambda: began + 60 * 60 - job.WARNING_SECONDS)
        if saves:
            (trial.folder / "checkpoints").mkdir(parents=True)
            (trial.folder / "checkpoints/last.ckpt").touch()
        raise Interrupted

    monkeypatch.setattr(job, "run_trial", run_trial)
    if saves:
        with pytest.raises(SystemExit) as ended:
            job.Job(trial, 1, 60)()
        assert not ended.value.code
    else:
        assert "launcher.time=60 minutes" in job.Job(trial, 1, 60)().error
    assert (["scontrol", "requeue", "7_0"] in inside.commands) == saves


def test_arrays_are_no_longer_than_slurm_allows(monkeypatch, trial, tmp_path):
    monkeypatch.setattr(cluster.shutil, "which", str)
    monkeypatch.setattr(cluster, "_max_array_size", lambda: 2)
    slurm = cluster.Slurm(tmp_path / "sweep" / "jobs", LauncherConfig())
    arrays = []
    monkeypatch.setattr(
        slurm,
        "_submit_array",
        lambda part, needed: arrays.append(part) or [f"{len(arrays)}_{i}" for i in range(len(part))],
    )
    assert list(slurm.submit([trial] * 5)) == ["1_0", "1_1", "2_0", "2_1", "3_0"]


def test_a_reason_why_jobs_wait_is_printed_once(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cluster.shutil, "which", str)
    slurm = cluster.Slurm(tmp_path / "sweep" / "jobs", LauncherConfig())
    rows = {"7_0": ("RUNNING", "None"), "7_1": ("PENDING", "Resources"), "8": ("PENDING", "JobHeldUser")}
    rows |= dict.fromkeys(("9_0", "9_1"), ("PENDING", "PartitionTimeLimit"))
    monkeypatch.setattr(slurm, "_squeue", lambda tries: rows)
    for _ in range(2):
        assert slurm.states(["7_0", "7_1", "9_0", "9_1"])["9_0"] == "PENDING"
    hint = "launcher.time is more than the partition allows"
    assert capsys.readouterr().out == f"2 jobs wait: PartitionTimeLimit ({hint})\n"


def test_the_command_that_cancels_jobs_names_their_arrays(monkeypatch, tmp_path, capsys):
    """Another sweep's jobs may have the same name."""
    monkeypatch.setattr(cluster.shutil, "which", str)
    cluster.Slurm(tmp_path / "sweep" / "jobs", LauncherConfig()).detach(["20_0", "20_1", "21"])
    assert capsys.readouterr().out == "3 jobs left with Slurm; to cancel: scancel 20 21\n"


@pytest.mark.parametrize("full", ["write_text", "rename"])
def test_a_full_disk_leaves_no_job_of_which_nothing_is_said(monkeypatch, make_trial, capsys, full):
    monkeypatch.setattr(cluster.shutil, "which", str)
    monkeypatch.setattr(cluster, "_max_array_size", lambda: 1000)
    slurm = cluster.Slurm(make_trial().folder.parent / "jobs", LauncherConfig())
    submitted = []
    monkeypatch.setattr(slurm, "_submit_array", lambda part, needed: submitted.extend(["77_0", "77_1"]) or submitted)
    with monkeypatch.context() as patch:
        patch.setattr(Path, full, Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises((OSError, DiskFull)):
            slurm.submit([make_trial(0), make_trial(1)])
    said = "2 jobs left with Slurm; to cancel: scancel 77\n" if full == "rename" else ""
    assert (capsys.readouterr().out, len(submitted)) == (said, 2 if said else 0)
    monkeypatch.setattr(slurm, "_squeue", lambda tries: dict.fromkeys(("77_0", "77_1"), ("PENDING", "None")))
    assert slurm.find_submitted() == {}
    submitted.clear()
    slurm.submit([make_trial(0), make_trial(1)])
    assert slurm.find_submitted() == {"seed=0": "77_0", "seed=1": "77_1"}


def test_jobs_do_not_inherit_the_job_that_submits_them(monkeypatch, trial, tmp_path):
    monkeypatch.setattr(cluster.shutil, "which", str)
    given = {"SLURM_MEM_PER_CPU": "100", "SLURM_CONF": "x.conf", "SBATCH_TIMELIMIT": "1"}
    given |= {"SBATCH_ACCOUNT": "profile", "SBATCH_QOS": "profile", "SBATCH_CONSTRAINT": "a100"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    seen = []

    def submit(executor, jobs):
        seen.append({name: os.environ[name] for name in given if name in os.environ})
        return [SimpleNamespace(job_id="7")]

    monkeypatch.setattr(cluster.submitit.SlurmExecutor, "submit_array", submit)
    slurm = cluster.Slurm(tmp_path / "sweep" / "jobs", LauncherConfig(qos="long", sbatch=["--constraint=v100"]))
    slurm.own_folder.mkdir(parents=True)
    slurm.submit([trial])
    assert seen == [{"SLURM_CONF": "x.conf", "SBATCH_ACCOUNT": "profile"}]
    assert os.environ["SBATCH_TIMELIMIT"] == "1"


def test_ranks_that_train_together_need_the_basic_launcher(monkeypatch):
    monkeypatch.setattr("vitrine.sweeps.run.launched", lambda: Launch("torchrun", 0, 2, 0, 1))
    with pytest.raises(ConfigError, match="torchrun has started ranks"):
        _prepare_launcher("process", LauncherConfig(), [], Path(), Ranks())
