"""The folder of a run: write it, read it. Does not import torch, so that thousands of runs are listed quickly.

::

    outputs/runs/2026-01-31_12-00-00_digits-192x12-p2-sincos2d-s0_3f9a/
        config.yaml       the resolved configuration
        run.json          id, status, command, code, versions, machine, times, sizes
        code.diff         uncommitted changes of the code, if any; code.1.diff those of the first resumption, if others
        metrics.csv       a row per logged step and epoch
        metrics.json      final metrics, flat: {"val/acc": ..., "test/acc": ...}
        predictions.npz   test logits (float32) and labels (int64; uint8 of several labels), /NAME of further targets;
                          groups (int32) with data.group; no file beyond 4 GB
        curves.png        loss and accuracy over the epochs
        lr_range.png      loss by learning rate, also as lr_range.csv; only with optimizer.lr=auto
        confusion.png     confusion matrix of the test images, of up to 1,000 classes
        attention.png     attention rollout on a few images
        checkpoints/      best.ckpt, last.ckpt, previous.ckpt, epoch_N.ckpt; *.damaged was moved aside
        parts/            source of a user's own parts; parts.1/ is that of before edited code was resumed
        .lock             held by the process that writes to the run (:mod:`vitrine.runs.lock`)

The ``status`` in run.json is ``running``, ``finished``, ``failed`` (with ``error``), ``interrupted`` (with ``reason``),
``diverged`` (with ``error`` and ``diverged``: the step and the last finite loss), or ``pruned``: stopped by a search,
after the epoch that ``error`` names. Files are replaced atomically
(:mod:`vitrine.files`), so a crash leaves the old or the new version. Only metrics.csv is appended to, row by row; a row
that a crash cut short is dropped when the run is resumed. A killed process leaves its lock, and ``running`` in
run.json; :attr:`RunRecord.status` checks whether the process still exists.
"""

import csv
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from vitrine.errors import Diverged, Interrupted, Pruned, RunError, first_line, interruption
from vitrine.files import disk_full, naming_failed_write, write_text
from vitrine.redact import redact
from vitrine.runs.facts import SHAPES
from vitrine.runs.lock import Claim, RunLock, RunLocked, lock_state
from vitrine.runs.lock_file import LockState
from vitrine.runs.nearest import nearest_run_hint
from vitrine.runs.process import process_exists, process_start
from vitrine.runs.status import is_elsewhere, status_of
from vitrine.untrusted import ANY, MAX_VALUES, NUMBER, misshapen, read_bytes, read_json, read_yaml

PICTURES = ("curves", "lr_range", "confusion", "attention")  # names without .png
FIRST_COLUMNS = ("epoch", "step", "seconds")
MAX_HISTORY = 64 * 1024**2  # bytes of metrics.csv: as many as MAX_VALUES take; MetricsFile writes no more
INNER = ("checkpoints", "parts", "wandb", "tensorboard", "exports")  # folders that a run writes into


