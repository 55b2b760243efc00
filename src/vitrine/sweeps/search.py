"""A search: Optuna suggests trials, and any launcher trains them.

A trial of the study is one run, or with ``sweep.repeats`` several with successive seeds. Optuna gets its result once
its runs have ended: failed if a run failed, pruned if the first run was stopped early, else the mean of each objective.
TPE takes a pruned trial as bad; CMA-ES and NSGA-II leave it out. So a trial counts as pruned, too, if a run diverged or
has a non-finite metric, and so does a suggestion whose configuration is invalid; that one does not count towards
``sweep.n_trials``.

hydra-optuna-sweeper 1.3, the sweeper for Hydra 1.3, is not used: it needs Optuna below 3, hands out trials in batches,
and can neither prune, repeat nor resume them.
"""

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from filelock import FileLock
from optuna.trial import FrozenTrial, TrialState, create_trial

from vitrine.command.compose import Point, Variants
from vitrine.command.space import Interval, Space
from vitrine.config.sweep import SweepConfig, TrainCommand, facts_of
from vitrine.errors import ConfigError, RunError
from vitrine.runs import RunRecord
from vitrine.runs.status import DONE, ENDED
from vitrine.sweeps.divergence import forget_outdated
from vitrine.sweeps.fingerprint import TrialFolders, sweep_name
from vitrine.sweeps.locks import held
from vitrine.sweeps.pruner import Pruner
from vitrine.sweeps.queue import TrialQueue
from vitrine.sweeps.search_checks import check_configurations, check_owner, check_trial
from vitrine.sweeps.study import distribution, importance, make_sampler, open_study, set_user_attrs
from vitrine.sweeps.sweep import Sweep, folder_of
from vitrine.sweeps.trial import Trial, TrialResult, is_locked, locked, read_result, take_up
from vitrine.text import report

MAX_INFEASIBLE = 200  # invalid suggestions in a row after which a search gives up
COMPLETE = {"folders", "infeasible"}  # one of these attributes is on every suggestion that no kill has cut short


