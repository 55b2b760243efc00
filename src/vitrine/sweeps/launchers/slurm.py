"""``hydra/launcher=slurm``: each trial a job of a cluster, the jobs of a command one array; ``local`` tries it here.

submitit submits them. Hydra's launcher of that name is not used: it composes the configuration again in each job and
makes folders of its own. Here a job is given a trial, and does with it what every other process does
(:func:`vitrine.sweeps.trial.carry_out`): nothing if it is finished, the rest if there is a checkpoint. So a job can be
preempted, put back into the queue or submitted twice, and the trial's folder says what has become of it.

::

    outputs/sweeps/NAME/
        logs/TRIAL.txt      what the trial printed, in all its jobs
        jobs/               submitit's: the script, what each job was given, and what Slurm said, in *_log.out
"""

import pickle
import time
from pathlib import Path

from vitrine.config.sweep import LauncherConfig
from vitrine.errors import Interrupted
from vitrine.sweeps.launchers.slurm_scheduler import ENDED, NOT_ITS_FAULT, Local, Slurm, needs
from vitrine.sweeps.queue import Queue
from vitrine.sweeps.sweep import Sweep
from vitrine.sweeps.trial import Outcome, Trial, died, outcome
from vitrine.text import plural

SHORTEST, LONGEST = 1.0, 15.0  # seconds between two looks at the cluster: the longer it takes, the fewer


def scheduler(launcher: str, settings: LauncherConfig, sweep: Sweep) -> Slurm | Local:
    """Who runs the jobs of a sweep.

    Raises:
        ConfigError: there is no Slurm here, or a trial needs what ``settings`` do not say.
    """
    for trial in sweep.trials:
        needs(trial, settings)
    return (Slurm if launcher == "slurm" else Local)(sweep.folder / "jobs", settings)


def carry_out_all(queue: Queue, scheduler: Slurm | Local) -> None:
    """Carry out the trials of ``queue`` as jobs.

    Raises:
        RunError: Slurm does not take them.
        Interrupted: Ctrl-C, on which jobs of Slurm go on and local ones stop; or some were cancelled.
    """
    before = scheduler.submitted()
    out: dict[str, Trial] = {}  # by the jobs' ids
    begun: set[str] = set()
    stopped = 0
    start = time.monotonic()
    try:
        while out or not queue.done:
            asked: list[Trial] = []
            while len(out) + len(asked) < scheduler.room and (trial := queue.ask(waits=True)) is not None:
                asked.append(trial)
            adopted = {before.pop(trial.folder.name): trial for trial in asked if trial.folder.name in before}
            out |= adopted | scheduler.submit([trial for trial in asked if trial not in adopted.values()])
            time.sleep(min(max(SHORTEST, (time.monotonic() - start) / 20), LONGEST))
            states = scheduler.states(out)
            for job, trial in list(out.items()):
                # Slurm forgets jobs: after a while those that are over, at once those cancelled while they waited.
                state = states.get(job, "FAILED" if job in begun else "CANCELLED")
                if job not in begun and (state == "RUNNING" or (state in ENDED and state not in NOT_ITS_FAULT)):
                    begun.add(job)
                    queue.begun(trial)
                if state in ENDED:
                    del out[job]
                    stopped += state in NOT_ITS_FAULT
                    _collect(queue, trial, state, scheduler.folder / f"{job}_0_result.pkl")
    except KeyboardInterrupt:
        scheduler.leave(list(out))
        raise Interrupted from None
    if stopped:
        print(f"Slurm stopped {plural(stopped, 'job')} before the trial was finished", flush=True)
        raise Interrupted


def _collect(queue: Queue, trial: Trial, state: str, result: Path) -> None:
    """Tell what a job that is over has made of its trial."""
    told, value = pickle.loads(result.read_bytes()) if result.exists() else ("nothing", None)
    if told == "success":
        if value is None:
            queue.put_back(trial)
        else:
            queue.tell(trial, value)
        return
    came = outcome(trial.folder)
    if state in NOT_ITS_FAULT:
        came = Outcome("interrupted") if came.status == "running" else came
    elif came.status not in ("finished", "failed", "interrupted"):
        why = f"its job {ENDED.get(state, ENDED['FAILED'])}"
        where = result.with_name(result.name.replace("result.pkl", "log.out"))
        came = died(trial, f"{why}; {trial.log} and {where} may say more")
    queue.tell(trial, came)
