"""``hydra/launcher=slurm``: train each trial as a job of a Slurm cluster.

submitit submits the jobs, those that a command has at a time as one array, or as several where they need other
resources or an array's size is limited. Hydra's submitit launcher is not used: it composes the configuration again in
each job and creates run folders of its own. A job here trains one trial as any other process does
(:func:`vitrine.sweeps.trial.run_trial`) and skips what the trial's folder holds already. So a job can be preempted,
requeued or submitted twice.

::

    outputs/sweeps/NAME/
        logs/TRIAL.txt      output of the trial, over all its jobs
        jobs/RANDOM/        submitit's files: the batch script, each job's pickled trial, and Slurm's output, *_log.out

Unpickling can run any code, and a sweep's folder may be a copy from someone else. So each command submits from a new
folder in ``jobs/`` with a random name, and it reads results and names of trials from other files.
"""

import os
import re
import secrets
import shutil
import stat
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import submitit
from submitit.helpers import clean_env

from vitrine.config.schema import TrainConfig
from vitrine.config.sweep import LauncherConfig
from vitrine.errors import ConfigError, DiskFull, Fault, Interrupted, RunError
from vitrine.files import naming_failed_write
from vitrine.runs.status import ENDED
from vitrine.sweeps.launchers.slurm_job import WARNING_SECONDS, Job
from vitrine.sweeps.queue import TrialQueue
from vitrine.sweeps.trial import Trial, TrialResult, is_locked, read_result, record_crash
from vitrine.text import plural

THREADS = 4  # CPU threads per process of a trial without launcher.threads
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 1.0, 15.0  # between two calls of squeue; they get rarer
RETRY_SECONDS = 10.0  # until squeue is called again after it failed

# States of jobs that have ended (squeue(1)), and what to say if the trial has not.
JOB_ENDED = {
    "COMPLETED": "ended without a result",
    "FAILED": "ended without a result",
    "OUT_OF_MEMORY": "ran out of memory; launcher.mem_gb=N gives it more",
    "TIMEOUT": "reached its time limit before it could save",
    "NODE_FAIL": "lost its node",
    "BOOT_FAIL": "lost its node",
    "DEADLINE": "reached its deadline",
    "CANCELLED": "was cancelled",
    "PREEMPTED": "was preempted",
}
STOPPED = ("CANCELLED", "PREEMPTED", "DEADLINE")  # states that are no failure of the trial

# Reasons why a job waits (squeue(1)): those that pass by themselves, and what to say of some that do not.
USUAL_REASONS = ("None", "Resources", "Priority", "JobArrayTaskLimit", "BeginTime", "Cleaning", "Prolog")
LASTING_REASONS = {
    "PartitionTimeLimit": "launcher.time is more than the partition allows",
    "BadConstraints": "no node has what launcher.* asks for",
    "JobHeldUser": "`scontrol release` lets them start",
    "JobHeldAdmin": "only an administrator can let them start",
}

# Options that a user's SBATCH_ variables may set where launcher.* does not.
PROFILE_OPTIONS = ("account", "partition", "qos", "constraint", "reservation")


@dataclass(frozen=True)
class Resources:
    """What a job asks Slurm for: CPUs and GPUs in total, and CPU threads per process."""

    cpus: int
    gpus: int
    threads: int


