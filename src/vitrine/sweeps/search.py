"""A search: Optuna says which trial is next, and every launcher carries it out.

hydra-optuna-sweeper 1.3, the sweeper for stable Hydra, needs Optuna below 3 and hands out trials in batches to Hydra's
launchers, without pruning, repeats, or going on with what was interrupted.

A trial of the study is one run, or several with successive seeds. It is told to Optuna when its runs are over: as
failed if one of them failed or gave no number, as pruned if the first one was stopped early, else with the means of
what the search goes by. What cannot be trained at all is told as pruned before it began, which samplers take for
worst, and does not count among ``sweep.n_trials``.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from filelock import FileLock
from optuna.trial import FrozenTrial, TrialState, create_trial

from vitrine.command.compose import Point, Variants
from vitrine.config.space import Interval
from vitrine.config.sweep import TrainCommand, facts_of
from vitrine.errors import ConfigError, Fault
from vitrine.runs import RunRecord
from vitrine.sweeps.fingerprint import TrialFolders, sweep_name
from vitrine.sweeps.pruner import Pruner
from vitrine.sweeps.study import distribution, note, open_study, sampler
from vitrine.sweeps.sweep import Sweep, check_format, newest
from vitrine.sweeps.trial import OVER, Busy, Outcome, Trial, busy, held, outcome

IN_VAIN = 200  # suggestions in a row that cannot be trained, after which a search gives up


class Search:
    """The trials of a search, handed out one by one as a :class:`vitrine.sweeps.queue.Queue` does.

    Several processes that are given the same search share its study: each asks for trials under a lock, and none is
    done twice. A trial that nobody is at any more is handed out again, and goes on from its checkpoint.

    Args:
        point: where it begins.
        folder: where it lies, as :func:`folder_of` says.

    Attributes:
        sweep: the runs known so far.
        study: what Optuna knows.
        begins: told of each run when it is handed out.
        ended: told of each run with what it has come to, once.

    Raises:
        RunError: the study cannot be read.
    """

    ELSEWHERE_SECONDS = 1.0  # between two looks at what other processes do

    def __init__(self, point: Point, folder: Path) -> None:
        command: TrainCommand = point.config
        self.command, self.settings, self.space, self.words = command, command.sweep, point.space, point.words
        self._variants = Variants(point.words)
        (folder / "locks").mkdir(parents=True, exist_ok=True)
        self._folders = TrialFolders(folder)
        self._lock = FileLock(folder / "locks" / "search.lock")
        self._runs: dict[int, list[Trial]] = {}  # of each trial of the study
        self._ready: list[Trial] = []
        self._out: set[Path] = set()
        self._ended: set[Path] = set()
        self._done = False
        self._looked = -math.inf
        self.begins: Callable[[Trial], None] = lambda trial: None
        self.ended: Callable[[Trial, Outcome], None] = lambda trial, came: None
        keys = [*self.space, *(["seed"] if self.settings.repeats > 1 else [])]
        planned = self.n_trials * self.settings.repeats
        self.sweep = Sweep(folder, [], self.words, keys, self.settings.metrics[0], planned)
        with self._lock:
            self.study = open_study(folder, self.settings.metrics)
            if "asked" not in self.study.user_attrs:
                self.study.set_user_attr("asked", _asked(point))
            self._learn()
            self._try_again()
            self._look()
        self._looked = -math.inf

    @property
    def n_trials(self) -> int:
        """Trials that are asked for in all."""
        combinations = math.prod(map(len, self._values())) if self.settings.sampler == "grid" else math.inf
        return int(min(self.settings.n_trials or math.inf, combinations))

    @property
    def at_once(self) -> float:
        """Runs that are handed out at a time: what a sampler is to learn from has to be over before it chooses."""
        learns = self.settings.sampler not in ("random", "grid")
        return self.command.launcher.workers or (max(2, self.n_trials // 4) if learns else math.inf)

    def ask(self, *, waits: bool = False) -> Trial | None:
        """The next run to carry out; ``None`` where there is none now. Every run is then told or put back.

        Where it ``waits`` for something before it is begun, :meth:`begun` says when it is.
        """
        if len(self._out) >= self.at_once:
            return None
        if not self._ready and time.monotonic() - self._looked >= self.ELSEWHERE_SECONDS:
            with self._lock:
                self._look()
                while not self._ready and self._suggest():
                    self._look()
        if not self._ready:
            return None
        trial = self._ready.pop(0)
        self._out.add(trial.folder)
        self._looked = -math.inf  # there may be another one at once
        if not waits:
            self.begun(trial)
        return trial

    def begun(self, trial: Trial) -> None:
        """A run that was handed out to wait has been begun."""
        self.begins(trial)

    def tell(self, trial: Trial, came: Outcome) -> None:
        """Take what a run that was handed out has come to."""
        self._out.discard(trial.folder)
        self._end(trial, came)
        with self._lock:
            self._look()
        self._looked = -math.inf

    def put_back(self, trial: Trial) -> None:
        """Another process is at it."""
        self._out.discard(trial.folder)

    @property
    def done(self) -> bool:
        """Whether no trial is left to choose, handed out, or with other processes."""
        return self._done and not self._out

    def trials(self) -> list[FrozenTrial]:
        """Those of the study that count, in their order: not what cannot be trained, nor what was tried again."""
        all_of_them = self._all()
        again = {one.user_attrs.get("again") for one in all_of_them}
        return [one for one in all_of_them if "folders" in one.user_attrs and one.number not in again]

    def infeasible(self) -> list[FrozenTrial]:
        """Suggestions that cannot be trained; ``user_attrs["infeasible"]`` says why."""
        return [one for one in self._all() if "infeasible" in one.user_attrs]

    def runs(self, number: int) -> list[Trial]:
        """The runs of a trial of the study."""
        return self._runs[number]

    # All that follows is done under the lock.

    def _all(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _look(self) -> None:
        """Take in what has become of all trials, here and elsewhere, and find the runs that can begin."""
        self._looked = time.monotonic()
        self._learn()
        self._ready = []
        for trial in self._all():
            if trial.state != TrialState.RUNNING:
                continue
            if "folders" not in trial.user_attrs:  # whoever asked for it was killed before it was complete
                self.study.tell(trial.number, state=TrialState.FAIL)
            elif not self._settled(trial.number):
                self._ready += self._startable(trial.number)
        left = any(one.state == TrialState.RUNNING for one in self._all())
        self._done = not left and (len(self.trials()) >= self.n_trials or self._given_up())

    def _learn(self) -> None:
        """Make runs of what is in the study."""
        new = [one for one in self._all() if "folders" in one.user_attrs and one.number not in self._runs]
        seeds = self._seeds()
        for one in new:
            varies, configs = one.user_attrs["varies"], []
            for seed in seeds:
                config = self._variants.config(varies | seed)
                if isinstance(config, ConfigError):
                    raise config
                configs.append(config)
            self._add(one.number, varies, configs, one.user_attrs["folders"])

    def _seeds(self) -> list[dict[str, str]]:
        """The words in which the runs of a trial differ."""
        count = self.settings.repeats
        return [{"seed": str(self.command.seed + number)} for number in range(count)] if count > 1 else [{}]

    def _add(self, number: int, varies: dict[str, str], configs: list[TrainCommand], folders: list[str]) -> None:
        runs: list[Trial] = []
        known = {one.folder: one.number for one in self.sweep.trials}
        for config, name, seed in zip(configs, folders, self._seeds(), strict=True):
            folder = self.sweep.folder / name
            place = known.get(folder, len(self.sweep.trials))
            rule = None
            if self.settings.pruner != "none" and not runs:
                epochs = config.trainer.max_epochs
                rule = Pruner(self.sweep.folder, number, self.settings.pruner, self.settings.metrics[0], epochs)
            runs.append(Trial(place, config.run, varies | seed, folder, rule))
            self.sweep.trials[place : place + 1] = runs[-1:]
        self._runs[number] = runs

    def _suggest(self) -> bool:
        """Add a trial to the study, if there is still one to come; gives whether to look at it."""
        if len(self.trials()) >= self.n_trials or self._given_up():
            return False
        number = len(self._all())
        distributions = {key: distribution(values) for key, values in self.space.items()}
        if self.settings.sampler == "grid":
            params = self._next_of_grid()
            self.study.add_trial(create_trial(state=TrialState.RUNNING, params=params, distributions=distributions))
        else:
            self.study.sampler = sampler(str(self.settings.sampler), self.command.seed, number)
            params = self.study.ask(distributions).params
        self._complete(number, params)
        return True

    def _values(self) -> list[tuple[Any, ...]]:
        """All values of each key, for a grid."""
        return [one.numbers if isinstance(one, Interval) else one for one in self.space.values()]

    def _next_of_grid(self) -> dict[str, Any]:
        """The first combination that was not tried yet; empty where all were."""
        tried = [one.params for one in self._all() if one.user_attrs.keys() & {"folders", "infeasible"}]
        combinations = (dict(zip(self.space, one, strict=True)) for one in product(*self._values()))
        return next((one for one in combinations if one not in tried), {})

    def _complete(self, number: int, params: dict[str, Any]) -> None:
        """Find the runs of a new trial, or that there can be none."""
        varies = {
            key: values.word(params[key]) if isinstance(values, Interval) else params[key]
            for key, values in self.space.items()
        }
        seeds = self._seeds()
        configs = []
        for seed in seeds:
            config = self._variants.config(varies | seed)
            if isinstance(config, ConfigError):
                why = "; ".join(f"{one.key}={one.given} {one.problem}" for one in config.faults)
                note(self.study, number, varies=varies, infeasible=why)
                self.study.tell(number, state=TrialState.PRUNED)
                return
            configs.append(config)
        found = [self._folders.find(config.run, varies | seed) for config, seed in zip(configs, seeds, strict=True)]
        folders = [folder.name for folder in found]
        note(self.study, number, varies=varies, folders=folders)  # folders last: they say that the trial is complete
        self._add(number, varies, configs, folders)

    def _given_up(self) -> bool:
        """Whether nothing more is to be expected: a grid is at its end, or the last suggestions were all in vain."""
        if self.settings.sampler == "grid":
            return not self._next_of_grid()
        last = self._all()[-IN_VAIN:]
        return len(last) == IN_VAIN and all("infeasible" in one.user_attrs for one in last)

    def _settled(self, number: int) -> bool:
        """Tell Optuna what a trial has come to, if that can be said; gives whether it can."""
        runs = self._runs[number]
        came = [outcome(run.folder) for run in runs]
        for run, one in zip(runs, came, strict=True):
            if one.status in (*OVER, "failed") and run.folder not in self._out:
                self._end(run, one)
        states = [one.status for one in came]
        if "failed" in states:
            return self._fail(number, came[states.index("failed")].error)
        if "pruned" in states:
            self.study.tell(number, state=TrialState.PRUNED)
            return True
        if set(states) != {"finished"}:
            return False
        for name in dict.fromkeys([*self.settings.metrics, "val/loss"]):
            if not all(math.isfinite(one.metrics.get(name, math.nan)) for one in came):
                return self._fail(number, f"{name} is not a number")
        self.study.tell(number, [fmean(one.metrics[name] for one in came) for name in self.settings.metrics])
        return True

    def _fail(self, number: int, why: str) -> bool:
        note(self.study, number, why=why)
        self.study.tell(number, state=TrialState.FAIL)
        return True

    def _end(self, run: Trial, came: Outcome) -> None:
        if run.folder not in self._ended:
            self.ended(run, came)
        if came.status in (*OVER, "failed"):
            self._ended.add(run.folder)

    def _startable(self, number: int) -> list[Trial]:
        """Runs of a trial that nobody is at. With a pruner, the first one says whether the others are worth it."""
        runs = self._runs[number]
        if self.settings.pruner != "none" and outcome(runs[0].folder).status != "finished":
            runs = runs[:1]
        known = {one.folder for one in self._ready} | self._out
        return [
            run for run in runs if run.folder not in known and outcome(run.folder).status not in OVER and not busy(run)
        ]

    def _try_again(self) -> None:
        """Make new trials of those that failed for a reason that may be gone: not of those that gave no number."""
        for trial in self.trials():
            failed = [run for run in self._runs[trial.number] if outcome(run.folder).status == "failed"]
            if trial.state != TrialState.FAIL or not failed or any(map(busy, failed)):
                continue
            again = create_trial(
                state=TrialState.RUNNING,
                params=trial.params,
                distributions=trial.distributions,
                user_attrs={name: trial.user_attrs[name] for name in ("varies", "folders")} | {"again": trial.number},
                system_attrs=trial.system_attrs,
                intermediate_values=trial.intermediate_values,
            )
            self.study.add_trial(again)
            for run in failed:
                with suppress(Busy), held(run):
                    RunRecord(run.folder).end("interrupted")


def folder_of(point: Point) -> Path:
    """Where the search that begins at ``point`` lies; nothing is written.

    Raises:
        ConfigError: the folder is another search's, or no search's.
        RunError: it is of another version of vitrine.
    """
    command: TrainCommand = point.config
    asked = _asked(point)
    name = command.sweep.name or sweep_name(point.words, list(point.space), command.data.name, asked)
    folder = newest(point.folder or Path(command.paths.output_dir) / "sweeps" / name, command.rerun)
    check_format(folder)
    _check_owner(folder, asked)
    return folder


def _asked(point: Point) -> dict[str, Any]:
    """What makes a search the same search: what is fixed, where it looks and what it goes by; not how it looks."""
    sweep, data = point.config.sweep, point.config.data.name
    fixed = sorted(word.replace("'", "") for word in point.words if facts_of(word.partition("=")[0]).affects(data))
    space = {key: one.plain if isinstance(one, Interval) else list(one) for key, one in sorted(point.space.items())}
    return {"fixed": fixed, "space": space, "metrics": sweep.metrics, "repeats": sweep.repeats}


def _check_owner(folder: Path, asked: dict[str, Any]) -> None:
    hint = "give this one another sweep.name"
    if not (folder / "study.journal").exists():
        if (folder / "sweep.json").exists():
            problem = f"is the name of a sweep that is no search; {hint}"
            raise ConfigError([Fault("sweep.name", folder.name, problem)])
        return
    theirs = open_study(folder, asked["metrics"]).user_attrs.get("asked", asked)
    differs = [
        f"its {key} {_told(theirs.get(key))}, this one's {_told(ours)}"
        for key, ours in asked.items()
        if theirs.get(key) != ours
    ]
    if differs:
        problem = f"is the name of another search: {'; '.join(differs)}; {hint}"
        raise ConfigError([Fault("sweep.name", folder.name, problem)])


def _told(value: Any) -> str:
    return str(value).replace("'", "")
