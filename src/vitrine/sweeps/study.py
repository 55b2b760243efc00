"""The Optuna study of a search, in ``study.journal`` in the sweep's folder.

Processes append whole lines to the journal under a lock, which the system releases when a process dies. So several
processes can share a study, and one that is killed leaves it consistent.
"""

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import optuna
from filelock import FileLock
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, CmaEsSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection as Direction
from optuna.trial import FrozenTrial, Trial, TrialState

from vitrine.command.space import Interval, Values
from vitrine.config.metrics import lower_is_better
from vitrine.errors import RunError, first_line
from vitrine.sweeps.locks import held
from vitrine.untrusted import refuse_pipe

NAME = "search"
MIN_TRIALS_FOR_IMPORTANCE = 20
MAX_JOURNAL = 256 * 1024**2  # bytes: over a million epochs that are reported; Optuna reads all of it
_START = b'{"op_code":'  # of a journal of Optuna
# What Optuna raises where a journal is damaged.
_DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError)
POPULATION = 16  # of NSGA-II: small, since each member is a training run


def open_study(folder: Path, metrics: list[str] | None = None) -> optuna.Study:
    """Open the study in a sweep's folder; with ``metrics``, its objectives, it is created if there is none.

    Raises:
        RunError: the study is missing or damaged, or cannot be locked; or its journal is none of Optuna's, which is
            left as it is, a link, or larger than ``MAX_JOURNAL``.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = folder / "study.journal"
    lock = FileLock(folder / "locks" / "journal.lock")
    try:
        with held(lock):
            if os.path.lexists(path):
                with _opened(path, "rb+") as file:
                    _drop_incomplete_line(file)
        storage = JournalStorage(_Journal(path, lock))
        if metrics is None:
            return optuna.load_study(study_name=NAME, storage=storage, sampler=RandomSampler())
        directions = [Direction.MINIMIZE if lower_is_better(metric) else Direction.MAXIMIZE for metric in metrics]
        return optuna.create_study(study_name=NAME, storage=storage, directions=directions, load_if_exists=True)
    except _DAMAGED as error:
        raise unreadable(path, error) from None


def user_attrs(folder: Path) -> dict[str, Any]:
    """Return the user attributes of the study in a sweep's folder; none of one that is not begun. Nothing is written.

    Raises:
        RunError: as :func:`open_study`.
    """
    path = folder / "study.journal"
    try:
        with _opened(path, "rb"):
            storage = JournalStorage(JournalFileBackend(str(path)))
        begun = any(study.study_name == NAME for study in storage.get_all_studies())
        return storage.get_study_user_attrs(storage.get_study_id_from_name(NAME)) if begun else {}
    except _DAMAGED as error:
        raise unreadable(path, error) from None


class _Journal(JournalFileBackend):
    """A journal to append to, after a part of a line, too: a disk that was full for a moment leaves one.

    Args:
        path: of the journal.
        lock: to append under. Optuna's own outlives its process.
    """

    def __init__(self, path: Path, lock: FileLock) -> None:
        super().__init__(str(path), lock_obj=cast(Any, lock))
        self._path, self._held = path, lock

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        with held(self._held), self._path.open("rb+") as file:
            _drop_incomplete_line(file)
            try:
                super().append_logs(logs)
            except OSError:
                _drop_incomplete_line(file)
                raise


def distribution(values: Values) -> BaseDistribution:
    """Optuna's distribution for the values of a key or config group."""
    if not isinstance(values, Interval):
        return CategoricalDistribution(values)
    high = values.numbers[-1] if values.step else values.high  # the last value of the grid
    if values.whole:
        return IntDistribution(int(values.low), int(high), log=values.log, step=int(values.step or 1))
    return FloatDistribution(values.low, high, log=values.log, step=values.step)


class SafeCmaEsSampler(CmaEsSampler):
    """CMA-ES whose state is computed again from the finished trials.

    Optuna pickles the state into the study, and unpickles it for the next trial. Unpickling can run any code, and a
    study may have been written by someone else. The state follows from the trials of each generation, so it need not
    be stored.
    """

    _finished: Sequence[FrozenTrial] = ()

    def _restore_optimizer(self, completed_trials: list[FrozenTrial]) -> None:
        self._finished = completed_trials  # Optuna calls _init_optimizer next, since nothing is restored

    def _init_optimizer(self, trans: Any, direction: Direction) -> Any:
        optimizer = super()._init_optimizer(trans, direction)
        sign = 1 if direction == Direction.MINIMIZE else -1
        while True:
            solutions = self._get_solution_trials(list(self._finished), optimizer.generation)
            if len(solutions) < optimizer.population_size:
                return optimizer
            evaluated = solutions[: optimizer.population_size]
            optimizer.tell([(trans.transform(trial.params), sign * cast(float, trial.value)) for trial in evaluated])