class Slurm:
    """Jobs of a Slurm cluster, which outlive this process. ``folder`` is for submitit's files of all commands.

    Raises:
        ConfigError: Slurm's commands are not installed.
    """

    def __init__(self, folder: Path, settings: LauncherConfig) -> None:
        missing = [name for name in ("sbatch", "squeue", "srun", "scontrol") if shutil.which(name) is None]
        if missing:
            problem = f"{missing[0]} is not installed here; run the command on a host that submits Slurm jobs"
            raise ConfigError([Fault("hydra/launcher", "slurm", problem, "hydra/launcher=process")])
        self.folder, self.settings = folder, settings
        self.own_folder = folder / secrets.token_hex(4)
        self._reported = {*USUAL_REASONS}  # why jobs wait
        # By this name the sweep's jobs are found again; squeue would take a comma as the start of another name.
        self.name = "vitrine_" + re.sub(r"[^\w.=-]", "-", folder.parent.name)

    def find_submitted(self) -> dict[str, str]:
        """Ids of jobs that earlier commands submitted and that have not ended, by the names of the trials' folders."""
        found = {}
        for job_id, (state, _) in self._squeue(tries=1).items():
            for path in self.folder.glob(f"*/{job_id}.trial"):
                if state not in JOB_ENDED:
                    found[path.read_text()] = job_id
        if found:
            print(f"{plural(len(found), 'job')} submitted earlier, as {self.name}", flush=True)
        return found

    def submit(self, trials: Sequence[Trial]) -> dict[str, Trial]:
        """Submit a job for each trial, in as few arrays as possible; return the trials by job id.

        A file with each trial's name is written before, and then named after its job: so a full disk is found in time.

        Raises:
            RunError: Slurm rejects them, or other users may replace what the jobs will unpickle.
        """
        for folder in (self.folder.parent, self.folder):
            _refuse_writable_by_others(folder)
        groups: dict[Resources, list[Trial]] = {}
        for trial in trials:
            groups.setdefault(resources(trial.config, self.settings), []).append(trial)
        most = _max_array_size() if len(trials) > 1 else 1
        parts = [(alike[n : n + most], needed) for needed, alike in groups.items() for n in range(0, len(alike), most)]
        found: dict[str, Trial] = {}
        try:
            for part, needed in parts:
                files = [self.own_folder / f".{number}.trial" for number in range(len(part))]
                with naming_failed_write(self.own_folder):
                    self.own_folder.mkdir(parents=True, exist_ok=True)
                    for file, trial in zip(files, part, strict=True):
                        file.write_text(trial.folder.name)
                jobs = self._submit_array(part, needed)
                found |= dict(zip(jobs, part, strict=True))
                for file, job in zip(files, jobs, strict=True):
                    file.rename(self.own_folder / f"{job}.trial")
        except BaseException:
            self.detach(list(found))
            raise
        if found:
            print(f"{plural(len(found), 'job')} submitted to Slurm as {self.name}", flush=True)
        return found

    def states(self, jobs: Iterable[str] = ()) -> dict[str, str]:
        """States of the jobs that Slurm still knows: it forgets those that have ended. Print why ``jobs`` wait.

        Raises:
            RunError: Slurm has not answered for minutes.
        """
        rows = self._squeue(tries=30)
        waiting = Counter(rows[job][1] for job in jobs if job in rows and rows[job][0] == "PENDING")
        for reason, count in waiting.items():
            if reason not in self._reported:
                self._reported.add(reason)
                hint = f" ({LASTING_REASONS[reason]})" if reason in LASTING_REASONS else ""
                print(f"{plural(count, 'job waits', 'jobs wait')}: {reason}{hint}", flush=True)
        return {job: state for job, (state, _) in rows.items()}

    def detach(self, jobs: Sequence[str]) -> None:
        """Leave the jobs to Slurm, and print how to cancel them."""
        if jobs:
            arrays = " ".join(dict.fromkeys(job.partition("_")[0] for job in jobs))  # another sweep may share the name
            print(f"{plural(len(jobs), 'job')} left with Slurm; to cancel: scancel {arrays}", flush=True)

    def _squeue(self, tries: int) -> dict[str, tuple[str, str]]:
        """State, and reason why it waits, of each of the sweep's jobs."""
        command = ["squeue", "--array", "--noheader", "--states=all", f"--user={os.getuid()}"]
        command += [f"--name={self.name}", "--format=%i %T %r"]
        for attempt in range(tries):
            time.sleep(RETRY_SECONDS if attempt else 0)
            answer = subprocess.run(command, capture_output=True, text=True)
            if answer.returncode == 0:
                rows = [line.split(maxsplit=2) for line in answer.stdout.splitlines()]
                return {job: (state, reason) for job, state, reason in rows}
        raise RunError(f"Slurm does not answer: {answer.stderr.strip()}")

    def _submit_array(self, trials: Sequence[Trial], needed: Resources) -> list[str]:
        settings = self.settings
        executor = submitit.SlurmExecutor(self.own_folder)
        executor.update_parameters(
            job_name=self.name,
            partition=settings.partition,
            account=settings.account,
            qos=settings.qos,
            time=settings.time,
            cpus_per_task=needed.cpus,
            gpus_per_node=needed.gpus or None,
            mem=None if settings.mem_gb is None else f"{settings.mem_gb}G",
            array_parallelism=settings.workers or len(trials),
            setup=settings.setup or None,
            stderr_to_stdout=True,
            # srun does not inherit it from the job (srun(1), --cpus-per-task).
            srun_args=[f"--cpus-per-task={needed.cpus}"],
            additional_parameters={
                "requeue": True,
                "signal": f"TERM@{WARNING_SECONDS}",
                **_sbatch_options(settings.sbatch),
            },
        )
        try:
            with redirect_stderr(StringIO()), self._clean_environment():  # submitit also prints what it raises
                jobs = executor.submit_array([Job(trial, needed.threads, settings.time) for trial in trials])
        except RuntimeError as error:
            raise RunError(f"Slurm rejected the jobs: {str(error).strip()}") from None
        except OSError:
            print(f"jobs may have been submitted: squeue --name={self.name}", flush=True)
            raise
        return [job.job_id for job in jobs]

    @contextmanager
    def _clean_environment(self) -> Iterator[None]:
        """Hide the variables of a job around this command, and those of sbatch that would replace ``launcher.*``."""
        given = _sbatch_options(self.settings.sbatch) | vars(self.settings)
        names = [f"SBATCH_{name.upper()}" for name in PROFILE_OPTIONS if not given.get(name)]
        kept = {name: os.environ[name] for name in ("SLURM_CONF", "SLURM_CLUSTERS", *names) if name in os.environ}
        with clean_env():
            os.environ.update(kept)
            yield


