"""The job that trains one trial on a cluster, until it finishes or the cluster asks it to stop."""

import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from types import FrameType

import submitit

from vitrine.errors import DiskFull, Interrupted, OutOfTime
from vitrine.runs.lock import RunLocked
from vitrine.sweeps.launchers.process import redirect_output
from vitrine.sweeps.trial import Trial, TrialResult, read_result, record_crash, run_trial
from vitrine.text import report

WARNING_SECONDS = 90  # between the signal and the end of a job's time: enough to finish a step and save
EARLY_SECONDS = 60  # by which Slurm may send the signal sooner


@dataclass(frozen=True)
class Job:
    """A job; picklable.

    Attributes:
        trial: what to train.
        threads: CPU threads per process.
        minutes: time limit.
    """

    trial: Trial
    threads: int
    minutes: int

    def __call__(self) -> TrialResult | None:
        """Train the trial; return its result, or ``None`` if another process is training it.

        A job that is stopped after it has saved a checkpoint goes back into the queue and exits: with 0, since another
        exit code is a crash to Slurm, and to the command that waits for the job.
        """
        began = time.time()
        logging.getLogger("submitit").setLevel(logging.ERROR)  # its messages would go to the trial's log
        redirect_output(self.trial)
        os.environ["OMP_NUM_THREADS"] = str(self.threads)
        signal.signal(signal.SIGTERM, _stop)
        before = _checkpoint_time(self.trial)
        try:
            return run_trial(self.trial, began, patient=True)
        except RunLocked:
            return None
        except DiskFull as full:
            report(f"{self.trial.label}: {full}")
            return read_result(self.trial.folder)
        except (Interrupted, KeyboardInterrupt) as stop:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is stopping already
            late = isinstance(stop, OutOfTime) or self._nearly_over(began)
            if late and _checkpoint_time(self.trial) == before:
                limits = f"launcher.time={self.minutes} minutes, or trainer.max_time, is too short"
                return record_crash(self.trial, f"the job ended before its first step: {limits}")
            _requeue()
            sys.exit()

    def _nearly_over(self, began: float) -> bool:
        return time.time() - began > 60 * self.minutes - WARNING_SECONDS - EARLY_SECONDS


def _stop(number: int, frame: FrameType | None) -> None:
    """Stop before training starts; while training runs, its own handler finishes the step and saves."""
    raise KeyboardInterrupt


def _checkpoint_time(trial: Trial) -> int:
    """Modification time of the last checkpoint in ns; 0 if there is none."""
    last = trial.folder / "checkpoints" / "last.ckpt"
    return last.stat().st_mtime_ns if last.exists() else 0


def _requeue() -> None:
    """Put this job back into the queue, unless Slurm does so itself or has cancelled it.

    If the job's time is nearly over, or it is preempted with a grace time, Slurm still counts it as running and would
    take its exit as the end of its work.
    """
    job = submitit.JobEnvironment().job_id  # with its array index: the number alone would stand for the whole array
    command = ["squeue", "--noheader", f"--job={job}", "--format=%T"]
    if subprocess.run(command, capture_output=True, text=True).stdout.strip() == "RUNNING":
        subprocess.run(["scontrol", "requeue", job], check=True)
