"""A trial of a sweep: trained once, by whichever process gets to it first.

The state of a trial is its folder. The process that trains it holds the lock of this run folder (``runs/lock.py``), as
``resume=`` does. It reads the folder and does what is left: nothing, the epochs after the last checkpoint, or all.
"""

import secrets
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vitrine.config import TrainConfig
from vitrine.config.parts import code_of, names_of
from vitrine.config.serialize import from_plain, to_plain
from vitrine.distributed.rendezvous import Ranks
from vitrine.errors import DiskFull, Diverged, Interrupted, Pruned, RunError, VitrineError
from vitrine.files import disk_full
from vitrine.redact import redact
from vitrine.runs import RunRecord
from vitrine.runs.lock import Claim, RunLock, RunLocked, Watch, lock_state
from vitrine.runs.lock_file import NAME as LOCK_NAME
from vitrine.runs.lock_file import Holder, LockState
from vitrine.runs.provenance import same_command
from vitrine.runs.status import DONE, status_of
from vitrine.sweeps.fingerprint import VERSION, record_facts, refuse_link, refuse_links_in
from vitrine.sweeps.pruner import Pruner
from vitrine.text import printable, report


def label_of(varies: Mapping[str, str]) -> str:
    """Return varying overrides in one word: ``patch=2,seed=1``."""
    return ",".join(f"{key}={value}" for key, value in varies.items())


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial; picklable, so that it can be sent to another process.

    Attributes:
        number: position in the sweep, from 0.
        config: complete configuration.
        varies: overrides in which it differs from the other trials.
        folder: its run folder, inside the sweep's folder.
        pruning_rule: stops the run early if other trials of the search do better.
        accept_changed_data: resume it although its data has changed.
        trust: prefixes of the dotted names that its teacher may import, beside those of ``config``.
        code: hashes of the source of the user's parts when the trial was planned, by their names.
    """

    number: int
    config: TrainConfig
    varies: dict[str, str]
    folder: Path
    pruning_rule: Pruner | None = None
    accept_changed_data: bool = False
    trust: Sequence[str] = ()
    code: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", code_of(self.config))

    @property
    def label(self) -> str:
        """The varying overrides in one word: ``patch=2,seed=1``."""
        return label_of(self.varies)

    @property
    def log(self) -> Path:
        """Output of the trial's process, if the launcher gives it one."""
        return self.folder.parent / "logs" / f"{self.folder.name}.txt"


@dataclass(frozen=True)
class TrialResult:
    """What a trial's folder holds.

    Attributes:
        status: ``new`` (not started), ``running``, ``finished``, ``pruned``, ``diverged``, ``failed``,
            ``interrupted``, ``damaged`` if run.json cannot be read, or ``unreadable`` if this user may not read it.
        metrics: final metrics, model size and speed; empty unless finished.
        error: why the trial failed, or where it was pruned or diverged; else empty.
        seconds: training time over all sessions; 0.0 if unknown.
        fingerprint_version: see :mod:`vitrine.sweeps.fingerprint`.
        validation: identify the validation images within one data set, and its labels; empty if unknown.
    """

    status: str
    metrics: dict[str, float] = field(default_factory=dict)
    error: str = ""
    seconds: float = 0.0
    fingerprint_version: int = VERSION
    validation: tuple[str, str] = ("", "")


def read_result(folder: Path) -> TrialResult:
    """Read a trial's result from its run folder."""
    record = RunRecord(folder)
    try:
        if not (folder / "run.json").exists():
            return TrialResult("new")
        known = record.facts
        status = status_of(known, folder)
        metrics = record.final_metrics() if status == "finished" else {}
    except RunError as error:
        kind = "unreadable" if isinstance(error.__context__, PermissionError) else "damaged"
        return TrialResult(kind, error=str(error))
    except PermissionError as error:
        return TrialResult("unreadable", error=f"cannot read {folder}: {error.strerror}")
    seconds = metrics.get("train_seconds", 0.0)
    return TrialResult(
        status,
        metrics and metrics | _size_and_speed(known),
        known.get("error") or "",
        seconds,
        known.get("fingerprint_version", 1),
        _validation_of(known),
    )


def _validation_of(known: dict[str, Any]) -> tuple[str, str]:
    """The choice of validation images, and the labels of the split that they are from."""
    splits = known.get("data_fingerprint") or {}
    source = splits.get("val") or splits.get("train") or {}
    return known.get("validation") or "", source.get("labels") or ""


def _size_and_speed(known: dict[str, Any]) -> dict[str, float]:
    """Facts of a run that a search can use as objectives."""
    found = {name: known.get(name) for name in ("parameters", "flops_per_image")}
    found["images_per_second"] = (known.get("speed") or {}).get("images_per_second")
    return {name: value for name, value in found.items() if value is not None}


