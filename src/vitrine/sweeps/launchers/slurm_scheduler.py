"""Who runs jobs: Slurm, or processes of this machine that stand in for it."""

import getpass
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import DelayedSubmission

from vitrine.config.sweep import LauncherConfig
from vitrine.errors import ConfigError, Fault, RunError
from vitrine.sweeps.launchers.slurm_job import WARNING_SECONDS, Job
from vitrine.sweeps.trial import Trial
from vitrine.text import plural

THREADS = 4  # CPU threads for each process of a trial, where launcher.threads does not say

LATER_SECONDS = 10.0  # until a Slurm that does not answer is asked again

# States of jobs that are over (squeue(1)), and what that says of them.
ENDED = {
    "COMPLETED": "ended without a word",
    "FAILED": "ended without a word",
    "OUT_OF_MEMORY": "ran out of memory, launcher.mem_gb=N gives it more",
    "TIMEOUT": "was stopped at the end of its time before it could save",
    "NODE_FAIL": "lost its machine",
    "BOOT_FAIL": "lost its machine",
    "DEADLINE": "met its deadline",
    "CANCELLED": "was cancelled",
    "PREEMPTED": "was preempted",
}
NOT_ITS_FAULT = ("CANCELLED", "PREEMPTED", "DEADLINE")


@dataclass(frozen=True)
class Needs:
    """What a trial's job asks for."""

    cpus: int
    gpus: int
    threads: int


class Slurm:
    """Jobs of Slurm, which outlive this process.

    Args:
        folder: of the jobs, below that of their sweep.
        settings: what each job asks for.

    Raises:
        ConfigError: Slurm's commands are not here.
    """

    room = 10**9  # all trials are submitted: Slurm sees to it that launcher.workers of them run at a time

    def __init__(self, folder: Path, settings: LauncherConfig) -> None:
        missing = [name for name in ("sbatch", "squeue", "srun", "scontrol") if shutil.which(name) is None]
        if missing:
            problem = f"there is no {missing[0]} here: start it where Slurm's jobs are submitted"
            raise ConfigError([Fault("hydra/launcher", "slurm", problem, "hydra/launcher=local, or process")])
        self.folder, self.settings = folder, settings
        # By its name the jobs of a sweep are found again; squeue takes a comma for the next name.
        self.name = "vitrine_" + re.sub(r"[^\w.=-]", "-", folder.parent.name)

    def submitted(self) -> dict[str, str]:
        """Jobs of earlier commands that are not over, by their trials' folders."""
        found = {}
        for job, state in self._states(tries=1).items():
            given = self.folder / f"{job}_submitted.pkl"
            if state not in ENDED and given.exists():
                job_of: Any = DelayedSubmission.load(given).function
                found[job_of.trial.folder.name] = job
        if found:
            print(f"{plural(len(found), 'job')} submitted earlier, as {self.name}", flush=True)
        return found

    def submit(self, trials: Sequence[Trial]) -> dict[str, Trial]:
        """Submit a job for each trial, in as few arrays as can be; gives them by the jobs' ids.

        Raises:
            RunError: Slurm does not take them.
        """
        groups: dict[Needs, list[Trial]] = {}
        for trial in trials:
            groups.setdefault(needs(trial, self.settings), []).append(trial)
        longest = _longest_array() if len(trials) > 1 else 1
        found: dict[str, Trial] = {}
        for needed, alike in groups.items():
            for first in range(0, len(alike), longest):
                part = alike[first : first + longest]
                found |= dict(zip(self._submit_alike(part, needed), part, strict=True))
        if found:
            print(f"{plural(len(found), 'job')} submitted to Slurm as {self.name}", flush=True)
        return found

    def states(self, jobs: Iterable[str] = ()) -> dict[str, str]:
        """Slurm's words for the states of the sweep's jobs; one that it has forgotten is over.

        Raises:
            RunError: Slurm has not answered for minutes; its jobs go on.
        """
        return self._states(tries=30)

    def leave(self, jobs: Sequence[str]) -> None:
        """Say how the jobs go on alone."""
        if jobs:
            print(f"{plural(len(jobs), 'job')} left with Slurm; to stop: scancel --name={self.name}", flush=True)

    def _states(self, tries: int) -> dict[str, str]:
        command = ["squeue", "--array", "--noheader", "--states=all", f"--user={getpass.getuser()}"]
        command += [f"--name={self.name}", "--format=%i %T"]
        for later in range(tries):
            time.sleep(LATER_SECONDS if later else 0)
            asked = subprocess.run(command, capture_output=True, text=True)
            if asked.returncode == 0:
                return dict(line.split() for line in asked.stdout.splitlines())
        raise RunError(f"Slurm does not answer: {asked.stderr.strip()}")

    def _submit_alike(self, trials: Sequence[Trial], needed: Needs) -> list[str]:
        asked = self.settings
        executor = submitit.SlurmExecutor(self.folder)
        executor.update_parameters(
            job_name=self.name,
            partition=asked.partition,
            account=asked.account,
            qos=asked.qos,
            time=asked.time,
            cpus_per_task=needed.cpus,
            gpus_per_node=needed.gpus or None,
            mem=None if asked.mem_gb is None else f"{asked.mem_gb}G",
            array_parallelism=asked.workers or len(trials),
            setup=asked.setup or None,
            stderr_to_stdout=True,
            # srun does not take it from the job (its manual, --cpus-per-task).
            srun_args=[f"--cpus-per-task={needed.cpus}"],
            additional_parameters={"requeue": True, "signal": f"TERM@{WARNING_SECONDS}", **_options(asked.sbatch)},
        )
        try:
            with redirect_stderr(StringIO()):  # submitit prints there what it raises, too
                jobs = executor.submit_array([Job(trial, needed.threads, asked.time) for trial in trials])
        except RuntimeError as error:
            raise RunError(f"Slurm does not take the jobs: {str(error).strip()}") from None
        return [job.job_id for job in jobs]


