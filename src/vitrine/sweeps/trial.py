"""One trial of a sweep, carried out whenever and wherever it is asked for: what is done stays done.

A trial is its folder. Whoever carries it out holds a lock that the system takes back when the process dies, looks at
what is there, and does what is left: nothing, the rest from the last checkpoint, or all.
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
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from vitrine.config import TrainConfig
from vitrine.config.keys import facts, keys_where
from vitrine.config.parts import names_of
from vitrine.config.serialize import from_plain, to_plain
from vitrine.distributed.rendezvous import Ranks
from vitrine.durations import duration_seconds
from vitrine.errors import Interrupted, Pruned, RunError, VitrineError
from vitrine.runs import RunRecord
from vitrine.runs.record import status_of
from vitrine.sweeps.fingerprint import record_facts
from vitrine.sweeps.pruner import Pruner

if TYPE_CHECKING:
    from vitrine.training.callbacks import PruningRule

OVER = ("finished", "pruned")  # nothing is left to do
STEP_AND_SAVE_SECONDS = 10.0  # a trial that is begun gets a step further, whatever the clock says


@dataclass(frozen=True)
class Trial:
    """A trial, plain enough to be sent to another process.

    Attributes:
        number: its place in the sweep, from 0.
        config: what it is made with.
        varies: the overrides in which it differs from other trials.
        folder: its run folder, in that of the sweep.
        pruning_rule: of a search, stops it early where others do better.
    """

    number: int
    config: TrainConfig
    varies: dict[str, str]
    folder: Path
    pruning_rule: "PruningRule | None" = None

    @property
    def told(self) -> str:
        """What varies, in a word: ``patch=2,seed=1``."""
        return ",".join(f"{key}={value}" for key, value in self.varies.items())

    @property
    def lock(self) -> Path:
        """Beside the folder, which may be removed."""
        return self.folder.parent / "locks" / f"{self.folder.name}.lock"

    @property
    def log(self) -> Path:
        """What it printed, where it had a process of its own."""
        return self.folder.parent / "logs" / f"{self.folder.name}.txt"


@dataclass(frozen=True)
class Outcome:
    """What a trial has come to.

    Attributes:
        status: ``finished``, ``pruned``, ``failed``, ``interrupted``; ``new`` before anything is done, ``running`` in a
            process, ``damaged`` where run.json cannot be read.
        metrics: final metrics, and what else of the run is told by a number; empty for a trial that is not finished.
        error: why it failed, or where it was pruned; empty otherwise.
        seconds: that training took, in all its sessions; 0.0 where that is not known.
    """

    status: str
    metrics: dict[str, float] = field(default_factory=dict)
    error: str = ""
    seconds: float = 0.0


def outcome(folder: Path) -> Outcome:
    """What a trial's folder says."""
    if not (folder / "run.json").exists():
        return Outcome("new")
    record = RunRecord(folder)
    try:
        facts = record.facts
        status = status_of(facts)
        metrics = record.metrics if status == "finished" else {}
    except RunError as error:
        return Outcome("damaged", error=str(error))
    seconds = metrics.get("train_seconds", 0.0)
    return Outcome(status, metrics and metrics | _figures(facts), facts.get("error") or "", seconds)


def _figures(facts: dict[str, Any]) -> dict[str, float]:
    """Size and speed, which searches may go by too."""
    figures = {name: facts.get(name) for name in ("parameters", "flops_per_image")}
    figures["images_per_second"] = (facts.get("speed") or {}).get("images_per_second")
    return {name: value for name, value in figures.items() if value is not None}


def carry_out(
    trial: Trial, began: float | None = None, time_from: float | None = None, ranks: Ranks | None = None
) -> Outcome:
    """Do what is left of ``trial``, and return its outcome.

    Args:
        trial: what to do.
        began: when the process began to do it, as ``time.time()`` gives it.
        time_from: from when trainer.max_time counts, if not from then.
        ranks: those that train it together; this one is rank 0, and the others :func:`follow`.

    Raises:
        Busy: another process is at it.
        Interrupted: a signal asked to stop; what was done is saved.
    """
    with held(trial):
        known = outcome(trial.folder)
        if known.status in OVER:
            return known
        try:
            resumes = _prepare(trial, known)
            if ranks is not None:
                ranks.send(_task(trial, resumes=resumes))
            _train(trial, began, time_from, resumes=resumes)
        except Interrupted:
            raise
        except Pruned as error:
            print(f"vitrine: {trial.told}: pruned {error}")
        except VitrineError as error:
            print(f"vitrine: {trial.told}: {error}", file=sys.stderr)
            return _failed(trial, str(error))
        except Exception as error:
            traceback.print_exc()
            return _failed(trial, f"{type(error).__name__}: {error}")
        return outcome(trial.folder)


class Busy(Exception):
    """A trial is being carried out by another process."""


@contextmanager
def held(trial: Trial) -> Iterator[None]:
    """Keep other processes from the trial.

    Raises:
        Busy: another one has it.
    """
    trial.lock.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(trial.lock)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise Busy from None
    try:
        yield
    finally:
        lock.release()


