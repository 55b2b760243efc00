"""A trial of a sweep: trained once, by whichever process gets to it first.

The state of a trial is its folder. The process that trains it holds a lock, which the system releases when the process
dies. It reads the folder and does what is left: nothing, the epochs after the last checkpoint, or everything.
"""

import secrets
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from vitrine.config import TrainConfig
from vitrine.config.parts import code_of, names_of
from vitrine.config.serialize import from_plain, to_plain
from vitrine.distributed.rendezvous import Ranks
from vitrine.durations import duration_seconds
from vitrine.errors import DiskFull, Diverged, Interrupted, Pruned, RunError, VitrineError
from vitrine.files import disk_full
from vitrine.runs import RunRecord
from vitrine.runs.record import status_of
from vitrine.sweeps.fingerprint import VERSION, record_facts
from vitrine.sweeps.pruner import Pruner

DONE = ("finished", "pruned", "diverged")  # never trained again; see also divergence.py
ENDED = (*DONE, "failed")
STEP_AND_SAVE_SECONDS = 10.0  # of a trial's first step and its checkpoint, at most


@dataclass(frozen=True)
class Trial:
    """A trial; picklable, so that it can be sent to another process.

    Attributes:
        number: position in the sweep, from 0.
        config: complete configuration.
        varies: overrides in which it differs from the other trials.
        folder: its run folder, inside the sweep's folder.
        pruning_rule: stops the run early if other trials of the search do better.
        code: hashes of the source of the user's parts when the trial was planned, by their names.
    """

    number: int
    config: TrainConfig
    varies: dict[str, str]
    folder: Path
    pruning_rule: Pruner | None = None
    code: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", code_of(self.config))

    @property
    def label(self) -> str:
        """The varying overrides in one word: ``patch=2,seed=1``."""
        return ",".join(f"{key}={value}" for key, value in self.varies.items())

    @property
    def lock(self) -> Path:
        """Lock file, outside the run folder, which may be removed."""
        return self.folder.parent / "locks" / f"{self.folder.name}.lock"

    @property
    def log(self) -> Path:
        """Output of the trial's process, if the launcher gives it one."""
        return self.folder.parent / "logs" / f"{self.folder.name}.txt"


@dataclass(frozen=True)
class TrialResult:
    """What a trial's folder holds.

    Attributes:
        status: ``new`` (not started), ``running``, ``finished``, ``pruned``, ``diverged``, ``failed``,
            ``interrupted``, or ``damaged`` if run.json cannot be read.
        metrics: final metrics, model size and speed; empty unless finished.
        error: why the trial failed, or where it was pruned or diverged; else empty.
        seconds: training time over all sessions; 0.0 if unknown.
        fingerprint_version: see :mod:`vitrine.sweeps.fingerprint`.
    """

    status: str
    metrics: dict[str, float] = field(default_factory=dict)
    error: str = ""
    seconds: float = 0.0
    fingerprint_version: int = VERSION


def read_result(folder: Path) -> TrialResult:
    """Read a trial's result from its run folder."""
    if not (folder / "run.json").exists():
        return TrialResult("new")
    record = RunRecord(folder)
    try:
        known = record.facts
        status = status_of(known)
        metrics = record.metrics if status == "finished" else {}
    except RunError as error:
        return TrialResult("damaged", error=str(error))
    seconds = metrics.get("train_seconds", 0.0)
    version = known.get("fingerprint_version", 1)
    return TrialResult(status, metrics and metrics | _size_and_speed(known), known.get("error") or "", seconds, version)


def _size_and_speed(known: dict[str, Any]) -> dict[str, float]:
    """Facts of a run that a search can use as objectives."""
    found = {name: known.get(name) for name in ("parameters", "flops_per_image")}
    found["images_per_second"] = (known.get("speed") or {}).get("images_per_second")
    return {name: value for name, value in found.items() if value is not None}


def run_trial(
    trial: Trial, began: float | None = None, time_from: float | None = None, ranks: Ranks | None = None
) -> TrialResult:
    """Train what is left of ``trial``; a failure is recorded in its folder and returned, not raised.

    Args:
        trial: what to train.
        began: when its process began, as ``time.time()`` gives it; now if ``None``.
        time_from: when ``trainer.max_time`` began; ``began`` if ``None``.
        ranks: those that train it together; this is rank 0, the others call :func:`run_trials_of_rank_0`.

    Raises:
        TrialLocked: another process is training it.
        Interrupted: stopped by a signal or by ``trainer.max_time``, with a checkpoint.
        DiskFull: the disk is full, as it would be for the next trial.
    """
    with locked(trial):
        known = read_result(trial.folder)
        if known.status in DONE:
            return known
        try:
            _refuse_edited_code(trial)
            resumes = _prepare_folder(trial, known)
            if ranks is not None:
                ranks.send(_message(trial, resumes=resumes))
            _train(trial, began, time_from, resumes=resumes)
        except Interrupted:
            raise
        except Pruned as error:
            print(f"vitrine: {trial.label}: pruned {error}")
        except Diverged as error:
            print(f"vitrine: {trial.label}: {error}", file=sys.stderr)
        except DiskFull:
            raise
        except VitrineError as error:
            print(f"vitrine: {trial.label}: {error}", file=sys.stderr)
            return _record_failure(trial, str(error))
        except Exception as error:
            if (full := disk_full(error, trial.folder)) is not None:
                raise full from error
            traceback.print_exc()
            return _record_failure(trial, f"{type(error).__name__}: {error}")
        return read_result(trial.folder)