@dataclass(frozen=True)
class RunRecord:
    """A run folder. ``RunRecord(path)`` does not check the path; :meth:`open` does; :meth:`create` makes one.

    Attributes:
        path: the run folder.
        claim: the run's lock, if its holder writes with this record: nothing is written once the lock is lost.
    """

    path: Path
    claim: Claim | None = field(default=None, compare=False)

    @classmethod
    def create(cls, parent: Path, label: str) -> "RunRecord":
        """Make a new folder under ``parent``, named by time, label and random digits.

        Raises:
            RunError: the folder cannot be made.
        """
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        path = parent / f"{stamp}_{label}_{secrets.token_hex(2)}"
        try:
            (path / "checkpoints").mkdir(parents=True)
        except FileExistsError:
            if path.is_dir():
                return cls.create(parent, label)
            raise RunError(f"cannot make the run folder {path}: a file of that name exists") from None
        except OSError as error:
            raise _cannot_make(path, error) from None
        return cls(path)

    @classmethod
    def at(cls, path: str | Path) -> "RunRecord":
        """Make a run folder at ``path``.

        Raises:
            RunError: the folder cannot be made, or already holds a run.
        """
        path = Path(path)
        if (path / "run.json").exists():
            raise RunError(f"{path} already holds a run")
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_make(path, error) from None
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> "RunRecord":
        """Open the run at ``path``.

        Raises:
            RunError: there is no run at ``path``, or its run.json cannot be read.
        """
        path = Path(path)
        try:
            if not (path / "run.json").is_file():
                kind = "is not a run folder: it has no run.json" if path.is_dir() else "is not a folder"
                raise RunError(f"{path} {kind}{nearest_run_hint(path)}")
        except OSError as error:  # a folder that may not be entered, or a name that is too long
            raise RunError(f"cannot read {path}: {error.strerror}") from None
        record = cls(path)
        _ = record.facts
        return record

    @property
    def name(self) -> str:
        """The folder's name, unique among runs."""
        return self.path.name

    @property
    def last(self) -> Path:
        """The checkpoint to resume from, of the last step saved."""
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def previous(self) -> Path:
        """The checkpoint of the step saved before :attr:`last`."""
        return self.path / "checkpoints" / "previous.ckpt"

    @property
    def best(self) -> Path:
        """The checkpoint of the best epoch on the validation split."""
        return self.path / "checkpoints" / "best.ckpt"

    def contains(self, path: Path) -> bool:
        """Whether ``path`` is there, and is no link that leads out of this folder, which others may have made."""
        return path.exists() and path.resolve().is_relative_to(self.path.resolve())

    @property
    def pictures(self) -> dict[str, Path]:
        """Its pictures that are there, by their names."""
        paths = {name: self.path / f"{name}.png" for name in PICTURES}
        return {name: path for name, path in paths.items() if self.contains(path)}

    @property
    def facts(self) -> dict[str, Any]:
        """The content of run.json.

        Raises:
            RunError: it cannot be read, or an entry does not have its type (:mod:`vitrine.runs.facts`).
        """
        facts = self._json("run.json")
        if problem := misshapen(facts, SHAPES):
            raise RunError(f"{self.path / 'run.json'}: {problem}")
        return facts

    @property
    def metrics(self) -> dict[str, float]:
        """Final metrics; empty for a run that is not finished."""
        return self.final_metrics() if self.facts.get("status") == "finished" else {}

    def final_metrics(self) -> dict[str, float]:
        """Return the content of metrics.json, which a finished run has.

        Raises:
            RunError: it cannot be read, or an entry is not a number.
        """
        metrics = self._json("metrics.json")
        if problem := misshapen(metrics, {ANY: NUMBER}):
            raise RunError(f"{self.path / 'metrics.json'}: {problem}")
        return metrics

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, as nested plain values."""
        try:
            values = read_yaml(self.path / "config.yaml")
        except (OSError, ValueError) as error:
            raise self._unread("config.yaml", error) from None
        if not isinstance(values, dict):
            raise RunError(f"{self.path / 'config.yaml'} does not hold a configuration")
        return values

    @property
    def holds_out(self) -> bool:
        """Whether no validation image is trained on; those of a split of the data set's own never are."""
        if "val" in (self.facts.get("data_fingerprint") or {}):
            return True
        data = self.config.get("data")
        return not isinstance(data, dict) or data.get("hold_out", True) is not False

    @property
    def status(self) -> str:
        """The status in run.json, but ``interrupted`` for a ``running`` run whose process is gone."""
        return status_of(self.facts, self.path)

    @contextmanager
    def owned(self, *, force: bool = False, notify: Callable[[str], None] | None = None) -> Iterator["RunRecord"]:
        """Hold the run's lock, which all who write to the run share; yields the record to write with.

        A run that a killed process left as ``running`` becomes ``interrupted``.

        Args:
            force: also take the run over from a process of another machine that may be alive.
            notify: called with a line before watching such a process; ``None`` does not watch.

        Raises:
            RunLocked: another process writes to the run.
            RunError: it is running in a process without a lock, its folder is not writable, or a folder in it is a link
                into another run, or one that another user made to lead out of it.
        """
        for folder in (self.path / name for name in INNER):
            if folder.is_symlink() and (owner := folder.resolve().parent) != self.path.resolve():
                if (owner / "run.json").exists():
                    raise RunError(f"{folder} leads into another run, {owner}, which must not be written to")
                if folder.lstat().st_uid != os.geteuid():
                    raise RunError(f"{folder} is another user's link, to {folder.resolve()}; put a folder in its place")
        lock = RunLock(self.path)
        lock.acquire(force=force, notify=notify)
        try:
            record = replace(self, claim=lock.claim)
            if (self.path / "run.json").exists() and (facts := self.facts).get("status") == "running":
                # Without a lock file it was started by an earlier version, or someone has deleted the file.
                gone = force if is_elsewhere(facts) else not process_exists(facts.get("pid"), facts.get("process"))
                if lock.taken_from is None and not gone:
                    process = f"process {facts.get('pid')} on {facts.get('host')}"
                    raise RunLocked(self.path, process, elsewhere=is_elsewhere(facts))
                record.end("interrupted", reason="its process was killed")
            yield record
        finally:
            lock.release()

    def has_ended(self, *, force: bool = False) -> bool:
        """Whether no process writes to the run any more.

        A run with status ``running`` on another machine, or since before this one was rebooted, counts as running,
        unless ``force`` is given, with which :meth:`owned` takes it over, too.
        """
        if self.status != "running":
            return True
        state, _ = lock_state(self.path)
        return force and (state is LockState.UNKNOWN or (state is LockState.FREE and is_elsewhere(self.facts)))

    def history(self) -> list[dict[str, float]]:
        """Return metrics.csv as a dict per row, without the columns that are empty there. Incomplete rows are skipped.

        Raises:
            RunError: the file is damaged, larger than the limits, or cannot be read.
        """
        try:
            text = read_bytes(self.path / "metrics.csv", MAX_HISTORY).decode()
            if text.count("\n") > MAX_VALUES:
                raise ValueError(f"it has more than {MAX_VALUES:,} lines")
            rows = csv.reader(text.split("\n")[:-1])  # an incomplete last line may lack digits, too
            header = next(rows, list(FIRST_COLUMNS))
            if missing := [name for name in FIRST_COLUMNS if name not in header]:
                raise ValueError(f"it has no column {missing[0]}")
            history: list[dict[str, float]] = []
            left = MAX_VALUES
            for row in rows:
                if len(row) == len(header):
                    history.append({name: float(value) for name, value in zip(header, row, strict=True) if value})
                    if (left := left - len(history[-1])) < 0:
                        raise ValueError(f"it holds more than {MAX_VALUES:,} values")
            return history
        except FileNotFoundError:
            return []
        except (OSError, ValueError, csv.Error) as error:
            raise self._unread("metrics.csv", error) from None

    def update(self, **facts: Any) -> None:
        """Set facts in run.json, keeping the others."""
        known = self.facts if (self.path / "run.json").exists() else {}
        self.write("run.json", json.dumps(known | facts, indent=2) + "\n")

    def start(self, **facts: Any) -> None:
        """Mark the run as running in this process, set ``facts``, and delete files that a killed process half wrote."""
        for leftover in self.path.rglob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        process = {"host": socket.gethostname(), "pid": os.getpid(), "process": process_start()}
        self.update(**facts, status="running", error=None, reason=None, diverged=None, **process)

    def end(self, status: str, error: str | None = None, reason: str | None = None) -> None:
        """Set the final status; ``failed``, ``diverged`` and ``pruned`` have an error, ``interrupted`` a reason."""
        self.update(status=status, error=error and redact(error), reason=reason, ended=now())

    def end_with(self, error: BaseException | None) -> str:
        """Set the final status that follows from ``error`` (``None``: finished), and return it.

        An error is not replaced by one of writing the status, as on a full disk: without it, the run reads as
        interrupted once its process has ended.
        """
        if error is None:
            self.end("finished")
            return "finished"
        with suppress(RunError):
            return self._end_with(error)
        return "interrupted"

    def _end_with(self, error: BaseException) -> str:
        if (full := disk_full(error, self.path)) is not None:
            self.end("interrupted", full.problem, "the disk is full")
            return "interrupted"
        if isinstance(error, (Interrupted, KeyboardInterrupt, SystemExit)):  # Lightning turns Ctrl-C into SystemExit
            self.end("interrupted", reason=interruption(error).reason)
            return "interrupted"
        if isinstance(error, Pruned):
            self.end("pruned", str(error))
            return "pruned"
        if isinstance(error, Diverged):
            self.update(diverged=error.facts)
            self.end("diverged", error.reason)
            return "diverged"
        self.end("failed", f"{type(error).__name__}: {error}")
        return "failed"

    def write_config(self, values: Mapping[str, Any]) -> None:
        """Write config.yaml from nested plain values."""
        self.write("config.yaml", yaml.dump(dict(values), Dumper=_WithoutAliases, sort_keys=False, allow_unicode=True))

    def write_metrics(self, metrics: Mapping[str, float]) -> None:
        """Write metrics.json."""
        self.write("metrics.json", json.dumps(dict(metrics), indent=2) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a file of the folder, atomically.

        Raises:
            RunError: the file cannot be written, or another process has taken the run over; ``DiskFull``: for lack of
                space.
        """
        self.check_claim()
        with naming_failed_write(self.path / name):
            write_text(self.path / name, text)

    def check_claim(self) -> None:
        """Raise RunError if another process has taken over the lock that this one writes under."""
        if self.claim is not None:
            self.claim.check()

    def _json(self, name: str) -> dict[str, Any]:
        try:
            values = read_json(self.path / name)
        except (OSError, ValueError) as error:
            raise self._unread(name, error) from None
        if not isinstance(values, dict):
            raise RunError(f"{self.path / name} does not hold a JSON object")
        return values

    def _unread(self, name: str, error: Exception) -> RunError:
        """What to raise where a file of the folder cannot be read."""
        if isinstance(error, FileNotFoundError) and not self.path.is_dir():
            return RunError(f"{self.path} has been deleted")
        problem = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
        return RunError(f"cannot read {self.path / name}: {problem}")


class _WithoutAliases(yaml.SafeDumper):  # type: ignore[misc]
    """Writes a value that occurs twice twice: aliases are refused when the file is read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def now() -> str:
    """Return the current time in UTC as an ISO 8601 string, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def check_writable(folder: Path) -> None:
    """Raise RunError if a run folder cannot be made under ``folder``. Leaves nothing behind."""
    folder = folder.absolute()
    try:
        ancestor = next(path for path in (folder, *folder.parents) if path.exists())
    except PermissionError:
        raise RunError(f"cannot reach {folder}: no permission to enter a parent folder") from None
    if not ancestor.is_dir():
        raise RunError(f"{ancestor} is a file, not a folder")
    try:
        tempfile.TemporaryDirectory(dir=ancestor).cleanup()
    except OSError as error:
        raise RunError(f"cannot write to {ancestor}: {error.strerror}") from None


def _cannot_make(path: Path, error: OSError) -> RunError:
    problem = f"cannot make the run folder {path}: {error.strerror}; set paths.output_dir=DIR"
    return disk_full(error, path) or RunError(problem)