def busy(trial: Trial) -> bool:
    """Whether some process is carrying it out."""
    try:
        with held(trial):
            return False
    except Busy:
        return True


def died(trial: Trial, reason: str) -> Outcome:
    """Record that the process which carried out ``trial`` ended without a word; another may have taken it up since."""
    try:
        with held(trial):
            known = outcome(trial.folder)
            return known if known.status in OVER else _failed(trial, reason)
    except Busy:
        return outcome(trial.folder)


def follow(ranks: Ranks, time_from: float) -> None:
    """Train with rank 0, on another rank, each trial that rank 0 carries out, until it sends ``None``.

    Rank 0 decides about trials, holds their locks and reports their errors.
    """
    while (task := ranks.receive()) is not None:
        rule = task["pruning_rule"]
        trial = Trial(
            task["number"],
            from_plain(TrainConfig, task["config"], trust=task["trust"]),
            task["varies"],
            Path(task["folder"]),
            None if rule is None else Pruner(**rule | {"folder": Path(rule["folder"])}),
        )
        try:
            _train(trial, None, time_from, resumes=task["resumes"])
        except (Pruned, VitrineError):
            pass
        except Interrupted:
            raise
        except Exception:
            traceback.print_exc()


def _task(trial: Trial, *, resumes: bool) -> dict[str, Any]:
    """A trial as plain values, for :func:`follow`."""
    rule = trial.pruning_rule
    assert rule is None or isinstance(rule, Pruner)
    return {
        "number": trial.number,
        "config": to_plain(trial.config),
        "trust": list(names_of(trial.config)),
        "varies": trial.varies,
        "folder": str(trial.folder),
        "pruning_rule": None if rule is None else asdict(rule) | {"folder": str(rule.folder)},
        "resumes": resumes,
    }


def _prepare(trial: Trial, known: Outcome) -> bool:
    """Clear the trial's folder unless it can be resumed; return whether it can."""
    from vitrine.training.checkpoints import read_checkpoint

    record = RunRecord(trial.folder)
    if known.status in ("running", "interrupted", "failed") and record.last.exists():
        try:
            read_checkpoint(record.last)
        except RunError as error:
            print(f"vitrine: {trial.told} starts over: {error}", file=sys.stderr)
        else:
            record.end("interrupted")  # also where it says that it is running: that process would hold the lock
            return True
    if known.status == "damaged":
        aside = trial.folder.with_name(f".{trial.folder.name}_{secrets.token_hex(2)}")
        print(f"vitrine: {trial.told} starts over; what cannot be read is now {aside}: {known.error}", file=sys.stderr)
        trial.folder.rename(aside)
    shutil.rmtree(trial.folder, ignore_errors=True)
    return False


def _train(trial: Trial, began: float | None, time_from: float | None, *, resumes: bool) -> None:
    from vitrine.training.fit import fit
    from vitrine.training.resume import resume

    if resumes:
        resume(
            trial.folder,
            trial.config,
            _changeable_keys(),
            began=began,
            time_from=time_from,
            pruning_rule=trial.pruning_rule,
        )
        return
    fit(
        trial.config,
        folder=trial.folder,
        group=trial.folder.parent.name,
        varies=trial.told,
        facts=record_facts(trial.config),
        began=began,
        time_from=time_from,
        pruning_rule=trial.pruning_rule,
    )


def _changeable_keys() -> list[str]:
    """Return the keys that may differ from the interrupted run's without making another trial."""
    keys = keys_where(TrainConfig, may_change_on_resume=True)
    return [key for key in keys if facts(TrainConfig, key).affects_result is not True]  # data.root: of imagefolder only


def no_time_for_another(before: Sequence[Trial], time_from: float) -> bool:
    """Whether ``trainer.max_time``, counted since ``time_from``, leaves less than a trial needs for its first step.

    That is what the start of the slowest ``before`` took, compiling included; without any, one may always begin.
    """
    if not before or (limit := before[-1].config.trainer.max_time) is None:
        return False
    needed = max(map(_start_seconds, before)) + STEP_AND_SAVE_SECONDS
    return time.time() + needed >= time_from + duration_seconds(limit)


def _start_seconds(trial: Trial) -> float:
    """Until its first step, at the longest; 0.0 where it did not come to one."""
    try:
        starts = RunRecord(trial.folder).facts.get("start_ups", [])
    except RunError:
        return 0.0
    return max((one["seconds"] + one["compiling"] for one in starts), default=0.0)


def _failed(trial: Trial, error: str) -> Outcome:
    """Say so in run.json, also where there was none; on a full disk, which may be why, nothing can be said there."""
    record = RunRecord(trial.folder)
    with suppress(OSError, RunError):
        trial.folder.mkdir(parents=True, exist_ok=True)
        record.update(id=record.name, group=trial.folder.parent.name, varies=trial.told)
        record.end("failed", error)
    return Outcome("failed", error=error)
