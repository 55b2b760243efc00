"""The study of a search: what Optuna knows of its trials, kept in ``study.journal`` in the sweep's folder.

The journal only grows, by whole lines, under a lock that the system takes back when a process dies; so several
processes add to it, and a killed one leaves nothing half done.
"""

import hashlib
import os
from pathlib import Path
from typing import Any, cast

import optuna
from filelock import FileLock
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, CmaEsSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection as Direction
from optuna.trial import Trial

from vitrine.config.space import Interval, Values
from vitrine.config.sweep import OBJECTIVES
from vitrine.errors import RunError, first_line

NAME = "search"
TELLING = 20  # finished trials from which on they say what matters
POPULATION = 16  # of NSGA-II: few, since each of its members is a training


def open_study(folder: Path, metrics: list[str] | None = None) -> optuna.Study:
    """The study in the sweep's ``folder``; made, if it is not there and ``metrics`` says what for.

    Raises:
        RunError: there is none, or it cannot be read.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = folder / "study.journal"
    lock = FileLock(folder / "locks" / "journal.lock")
    try:
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        with lock:
            _drop_half_a_line(path)
        storage = JournalStorage(JournalFileBackend(str(path), lock_obj=cast(Any, lock)))  # Optuna's own locks outlive
        if metrics is None:
            return optuna.load_study(study_name=NAME, storage=storage, sampler=RandomSampler())
        directions = [Direction.MAXIMIZE if OBJECTIVES[metric] else Direction.MINIMIZE for metric in metrics]
        return optuna.create_study(study_name=NAME, storage=storage, directions=directions, load_if_exists=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"cannot read {path}: {first_line(error)}; rerun=true starts over beside it") from None


def distribution(values: Values) -> BaseDistribution:
    """What a key or group of a space may be, as Optuna puts it."""
    if not isinstance(values, Interval):
        return CategoricalDistribution(values)
    high = values.numbers[-1] if values.step else values.high  # of the last step that is whole
    if values.whole:
        return IntDistribution(int(values.low), int(high), log=values.log, step=int(values.step or 1))
    return FloatDistribution(values.low, high, log=values.log, step=values.step)


def sampler(name: str, *seeds: int) -> BaseSampler:
    """A sampler that knows nothing but the study and ``seeds``.

    One is made for each trial, with the trial's number among its seeds: so what it chooses does not depend on how often
    the search was stopped before.
    """
    seed = int.from_bytes(hashlib.sha256(",".join(map(str, seeds)).encode()).digest()[:4], "little")
    if name == "tpe":
        return TPESampler(seed=seed, constant_liar=True)  # trials that run count as bad: their neighbours wait
    if name == "cmaes":
        return CmaEsSampler(seed=seed, warn_independent_sampling=False)
    if name == "nsga2":
        return NSGAIISampler(population_size=POPULATION, seed=seed)
    return RandomSampler(seed=seed)


def pruner(name: str, epochs: int) -> BasePruner:
    """A pruner of runs of so many epochs.

    ``median`` stops a run whose best epoch so far is worse than the median of five or more others at that epoch, and
    looks at none in its first quarter, which says little yet. ``successive_halving`` (arXiv:1810.05934) keeps the best
    quarter at 1/16 of the epochs, and of these the best quarter at 1/4.
    """
    if name == "median":
        return MedianPruner(n_startup_trials=5, n_warmup_steps=epochs // 4)
    if name == "successive_halving":
        return SuccessiveHalvingPruner(min_resource=max(1, epochs // 16), reduction_factor=4)
    return NopPruner()


def report(study: optuna.Study, number: int, epoch: int, value: float) -> bool:
    """Tell what a trial has reached after an epoch, from whichever process trains it; gives whether to stop it."""
    known = study.get_trials(deepcopy=False)[number]
    if known.state.is_finished():  # another of its runs has failed
        return False
    trial = Trial(study, known._trial_id)
    if epoch not in known.intermediate_values:  # else it was trained so far before
        trial.report(value, epoch)
    return trial.should_prune()


def note(study: optuna.Study, number: int, **facts: Any) -> None:
    """Keep facts of a trial in the study, one after the other."""
    trial = Trial(study, study.get_trials(deepcopy=False)[number]._trial_id)
    for name, value in facts.items():
        trial.set_user_attr(name, value)


def importance(study: optuna.Study, objective: int) -> dict[str, float]:
    """How much of an objective's variance each key explains, in shares of 1: fANOVA (Hutter et al., ICML 2014).

    Empty where there is too little to say: fewer than ``TELLING`` trials, one key, or values that are all the same.
    """
    done = [trial for trial in study.get_trials(deepcopy=False) if trial.values is not None]
    values = {trial.values[objective] for trial in done}
    if len(done) < TELLING or len(values) < 2 or len(done[0].params) < 2:
        return {}
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances  # imports scikit-learn

    evaluator = FanovaImportanceEvaluator(seed=0)
    shares = get_param_importances(study, evaluator=evaluator, target=lambda trial: trial.values[objective])
    return {key: round(float(share), 4) for key, share in shares.items()}


def _drop_half_a_line(path: Path) -> None:
    """What a full disk or a power cut has left at the journal's end."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        written = file.read()
        whole = written.rfind(b"\n") + 1
        if whole < len(written):
            file.truncate(whole)
            os.fsync(file.fileno())
