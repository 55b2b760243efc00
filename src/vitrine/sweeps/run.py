"""``python train.py -m``: plan a sweep, a search or a decision, and train its trials with the chosen launcher."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from vitrine.command.compose import Point
from vitrine.config.schema import TrainConfig
from vitrine.config.sweep import LauncherConfig
from vitrine.distributed.launch import launched
from vitrine.distributed.rendezvous import Ranks, together
from vitrine.errors import ConfigError, DiskFull, Fault, Interrupted, OutOfTime, RunError, interruption
from vitrine.runs import RunRecord, provenance
from vitrine.runs.lock import RunLocked
from vitrine.runs.status import DONE
from vitrine.sweeps.divergence import forget_outdated
from vitrine.sweeps.fingerprint import taught_by_other_weights, trained_with_other_source
from vitrine.sweeps.launchers import process
from vitrine.sweeps.max_time import time_is_short
from vitrine.sweeps.progress import SweepProgress
from vitrine.sweeps.queue import GridQueue, TrialQueue
from vitrine.sweeps.summary import print_sweep
from vitrine.sweeps.sweep import Sweep
from vitrine.sweeps.trial import Trial, TrialResult, run_trial, run_trials_of_rank_0
from vitrine.text import plural, report

Launcher = Callable[[TrialQueue], None]


def run(points: Sequence[Point], launcher: str) -> int:
    """Train the unfinished trials of a sweep or search; return how many failed.

    Under torchrun or srun, all ranks train each trial together, and rank 0 decides which is next.

    Args:
        points: the trials of a sweep, or the single starting point of a search.
        launcher: ``hydra/launcher``.

    Raises:
        RunError: the sweep's folder was written by another version, or cannot be written.
        ConfigError: the launcher needs more cores or GPUs than there are.
        Interrupted: stopped by a signal or by trainer.max_time; the same command continues.
    """
    with together(process_group=False) as ranks:
        if ranks.rank > 0:
            run_trials_of_rank_0(ranks, provenance.process_started_at())
            return 0
        try:
            if points[0].space:
                return _run_search(points[0], launcher, ranks)
            decides = points[0].config.sweep.method is not None
            return _run_decision(points, launcher, ranks) if decides else _run_grid(points, launcher, ranks)
        finally:
            ranks.send(None)


def _run_grid(points: Sequence[Point], launcher: str, ranks: Ranks) -> int:
    sweep = Sweep.plan(points)
    results = sweep.results()
    diverged = [trial for trial, result in zip(sweep.trials, results, strict=True) if result.status == "diverged"]
    if forget_outdated(diverged):
        results = sweep.results()
    left = [trial for trial, result in zip(sweep.trials, results, strict=True) if result.status not in DONE]
    configs = [trial.config for trial in left]
    for part, count in trained_with_other_source(sweep.folder, configs).items():
        are = "is" if count == 1 else "are"
        stay = "what was trained stays, with its source in parts/"
        report(f"{plural(count, 'finished trial')} {are} of other source of {part} and {are} trained again; {stay}")
    finished = [trial for trial, result in zip(sweep.trials, results, strict=True) if result.status == "finished"]
    for teacher, count in taught_by_other_weights((RunRecord(trial.folder) for trial in finished), configs).items():
        learned = f"{plural(count, 'finished trial')} learned from other weights than distill.teacher={teacher} has now"
        report(f"{learned} and {'is' if count == 1 else 'are'} kept; rerun=true trains all trials again")
    name = launcher if left else "basic"
    launch = _prepare_launcher(name, points[0].config.launcher, configs, sweep.folder, ranks)
    queue = GridQueue(left, force=points[0].config.force)
    progress = SweepProgress(sweep, results, live=_is_live(launcher))
    _train(queue, launch, progress)
    print_sweep(sweep, progress.results)
    return sum(result.status not in DONE for result in progress.results)


def _run_search(point: Point, launcher: str, ranks: Ranks) -> int:
    from vitrine.sweeps.search import Search, plan_search
    from vitrine.sweeps.search_summary import describe_search, print_search

    sweep = plan_search(point)
    launch = _prepare_launcher(launcher, point.config.launcher, [point.config.run], sweep.folder, ranks)
    search = Search(point, sweep)
    progress = SweepProgress(sweep, sweep.results(), live=_is_live(launcher), describe=partial(describe_search, search))
    _train(search, launch, progress)
    return print_search(search)


def _run_decision(points: Sequence[Point], launcher: str, ranks: Ranks) -> int:
    from vitrine.sweeps.decide import SeedQueue, plan_decision, print_decision

    sweep = plan_decision(points)
    configs = [point.config.run for point in points]
    launch = _prepare_launcher(launcher, points[0].config.launcher, configs, sweep.folder, ranks)
    queue = SeedQueue(points, sweep)
    live = _is_live(launcher)
    progress = SweepProgress(sweep, sweep.results(), live=live, describe=queue.describe, status=queue.progress)
    _train(queue, launch, progress)
    return print_decision(queue, progress.results)


def _is_live(launcher: str) -> bool:
    return launcher != "basic" and sys.stdout.isatty()


def _train(queue: TrialQueue, launch: Launcher, progress: SweepProgress) -> None:
    """Train the trials of a queue, record their results at the end, and add to an interruption how to continue."""
    queue.subscribe(progress)
    with progress:
        try:
            launch(queue)
        except (Interrupted, KeyboardInterrupt) as stop:
            kind = interruption(stop)
            raise kind(f"{kind.reason}; rerun {provenance.same_command()} to continue") from None
        except DiskFull as full:
            raise DiskFull(full.problem, f"make room and rerun {provenance.same_command()}") from None
        finally:
            progress.record_results()


def _prepare_launcher(
    name: str, settings: LauncherConfig, configs: Sequence[TrainConfig], folder: Path, ranks: Ranks
) -> Launcher:
    """Return the function that trains a queue's trials; ``configs`` are theirs, or one that stands for all.

    Raises:
        ConfigError: the launcher cannot train such trials here.
    """
    if name == "basic":
        return partial(_train_in_this_process, ranks=ranks)
    if (started := launched()) is not None:
        problem = f"{started.by} has started ranks that train each trial together"
        raise ConfigError([Fault("hydra/launcher", name, problem, "hydra/launcher=basic")])
    os.environ[provenance.COMMAND] = provenance.command()  # for the trials' run.json
    if name == "process":
        return partial(process.train_in_processes, slots=process.allocate_slots(settings, configs))
    from vitrine.sweeps.launchers import slurm

    return partial(slurm.train_in_jobs, scheduler=slurm.make_scheduler(settings, configs, folder / "jobs"))


def _train_in_this_process(queue: TrialQueue, ranks: Ranks) -> None:
    """Train trials sequentially: ``hydra/launcher=basic``."""
    time_from = provenance.process_started_at()
    trained: list[Trial] = []
    while not queue.done:
        if time_is_short(trained, time_from):
            raise OutOfTime
        if (trial := queue.ask()) is None:
            time.sleep(0.2)
            continue
        queue.started(trial)
        try:
            result = run_trial(trial, time_from=time_from, ranks=ranks)
        except RunLocked:
            queue.put_back(trial)
            continue
        except DiskFull:
            raise
        except RunError as error:
            result = TrialResult("failed", error=str(error))
        queue.tell(trial, result)
        trained.append(trial)