def make_scheduler(settings: LauncherConfig, configs: Sequence[TrainConfig], folder: Path) -> Slurm:
    """Return what runs the jobs of a sweep.

    Raises:
        ConfigError: Slurm is not installed, or ``settings`` lack what a trial needs.
    """
    for config in configs:
        resources(config, settings)
    return Slurm(folder, settings)


def train_in_jobs(queue: TrialQueue, scheduler: Slurm) -> None:
    """Train the trials of ``queue`` as jobs.

    Raises:
        RunError: Slurm rejects the jobs or does not answer.
        DiskFull: a trial found the disk full, which stops the sweep once the jobs beside it have ended.
        Interrupted: stopped by Ctrl-C, which leaves Slurm's jobs running; or jobs were cancelled or preempted, and
            their trials are left to the next command.
    """
    earlier = scheduler.find_submitted()
    jobs: dict[str, Trial] = {}  # by job id
    started: set[str] = set()
    stopped, full = 0, ""
    start = time.monotonic()
    try:
        while jobs or not (queue.done or full):
            new: list[Trial] = []
            while not full and (trial := queue.ask()) is not None:
                new.append(trial)
            adopted = {earlier.pop(trial.folder.name): trial for trial in new if trial.folder.name in earlier}
            jobs |= adopted | scheduler.submit([trial for trial in new if trial not in adopted.values()])
            time.sleep(min(max(MIN_POLL_SECONDS, (time.monotonic() - start) / 20), MAX_POLL_SECONDS))
            states = scheduler.states(jobs)
            for job, trial in list(jobs.items()):
                # Slurm forgets ended jobs after a while, and at once those that were cancelled while they waited.
                state = states.get(job, "FAILED" if job in started else "CANCELLED")
                if job not in started and (state == "RUNNING" or (state in JOB_ENDED and state not in STOPPED)):
                    started.add(job)
                    queue.started(trial)
                if state in JOB_ENDED:
                    log = next(scheduler.folder.glob(f"*/{job}_0_log.out"), scheduler.folder)
                    result = _collect(queue, trial, state, log)
                    if result is None:
                        continue
                    del jobs[job]
                    stopped += result.status not in (*ENDED, "running")  # another process is training a running one
                    if result.status == "interrupted":  # it has an error only if the disk is full
                        full = full or result.error
    except KeyboardInterrupt:
        raise Interrupted from None
    finally:
        scheduler.detach(list(jobs))
    if full:
        raise DiskFull(full)
    if stopped:
        print(f"{plural(stopped, 'job was', 'jobs were')} stopped before the trial was finished", flush=True)
        raise Interrupted