class Search(TrialQueue):
    """The trials of a search, suggested sequentially and added to the trials of ``sweep``.

    Processes that run the same command share the study: each asks for trials under a lock, and none is trained twice. A
    trial whose process died is handed out again and resumed from its checkpoint.

    Attributes:
        study: the Optuna study.

    Raises:
        RunError: the study cannot be read or written, or a trial in it is not one of this search.
    """

    def __init__(self, point: Point, sweep: Sweep) -> None:
        command: TrainCommand = point.config
        super().__init__(force=command.force)
        self.sweep, self.command, self.settings = sweep, command, command.sweep
        self.n_trials = _count_trials(command.sweep, point.space)
        self.space = point.space
        self._variants = Variants(point.overrides)
        self._folders = TrialFolders(sweep.folder)
        self._runs: dict[int, list[Trial]] = {}  # of each trial of the study
        self._ready: list[Trial] = []
        self._handed_out: set[Path] = set()
        self._reported: set[Path] = set()
        self._unfinished: set[Path] = set()  # of this session: runs that were stopped, as by Slurm, or are not readable
        self._failed: dict[Path, TrialResult] = {}  # of this session: a folder that cannot be locked does not tell
        self._done = self._complete = False
        self._lock = FileLock(sweep.folder / "locks" / "search.lock")
        with held(self._lock):
            self.study = open_study(sweep.folder, self.settings.metrics)
            if "asked" not in self.study.user_attrs:
                self.study.set_user_attr("asked", _identity(point))
            self._load_runs()
            self._retry_failed()
            self._update()
        self._last_update = -math.inf

    @property
    def max_parallel(self) -> float:
        """Runs at a time: a sampler that learns from results needs some before it suggests more."""
        learns = self.settings.sampler not in ("random", "grid")
        return self.command.launcher.workers or (max(2, self.n_trials // 4) if learns else math.inf)

    def ask(self) -> Trial | None:
        """Return the next run to train, or ``None`` if there is none at present."""
        if len(self._handed_out) >= self.max_parallel:
            return None
        if not self._ready and time.monotonic() - self._last_update >= self.POLL_SECONDS:
            with held(self._lock):
                self._update()
                while not self._ready and self._suggest():
                    self._update()
        if not self._ready:
            return None
        run = self._ready.pop(0)
        self._handed_out.add(run.folder)
        self._last_update = -math.inf  # another one may be ready at once
        return run

    def tell(self, trial: Trial, result: TrialResult) -> None:
        """Take the result of a run from :meth:`ask`."""
        self._handed_out.discard(trial.folder)
        if result.status not in (*ENDED, "running"):  # another process is training a running one
            self._unfinished.add(trial.folder)
        if result.status == "failed":
            self._failed[trial.folder] = result
        self._report(trial, result)
        with held(self._lock):
            self._update()
        self._last_update = -math.inf

    def put_back(self, trial: Trial) -> None:
        """Take back a run that another process is training."""
        self._handed_out.discard(trial.folder)

    @property
    def done(self) -> bool:
        """Whether every trial has ended, those in other processes included, or was stopped in this session."""
        return self._done and not self._handed_out

    @property
    def complete(self) -> bool:
        """Whether every trial has ended, those in other processes included."""
        return self._complete and not self._handed_out

    def trials(self) -> list[FrozenTrial]:
        """Trials that count and were known at the last update, in order: neither invalid ones nor those retried."""
        trials = [trial for trial in self._study_trials() if trial.number in self._runs]
        retried = {trial.user_attrs.get("again") for trial in trials}
        return [trial for trial in trials if trial.number not in retried]

    def infeasible(self) -> list[FrozenTrial]:
        """Suggestions with an invalid configuration; ``user_attrs["infeasible"]`` has the reason."""
        return [trial for trial in self._study_trials() if "infeasible" in trial.user_attrs]

    def runs(self, number: int) -> list[Trial]:
        """The runs of a trial of the study."""
        return self._runs[number]

    def results(self, number: int) -> list[TrialResult]:
        """The results of a trial's runs, from their folders; a failure of this session is remembered."""
        return [self._failed.get(run.folder) or read_result(run.folder) for run in self._runs[number]]

    def importance(self) -> dict[str, dict[str, float]]:
        """Share of each objective's variance that each key explains; empty where there are too few trials."""
        return {metric: importance(self.study, number) for number, metric in enumerate(self.settings.metrics)}

    # The methods below are called with the lock held.

    def _study_trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _update(self) -> None:
        """Take in the results of all runs, in whichever process, and find the runs that can start."""
        self._last_update = time.monotonic()
        self._load_runs()
        self._ready = []
        for trial in self._study_trials():
            if trial.state != TrialState.RUNNING:
                continue
            if "folders" not in trial.user_attrs:  # its process was killed before the trial was complete
                self.study.tell(trial.number, state=TrialState.FAIL)
            elif not self._conclude(trial.number):
                self._ready += self._startable(trial.number)
        left = [trial.number for trial in self._study_trials() if trial.state == TrialState.RUNNING]
        enough = len(self.trials()) >= self.n_trials or self._exhausted()
        self._complete = enough and not left
        self._done = enough and all(run.folder in self._unfinished for number in left for run in self._wanted(number))

    def _load_runs(self) -> None:
        """Create the runs of trials that the study has gained."""
        for trial in self._study_trials():
            if "folders" not in trial.user_attrs or trial.number in self._runs:
                continue
            check_trial(trial, self.space, len(self._seeds()), self.sweep.folder)
            varies, configs = trial.user_attrs["varies"], []
            for seed in self._seeds():
                config = self._variants.config(varies | seed)
                if isinstance(config, ConfigError):
                    raise config
                configs.append(config)
            check_configurations(trial, [config.run for config in configs], self.sweep.folder)
            self._add_runs(trial.number, varies, configs, trial.user_attrs["folders"])

    def _seeds(self) -> list[dict[str, str]]:
        """The overrides in which the runs of a trial differ."""
        count = self.settings.repeats
        return [{"seed": str(self.command.seed + offset)} for offset in range(count)] if count > 1 else [{}]

    def _add_runs(self, number: int, varies: dict[str, str], configs: list[TrainCommand], folders: list[str]) -> None:
        runs: list[Trial] = []
        known = {trial.folder: trial.number for trial in self.sweep.trials}
        for config, name, seed in zip(configs, folders, self._seeds(), strict=True):
            folder = self.sweep.folder / name
            position = known.get(folder, len(self.sweep.trials))
            rule = None
            if self.settings.pruner != "none" and not runs:
                epochs = config.trainer.max_epochs
                rule = Pruner(self.sweep.folder, number, self.settings.pruner, self.settings.metrics[0], epochs)
            trial = Trial(
                number=position,
                config=config.run,
                varies=varies | seed,
                folder=folder,
                pruning_rule=rule,
                accept_changed_data=config.accept_changed_data,
                trust=config.trust,
            )
            runs.append(trial)
            self.sweep.trials[position : position + 1] = runs[-1:]
        self._runs[number] = runs

    def _suggest(self) -> bool:
        """Add a trial to the study, unless there are enough; return whether one was added."""
        if len(self.trials()) >= self.n_trials or self._exhausted():
            return False
        number = len(self._study_trials())
        distributions = {key: distribution(values) for key, values in self.space.items()}
        if self.settings.sampler == "grid":
            params = self._next_combination()
            self.study.add_trial(create_trial(state=TrialState.RUNNING, params=params, distributions=distributions))
        else:
            drawn = sum(bool(trial.user_attrs.keys() & COMPLETE) for trial in self._study_trials())
            self.study.sampler = make_sampler(str(self.settings.sampler), self.command.seed, drawn)
            params = self.study.ask(distributions).params
        self._configure(number, params)
        return True

    def _next_combination(self) -> dict[str, Any]:
        """The first combination of a grid that was not tried yet; empty if all were."""
        tried = [trial.params for trial in self._study_trials() if trial.user_attrs.keys() & COMPLETE]
        combinations = (dict(zip(self.space, values, strict=True)) for values in product(*_grid_values(self.space)))
        return next((combination for combination in combinations if combination not in tried), {})

    def _configure(self, number: int, params: Mapping[str, Any]) -> None:
        """Compose the runs of a new trial, or mark it as infeasible."""
        varies = {
            key: values.text(params[key]) if isinstance(values, Interval) else params[key]
            for key, values in self.space.items()
        }
        configs, folders = [], []
        for seed in self._seeds():
            config = self._variants.config(varies | seed)
            if isinstance(config, ConfigError):
                why = "; ".join(f"{fault.key}={fault.given} {fault.problem}" for fault in config.faults)
                set_user_attrs(self.study, number, varies=varies, infeasible=why)
                self.study.tell(number, state=TrialState.PRUNED)
                return
            configs.append(config)
            folders.append(self._folders.find(config.run, varies | seed).name)
        # Folders last: with them the trial is complete.
        set_user_attrs(self.study, number, varies=varies, folders=folders)
        self._add_runs(number, varies, configs, folders)

    def _exhausted(self) -> bool:
        """Whether no valid suggestion is left: all of a grid was tried, or the last suggestions were all invalid."""
        if self.settings.sampler == "grid":
            return not self._next_combination()
        last = self._study_trials()[-MAX_INFEASIBLE:]
        return len(last) == MAX_INFEASIBLE and all("infeasible" in trial.user_attrs for trial in last)

    def _conclude(self, number: int) -> bool:
        """Give Optuna the result of a trial if its runs have ended; return whether they have."""
        runs, results = self._runs[number], self.results(number)
        for run, result in zip(runs, results, strict=True):
            if result.status in ENDED and run.folder not in self._handed_out:
                self._report(run, result)
        statuses = [result.status for result in results]
        if "failed" in statuses:
            set_user_attrs(self.study, number, why=results[statuses.index("failed")].error)
            self.study.tell(number, state=TrialState.FAIL)
            return True
        if "diverged" in statuses:
            return self._prune(number, diverged=results[statuses.index("diverged")].error)
        if "pruned" in statuses:
            return self._prune(number)
        if set(statuses) != {"finished"}:
            return False
        for name in dict.fromkeys([*self.settings.metrics, "val/loss"]):
            if not all(math.isfinite(result.metrics.get(name, math.nan)) for result in results):
                return self._prune(number, diverged=f"{name} is NaN or infinite")
        self.study.tell(number, [fmean(result.metrics[name] for result in results) for name in self.settings.metrics])
        return True

    def _prune(self, number: int, **why: str) -> bool:
        set_user_attrs(self.study, number, **why)
        self.study.tell(number, state=TrialState.PRUNED)
        return True

    def _report(self, run: Trial, result: TrialResult) -> None:
        """Notify listeners of a run's end, once."""
        if run.folder not in self._reported:
            self._notify_ended(run, result)
        if result.status in ENDED:
            self._reported.add(run.folder)

    def _wanted(self, number: int) -> list[Trial]:
        """Runs of a trial that are not done. With a pruner, the first run decides about the others."""
        runs = self._runs[number]
        if self.settings.pruner != "none" and read_result(runs[0].folder).status != "finished":
            runs = runs[:1]
        return [run for run in runs if read_result(run.folder).status not in DONE]

    def _startable(self, number: int) -> list[Trial]:
        """Runs of a trial that no process is training, and that were not stopped in this session.

        One that this user may not read is left to the user who trains it.
        """
        taken = {run.folder for run in self._ready} | self._handed_out | self._unfinished
        found = []
        for run in self._wanted(number):
            if run.folder in taken:
                continue
            if (result := read_result(run.folder)).status == "unreadable":
                report(f"{run.label} is left to the user who trains it: {result.error}")
                self._unfinished.add(run.folder)
            elif take_up(run, self.watch):
                found.append(run)
        return found

    def _retry_failed(self) -> None:
        """Add failed trials to the study again, and those that diverged if the code has changed since.

        Several suggestions of one configuration share folders: the first retry makes them look unfinished to the next.
        """
        trials = self.trials()
        pruned = [run for trial in trials if trial.state == TrialState.PRUNED for run in self._runs[trial.number]]
        outdated = {run.folder for run in forget_outdated(pruned)}
        for trial in trials:
            runs = self._runs[trial.number]
            failed = [run for run in runs if read_result(run.folder).status == "failed"]
            retried = trial.state == TrialState.FAIL and not any(map(is_locked, failed))
            if not retried and outdated.isdisjoint(run.folder for run in runs):
                continue
            retry = create_trial(
                state=TrialState.RUNNING,
                params=trial.params,
                distributions=trial.distributions,
                user_attrs={name: trial.user_attrs[name] for name in ("varies", "folders")} | {"again": trial.number},
                system_attrs=trial.system_attrs,
                intermediate_values=trial.intermediate_values if retried else None,
            )
            self.study.add_trial(retry)
            for run in failed:
                with suppress(RunError), locked(run):
                    RunRecord(run.folder).end("interrupted")


def plan_search(point: Point) -> Sweep:
    """Plan the search that starts at ``point``, in the folder where the same command left it. Nothing is written.

    Raises:
        ConfigError: the folder holds another search, or a sweep that is not a search.
        RunError: the folder was written by another version of vitrine, or a link in it leads out of it.
    """
    command: TrainCommand = point.config
    settings, identity = command.sweep, _identity(point)
    name = sweep_name(point.overrides, list(point.space), command.data.name, identity)
    folder, _ = folder_of(point, name)
    check_owner(folder, identity)
    keys = [*point.space, *(["seed"] if settings.repeats > 1 else [])]
    planned = _count_trials(settings, point.space) * settings.repeats
    return Sweep(folder, [], point.overrides, keys, settings.metrics[0], planned, ranks_runs=False)


def _count_trials(settings: SweepConfig, space: Space) -> int:
    """Number of trials that a search asks for."""
    combinations = math.prod(map(len, _grid_values(space))) if settings.sampler == "grid" else math.inf
    return int(min(settings.n_trials or math.inf, combinations))


def _grid_values(space: Space) -> list[tuple[Any, ...]]:
    """All values of each key of a grid."""
    return [values.numbers if isinstance(values, Interval) else values for values in space.values()]


def _identity(point: Point) -> dict[str, Any]:
    """What makes two commands the same search: fixed overrides, space and objectives; not the sampler or its budget."""
    sweep, data = point.config.sweep, point.config.data.name
    fixed = sorted(
        override.replace("'", "") for override in point.overrides if facts_of(override.partition("=")[0]).affects(data)
    )
    space = {
        key: values.plain if isinstance(values, Interval) else list(values)
        for key, values in sorted(point.space.items())
    }
    return {"fixed": fixed, "space": space, "metrics": sweep.metrics, "repeats": sweep.repeats}