def run_trial(
    trial: Trial,
    began: float | None = None,
    time_from: float | None = None,
    ranks: Ranks | None = None,
    *,
    patient: bool = False,
) -> TrialResult:
    """Train what is left of ``trial``; a failure is recorded in its folder and returned, not raised.

    Args:
        trial: what to train.
        began: when its process began, as ``time.time()`` gives it; now if ``None``.
        time_from: when ``trainer.max_time`` began; ``began`` if ``None``.
        ranks: those that train it together; this is rank 0, the others call :func:`run_trials_of_rank_0`.
        patient: watch a process of another machine that holds the trial, instead of leaving the trial to it.

    Raises:
        RunLocked: another process is training it.
        RunError: its folder cannot be locked or read, so that no failure can be recorded there either.
        Interrupted: stopped by a signal or by ``trainer.max_time``, with a checkpoint.
        DiskFull: the disk is full, as it would be for the next trial.
    """
    with locked(trial, patient=patient) as claim:
        known = read_result(trial.folder)
        if known.status in DONE:
            return known
        if known.status == "unreadable":  # another user has trained it; it does not start over
            raise RunError(known.error)
        try:
            _refuse_edited_code(trial)
            resumes = _prepare_folder(trial, known)
            if ranks is not None:
                ranks.send(_message(trial, resumes=resumes))
            _train(trial, began, time_from, resumes=resumes, claim=claim)
        except (Interrupted, DiskFull):
            raise
        except Pruned as error:
            print(printable(f"vitrine: {trial.label}: pruned {error}"))
        except Diverged as error:
            report(f"{trial.label}: {error}")
        except VitrineError as error:
            if (holder := claim.taken_by()) is not None:
                raise RunLocked(trial.folder, holder, elsewhere=True) from None
            report(f"{trial.label}: {redact(str(error))}")
            return _record_failure(trial, str(error), claim)
        except Exception as error:
            if (full := disk_full(error, trial.folder)) is not None:
                raise full from error
            print(redact(traceback.format_exc()), file=sys.stderr, end="", flush=True)
            return _record_failure(trial, f"{type(error).__name__}: {error}", claim)
        return read_result(trial.folder)


@contextmanager
def locked(trial: Trial, *, force: bool = False, patient: bool = False) -> Iterator[Claim]:
    """Hold the lock of the trial's folder, which is created if need be.

    Args:
        trial: the trial.
        force: also take it over from a process of another machine that may be alive.
        patient: watch such a process until it is known to be dead or alive.

    Raises:
        RunLocked: another process holds the lock.
        RunError: the folder is not writable, is a link, or has a folder in it that is a link out of it; ``DiskFull``:
            for lack of space.
    """
    refuse_link(trial.folder)
    refuse_links_in(trial.folder)
    try:
        trial.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot make the run folder {trial.folder}: {error.strerror}"
        raise disk_full(error, trial.folder) or RunError(problem) from None
    lock = RunLock(trial.folder)
    lock.acquire(force=force, notify=(lambda line: report(f"{trial.label}: {line}")) if patient else None)
    try:
        yield lock.claim
    finally:
        lock.release()


def is_locked(trial: Trial, watch: Watch | None = None) -> bool:
    """Whether a process is training the trial.

    Args:
        trial: the trial.
        watch: what earlier looks have seen of the locks of other machines; ``None`` takes their processes for alive.
    """
    return _is_held(trial, *lock_state(trial.folder), watch)


def _is_held(trial: Trial, state: LockState, holder: Holder | None, watch: Watch | None) -> bool:
    if state is LockState.UNKNOWN:
        return watch is None or not watch.has_expired(trial.folder, holder)
    return state is LockState.HELD


def take_up(trial: Trial, watch: Watch) -> bool:
    """Return whether the trial can be trained; a lock that a dead process of another machine left is released.

    Args:
        trial: the trial.
        watch: what earlier looks have seen of the locks of other machines.
    """
    state, holder = lock_state(trial.folder)
    if _is_held(trial, state, holder, watch):
        return False
    if state is LockState.UNKNOWN:
        try:
            with locked(trial, force=True) as claim:
                if (trial.folder / "run.json").exists():
                    RunRecord(trial.folder, claim).end("interrupted", reason="its process was killed")
        except RunLocked:
            return False
        except RunError:  # it fails when it is trained
            return True
        report(f"{trial.label}: taken over from {holder or 'another process'}")
    return True