def resources(config: TrainConfig, settings: LauncherConfig) -> Resources:
    """Return what a trial's job asks for: ``launcher.gpus``, or one GPU per device if the trial uses GPUs.

    Raises:
        ConfigError: the trial uses all GPUs of a node, and ``launcher.gpus`` does not give their number.
    """
    trainer, gpus = config.trainer, settings.gpus
    if gpus is None:
        gpus = trainer.devices if trainer.accelerator == "gpu" else 0
    if gpus is None:
        problem = "must give the number of GPUs per job, since trainer.devices=null uses all of them"
        raise ConfigError([Fault("launcher.gpus", "null", problem, "launcher.gpus=4, or trainer.devices=4")])
    threads = settings.threads or THREADS
    processes = gpus or trainer.devices or 1
    return Resources(threads * processes, gpus, threads if gpus else threads * processes)


def _collect(queue: TrialQueue, trial: Trial, state: str, log: Path) -> TrialResult | None:
    """Give the queue the result of a trial whose job ended in ``state``, from the trial's folder; return it.

    ``None`` if the job was killed, and it is not known yet whether another machine has taken the trial up.
    """
    # Before the result is read, which is final if no process is training the trial.
    elsewhere = is_locked(trial, queue.watch)
    result = read_result(trial.folder)
    if state == "COMPLETED" and elsewhere:
        queue.put_back(trial)
        return TrialResult("running")
    # A job that was stopped, or found the disk full, completes; a crash leaves the interruption of an earlier job.
    saved = state == "COMPLETED" and result.status == "interrupted"
    if state in STOPPED:
        result = TrialResult("interrupted") if result.status == "running" else result
    elif result.status not in ENDED and not saved:
        if elsewhere:
            return None
        cause = JOB_ENDED.get(state, JOB_ENDED["FAILED"])
        result = record_crash(trial, f"its job {cause}; see {trial.log} and {log}", force=True)
    queue.tell(trial, result)
    return result


def _refuse_writable_by_others(folder: Path) -> None:
    """Raise RunError if a user outside its group may rename what is in a folder, and so run code in jobs of this one's.

    A folder may be writable by a group, as laboratories share theirs.
    """
    if not folder.exists():
        return
    status, hint = folder.stat(), "whoever may write to it could run code in your jobs"
    if status.st_uid not in (os.geteuid(), 0):
        raise RunError(f"{folder} belongs to another user: {hint}; set another sweep.name")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise RunError(f"{folder} is writable by everyone: {hint}; chmod o-w {folder}")


def _sbatch_options(options: Sequence[str]) -> dict[str, str | bool]:
    """``--nodelist=a`` and ``--exclusive`` as submitit takes them: flags have the value True."""
    parts = [option.lstrip("-").partition("=") for option in options]
    return {name: value if sign else True for name, sign, value in parts}


def _max_array_size() -> int:
    """Largest number of jobs in an array on this cluster."""
    shown = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", shown, re.MULTILINE)
    return int(found[1]) if found else 1000
