"""What a job of a cluster does: one trial, as far as it comes before it is asked to make room."""

import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from types import FrameType

import submitit
from submitit.local.local import LOCAL_REQUEUE_RETURN_CODE

from vitrine.errors import Interrupted, OutOfTime
from vitrine.sweeps.launchers.process import print_to
from vitrine.sweeps.trial import Busy, Outcome, Trial, carry_out, died

WARNING_SECONDS = 90  # before its time is over a job is asked to stop: enough to finish a step and save
EARLY_SECONDS = 60  # by which Slurm may ask sooner


@dataclass(frozen=True)
class Job:
    """A trial to carry out, with so many CPU threads, in so many minutes."""

    trial: Trial
    threads: int
    minutes: int

    def __call__(self) -> Outcome | None:
        """The life of the job. ``None`` if another process is at the trial."""
        began = time.time()
        logging.getLogger("submitit").setLevel(logging.ERROR)  # what it says goes where the trial prints, from here on
        print_to(self.trial)
        os.environ["OMP_NUM_THREADS"] = str(self.threads)
        for number in (signal.SIGTERM, signal.SIGUSR2):  # the second is how submitit tells a local job
            signal.signal(number, _stop)
        before = _saved(self.trial)
        try:
            return carry_out(self.trial, began)
        except Busy:
            return None
        except (Interrupted, KeyboardInterrupt) as stop:
            for number in (signal.SIGTERM, signal.SIGUSR2):
                signal.signal(number, signal.SIG_IGN)  # to be asked twice changes nothing
            late = isinstance(stop, OutOfTime) or self._nearly_over(began)
            if late and _saved(self.trial) == before:
                short = f"launcher.time={self.minutes} minutes, or trainer.max_time, is too short"
                return died(self.trial, f"its job came to no step: {short}")
            _queue_again(late)
            sys.exit(Interrupted.exit_code)

    def _nearly_over(self, began: float) -> bool:
        return time.time() - began > 60 * self.minutes - WARNING_SECONDS - EARLY_SECONDS


def _stop(number: int, frame: FrameType | None) -> None:
    """Have training finish its step and save, which it does on SIGTERM; stop at once where nothing is trained."""
    if number == signal.SIGTERM:
        raise KeyboardInterrupt
    os.kill(os.getpid(), signal.SIGTERM)


def _saved(trial: Trial) -> int:
    """Tells the last checkpoint from the one after it."""
    last = trial.folder / "checkpoints" / "last.ckpt"
    return last.stat().st_mtime_ns if last.exists() else 0


def _queue_again(late: bool) -> None:
    """Put this job back into the queue, unless Slurm does so itself or has cancelled it.

    Slurm still counts it as running if its time is nearly over, or if it is preempted but has been given some time of
    grace; if it then simply ended, Slurm would take that for the end of its work.
    """
    environment = submitit.JobEnvironment()
    if environment.cluster == "local" and late:
        sys.exit(LOCAL_REQUEUE_RETURN_CODE)
    if environment.cluster == "slurm":
        job = environment.job_id  # with its place in the array: a number alone may stand for the whole array
        ask = ["squeue", "--noheader", f"--job={job}", "--format=%T"]
        if subprocess.run(ask, capture_output=True, text=True).stdout.strip() == "RUNNING":
            subprocess.run(["scontrol", "requeue", job], check=True)