def record_crash(trial: Trial, reason: str, *, force: bool = False) -> TrialResult:
    """Mark a trial as failed whose process ended without a result, unless another process has taken it up since.

    If its folder cannot be locked, the failure is only returned.

    Args:
        trial: the trial.
        reason: why its process ended.
        force: whether its process is known to be dead, though it was on another machine.
    """
    try:
        with locked(trial, force=force) as claim:
            known = read_result(trial.folder)
            return known if known.status in DONE else _record_failure(trial, reason, claim)
    except RunLocked:
        return read_result(trial.folder)
    except RunError as error:
        return TrialResult("failed", error=f"{reason}; {error}")


def run_trials_of_rank_0(ranks: Ranks, time_from: float) -> None:
    """Train, on another rank, each trial that rank 0 trains, until rank 0 sends ``None``.

    Rank 0 alone selects trials, holds their locks and reports their errors.
    """
    while (message := ranks.receive()) is not None:
        rule = message["pruning_rule"]
        trial = Trial(
            number=message["number"],
            config=from_plain(TrainConfig, message["config"], trust=message["trust"]),
            varies=message["varies"],
            folder=Path(message["folder"]),
            trust=message["trust"],
            pruning_rule=None if rule is None else Pruner(**rule | {"folder": Path(rule["folder"])}),
        )
        try:
            _train(trial, None, time_from, resumes=message["resumes"], claim=None)
        except (Pruned, VitrineError):
            pass
        except Interrupted:
            raise
        except Exception:
            print(redact(traceback.format_exc()), file=sys.stderr, end="", flush=True)


def _message(trial: Trial, *, resumes: bool) -> dict[str, Any]:
    """A trial as JSON values for :func:`run_trials_of_rank_0`."""
    rule = trial.pruning_rule
    return {
        "number": trial.number,
        "config": to_plain(trial.config),
        "trust": [*names_of(trial.config), *trial.trust],
        "varies": trial.varies,
        "folder": str(trial.folder),
        "pruning_rule": None if rule is None else asdict(rule) | {"folder": str(rule.folder)},
        "resumes": resumes,
    }


def _refuse_edited_code(trial: Trial) -> None:
    """Raise RunError where a user's part was edited after the trial was planned, which makes it another trial."""
    if edited := [name for name, code in code_of(trial.config).items() if code != trial.code[name]]:
        problem = f"was edited while the sweep was running; rerun {same_command()} to train with it"
        raise RunError(f"the code of {', '.join(edited)} {problem}")


def _prepare_folder(trial: Trial, known: TrialResult) -> bool:
    """Empty the trial's folder unless it can be resumed; return whether it can. What is damaged is moved aside."""
    from vitrine.training.recovery import recover

    record = RunRecord(trial.folder)
    problem = known.error if known.status == "damaged" else ""
    if known.status in ("running", "interrupted", "failed") and any(record.last.parent.glob("[!.]*.ckpt*")):
        try:
            recover(record)
        except RunError as error:
            problem = str(error)
        else:
            record.end("interrupted")  # also if it reads as running: that process would hold the lock
            return True
    if problem:
        aside = trial.folder.with_name(f".{trial.folder.name}_{secrets.token_hex(2)}")
        report(f"{trial.label} starts over; what it had is now in {aside}: {problem}")
        aside.mkdir()
        _empty(trial.folder, lambda path: path.rename(aside / path.name))
    _empty(trial.folder, _delete)
    return False


def _empty(folder: Path, remove: Callable[[Path], object]) -> None:
    """Remove all but the lock from a folder, run.json last: with it the folder is a run still."""
    inside = (path for path in folder.iterdir() if path.name != LOCK_NAME)
    for path in sorted(inside, key=lambda path: path.name == "run.json"):
        remove(path)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _train(trial: Trial, began: float | None, time_from: float | None, *, resumes: bool, claim: Claim | None) -> None:
    from vitrine.training.fit import fit
    from vitrine.training.resume import resume

    how: dict[str, Any] = {
        "began": began,
        "time_from": time_from,
        "pruning_rule": trial.pruning_rule,
        "trust": [*names_of(trial.config), *trial.trust],
        "claim": claim,
    }
    if resumes:
        resume(trial.folder, trial.config, accept_changed_data=trial.accept_changed_data, **how)
    else:
        group, facts = trial.folder.parent.name, record_facts(trial.config)
        fit(trial.config, folder=trial.folder, group=group, varies=trial.label, facts=facts, **how)


def _record_failure(trial: Trial, error: str, claim: Claim) -> TrialResult:
    """Record a failure in run.json, if it can be written: a full disk may be the cause."""
    error = redact(error)
    record = RunRecord(trial.folder, claim)
    with suppress(OSError, RunError):
        if not (trial.folder / "config.yaml").exists():  # it failed before its training began; compare counts it
            record.write_config(to_plain(trial.config))
        record.update(id=record.name, group=trial.folder.parent.name, varies=trial.label, **record_facts(trial.config))
        record.end("failed", error)
    return TrialResult("failed", error=error)