class Local:
    """submitit's jobs without a cluster, launcher.workers at a time, which end with this command.

    Args:
        folder: of the jobs, below that of their sweep.
        settings: what each job asks for.
    """

    def __init__(self, folder: Path, settings: LauncherConfig) -> None:
        self.folder, self.settings = folder, settings
        self.room = settings.workers or 1
        self._jobs: dict[str, submitit.Job[Any]] = {}

    def submitted(self) -> dict[str, str]:
        """None: a trial that such a job of another command is at has its lock."""
        return {}

    def submit(self, trials: Sequence[Trial]) -> dict[str, Trial]:
        """Start a job for each trial; gives them by the jobs' ids."""
        found = {}
        for trial in trials:
            needed = needs(trial, self.settings)
            executor = submitit.LocalExecutor(self.folder)
            executor.update_parameters(
                timeout_min=self.settings.time,
                signal_delay_s=WARNING_SECONDS,
                gpus_per_node=needed.gpus,
                setup=self.settings.setup,
                stderr_to_stdout=True,
            )
            with _ctrl_c_ignored():
                job = executor.submit(Job(trial, needed.threads, self.settings.time))
            self._jobs[job.job_id] = job
            found[job.job_id] = trial
        return found

    def states(self, jobs: Iterable[str] = ()) -> dict[str, str]:
        """In Slurm's words."""
        return {job: "COMPLETED" if self._jobs[job].done() else "RUNNING" for job in jobs}

    def leave(self, jobs: Sequence[str]) -> None:
        """Have them finish their step and save, and wait for it."""
        for job in jobs:
            os.kill(int(job), signal.SIGTERM)  # its id is the number of its process, which passes this on
        while not all(self._jobs[job].done() for job in jobs):
            time.sleep(0.1)


def needs(trial: Trial, settings: LauncherConfig) -> Needs:
    """What a trial's job asks for: a GPU for each of its devices if it wants GPUs, or ``launcher.gpus``.

    Raises:
        ConfigError: it wants all GPUs of a machine that nobody has named the number of.
    """
    asked = trial.config.trainer
    gpus = settings.gpus
    if gpus is None:
        gpus = asked.devices if asked.accelerator == "gpu" else 0
    if gpus is None:
        problem = "must say how many GPUs each job gets: trainer.devices=null takes all of them"
        raise ConfigError([Fault("launcher.gpus", "null", problem, "launcher.gpus=4, or trainer.devices=4")])
    threads = settings.threads or THREADS
    processes = gpus or asked.devices or 1
    return Needs(threads * processes, gpus, threads if gpus else threads * processes)


def _options(words: Sequence[str]) -> dict[str, str | bool]:
    """``--nodelist=a --exclusive`` for submitit; a flag has no value."""
    parts = [word.lstrip("-").partition("=") for word in words]
    return {name: value if sign else True for name, sign, value in parts}


def _longest_array() -> int:
    """How many jobs an array may have here."""
    shown = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", shown, re.MULTILINE)
    return int(found[1]) if found else 1000


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """By processes that are started meanwhile: a terminal sends it to them, too."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