def make_sampler(name: str, *seeds: int) -> BaseSampler:
    """Make a sampler whose suggestion depends on the study and ``seeds`` alone.

    Each trial gets its own, with the number of suggestions before it among the seeds: an interruption does not change
    what is suggested.
    """
    seed = int.from_bytes(hashlib.sha256(",".join(map(str, seeds)).encode()).digest()[:4], "little")
    if name == "tpe":
        return TPESampler(seed=seed, constant_liar=True)  # avoids the neighbours of running trials
    if name == "cmaes":
        return SafeCmaEsSampler(seed=seed, warn_independent_sampling=False)
    if name == "nsga2":
        return NSGAIISampler(population_size=POPULATION, seed=seed)
    return RandomSampler(seed=seed)


def make_pruner(name: str, epochs: int) -> BasePruner:
    """Make a pruner for runs of ``epochs`` epochs.

    ``median`` stops a run whose best value so far is worse than the median of at least five other runs at the same
    epoch, but never in the first quarter of the epochs. ``successive_halving`` (arXiv:1810.05934) keeps the best
    quarter of the runs at 1/16 of the epochs, rounded up, and the best quarter of these after four times as many.
    """
    if name == "median":
        return MedianPruner(n_startup_trials=5, n_warmup_steps=math.ceil(epochs / 4), n_min_trials=5)
    if name == "successive_halving":  # the third time, at 16 times as many, never comes before the end
        return SuccessiveHalvingPruner(min_resource=math.ceil(epochs / 16), reduction_factor=4)
    return NopPruner()


def report_epoch(study: optuna.Study, number: int, epoch: int, value: float) -> bool:
    """Report a trial's value after an epoch; return whether to prune the trial.

    The decision holds for later epochs, too: an interruption in its epoch comes first, and the run is resumed.
    """
    known = study.get_trials(deepcopy=False)[number]
    if known.state.is_finished():  # another run of the trial failed
        return False
    trial = Trial(study, known._trial_id)
    if epoch not in known.intermediate_values:  # a resumed run repeats epochs
        trial.report(value, epoch)
    if "prune_after" not in known.user_attrs and trial.should_prune():
        set_user_attrs(study, number, prune_after=epoch)
        return True
    return "prune_after" in known.user_attrs


def set_user_attrs(study: optuna.Study, number: int, **facts: Any) -> None:
    """Store user attributes of a trial, in the given order."""
    trial = Trial(study, study.get_trials(deepcopy=False)[number]._trial_id)
    for name, value in facts.items():
        trial.set_user_attr(name, value)


def importance(study: optuna.Study, objective: int) -> dict[str, float]:
    """Share of an objective's variance that each key explains alone, in [0, 1]: fANOVA (Hutter et al., ICML 2014).

    The rest belongs to keys together. The variance is that of a forest fitted to the trials, which also fits chance: of
    pure noise, two keys get about 90 % together after 20 trials. Empty with fewer than ``MIN_TRIALS_FOR_IMPORTANCE``
    finished trials, a single key, or equal values throughout.
    """
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))  # a pruned one has its last epoch's value
    values = {trial.values[objective] for trial in done}
    if len(done) < MIN_TRIALS_FOR_IMPORTANCE or len(values) < 2 or len(done[0].params) < 2:
        return {}
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances  # imports scikit-learn

    evaluator = FanovaImportanceEvaluator(seed=0)
    shares = get_param_importances(
        study, evaluator=evaluator, target=lambda trial: trial.values[objective], normalize=False
    )
    return {key: round(float(share), 4) for key, share in shares.items()}


def _drop_incomplete_line(file: IO[bytes]) -> None:
    """Remove an incomplete last line, as a full disk or a power cut leaves it."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 1))
    if file.read() in (b"", b"\n"):
        return
    file.seek(0)
    file.truncate(file.read().rfind(b"\n") + 1)
    os.fsync(file.fileno())


@contextmanager
def _opened(path: Path, mode: str) -> Iterator[IO[bytes]]:
    """Open a journal, which others may have made, if it is Optuna's and to write to it changes no file elsewhere.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is not such a file, or larger than ``MAX_JOURNAL``.
    """
    refuse_pipe(path)
    if path.is_symlink():
        raise ValueError("it is a link")
    with open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as file:
        status = os.fstat(file.fileno())
        if status.st_nlink > 1:
            raise ValueError("it is a hard link to another file; put a copy in its place")
        if status.st_size > MAX_JOURNAL:
            raise ValueError(f"it is larger than {MAX_JOURNAL // 1024**2} MiB")
        if not _START.startswith(file.read(len(_START))):
            raise ValueError("it is not a journal of Optuna")
        file.seek(0)
        yield file


def unreadable(path: Path, error: Exception) -> RunError:
    """Return the error for a journal that cannot be read."""
    return RunError(f"cannot read {path}: {first_line(error)}; rerun=true starts over in a new folder")