class TrialLocked(Exception):
    """Another process is training the trial."""


@contextmanager
def locked(trial: Trial) -> Iterator[None]:
    """Hold the trial's lock.

    Raises:
        TrialLocked: another process holds it.
    """
    trial.lock.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(trial.lock)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise TrialLocked from None
    try:
        yield
    finally:
        lock.release()


def is_locked(trial: Trial) -> bool:
    """Whether a process is training the trial."""
    try:
        with locked(trial):
            return False
    except TrialLocked:
        return True


def record_crash(trial: Trial, reason: str) -> TrialResult:
    """Mark a trial as failed whose process ended without a result, unless another process has taken it up since."""
    try:
        with locked(trial):
            known = read_result(trial.folder)
            return known if known.status in DONE else _record_failure(trial, reason)
    except TrialLocked:
        return read_result(trial.folder)


def run_trials_of_rank_0(ranks: Ranks, time_from: float) -> None:
    """Train, on another rank, each trial that rank 0 trains, until rank 0 sends ``None``.

    Rank 0 alone selects trials, holds their locks and reports their errors.
    """
    while (message := ranks.receive()) is not None:
        rule = message["pruning_rule"]
        trial = Trial(
            message["number"],
            from_plain(TrainConfig, message["config"], trust=message["trust"]),
            message["varies"],
            Path(message["folder"]),
            None if rule is None else Pruner(**rule | {"folder": Path(rule["folder"])}),
        )
        try:
            _train(trial, None, time_from, resumes=message["resumes"])
        except (Pruned, VitrineError):
            pass
        except Interrupted:
            raise
        except Exception:
            traceback.print_exc()


def _message(trial: Trial, *, resumes: bool) -> dict[str, Any]:
    """A trial as JSON values for :func:`run_trials_of_rank_0`."""
    rule = trial.pruning_rule
    return {
        "number": trial.number,
        "config": to_plain(trial.config),
        "trust": list(names_of(trial.config)),
        "varies": trial.varies,
        "folder": str(trial.folder),
        "pruning_rule": None if rule is None else asdict(rule) | {"folder": str(rule.folder)},
        "resumes": resumes,
    }


def _refuse_edited_code(trial: Trial) -> None:
    """Raise RunError where a user's part was edited after the trial was planned, which makes it another trial."""
    if edited := [name for name, code in code_of(trial.config).items() if code != trial.code[name]]:
        problem = "was edited while the sweep was running; rerun the same command to train with it"
        raise RunError(f"the code of {', '.join(edited)} {problem}")


def _prepare_folder(trial: Trial, known: TrialResult) -> bool:
    """Remove the trial's folder unless it can be resumed; return whether it can."""
    from vitrine.training.weights import read_checkpoint

    record = RunRecord(trial.folder)
    if known.status in ("running", "interrupted", "failed") and record.last.exists():
        try:
            read_checkpoint(record.last)
        except RunError as error:
            print(f"vitrine: {trial.label} starts over: {error}", file=sys.stderr)
        else:
            record.end("interrupted")  # also if it reads as running: that process would hold the lock
            return True
    if known.status == "damaged":
        aside = trial.folder.with_name(f".{trial.folder.name}_{secrets.token_hex(2)}")
        print(f"vitrine: {trial.label} starts over; the damaged folder is now {aside}: {known.error}", file=sys.stderr)
        trial.folder.rename(aside)
    shutil.rmtree(trial.folder, ignore_errors=True)
    return False


def _train(trial: Trial, began: float | None, time_from: float | None, *, resumes: bool) -> None:
    from vitrine.training.fit import fit
    from vitrine.training.resume import resume

    rule = trial.pruning_rule
    if resumes:
        trust = names_of(trial.config)
        resume(trial.folder, trial.config, began=began, time_from=time_from, pruning_rule=rule, trust=trust)
        return
    fit(
        trial.config,
        folder=trial.folder,
        group=trial.folder.parent.name,
        varies=trial.label,
        facts=record_facts(trial.config),
        began=began,
        time_from=time_from,
        pruning_rule=rule,
    )


def time_is_short(trained: Sequence[Trial], time_from: float) -> bool:
    """Whether ``trainer.max_time``, counted from ``time_from``, leaves too little time to start another trial.

    A trial needs as long as the slowest start among those ``trained``, compilation included, plus a step. The first
    trial always starts.
    """
    if not trained or (limit := trained[-1].config.trainer.max_time) is None:
        return False
    needed = max(map(_start_seconds, trained)) + STEP_AND_SAVE_SECONDS
    return time.time() + needed >= time_from + duration_seconds(limit)


def _start_seconds(trial: Trial) -> float:
    """Seconds until the first step, in the slowest session; 0.0 if there was no step."""
    try:
        sessions = RunRecord(trial.folder).facts.get("start_ups", [])
    except RunError:
        return 0.0
    return max((session["seconds"] + session["compiling"] for session in sessions), default=0.0)


def _record_failure(trial: Trial, error: str) -> TrialResult:
    """Record a failure in run.json, if it can be written: a full disk may be the cause."""
    record = RunRecord(trial.folder)
    with suppress(OSError, RunError):
        trial.folder.mkdir(parents=True, exist_ok=True)
        record.update(id=record.name, group=trial.folder.parent.name, varies=trial.label, **record_facts(trial.config))
        record.end("failed", error)
    return TrialResult("failed", error=error)
