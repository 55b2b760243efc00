"""The folder of a run: write it, read it. Does not import torch, so that thousands of runs are listed quickly.

::

    outputs/runs/2026-01-31_12-00-00_digits-192x12-p2-sincos2d-s0_3f9a/
        config.yaml       the resolved configuration
        run.json          id, status, command, code, versions, machine, times, sizes
        code.diff         uncommitted changes of the code; only if there were any
        metrics.csv       a row per logged step and epoch
        metrics.json      final metrics, flat: {"val/acc": ..., "test/acc": ...}
        predictions.npz   test logits (float32) and labels (int64)
        curves.png        loss and accuracy over the epochs
        confusion.png     confusion matrix of the test images
        attention.png     attention rollout on a few images
        checkpoints/      best.ckpt, last.ckpt

The ``status`` in run.json is ``running``, ``finished``, ``failed`` (with ``error``), ``interrupted`` (with ``reason``),
``diverged`` (with ``error`` and ``diverged``: the step and the last finite loss), or ``pruned``: stopped by a search,
after the epoch that ``error`` names. Files are replaced atomically
(:mod:`vitrine.files`), so a crash leaves the old or the new version. Only metrics.csv is appended to, row by row; a row
that a crash cut short is dropped when the run is resumed. A killed process leaves ``running`` in run.json;
:attr:`RunRecord.status` checks whether the process still exists.
"""

import csv
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from vitrine.errors import Diverged, Interrupted, Pruned, RunError, first_line
from vitrine.files import disk_full, write_text
from vitrine.redact import redact
from vitrine.text import did_you_mean, nearest

FIRST_COLUMNS = ("epoch", "step", "seconds")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's loader is ten times as fast


@dataclass(frozen=True)
class RunRecord:
    """A run folder. ``RunRecord(path)`` does not check the path; :meth:`open` does; :meth:`create` makes one."""

    path: Path

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
            problem = f"cannot make the run folder {path}: {error.strerror}; set paths.output_dir=DIR"
            raise disk_full(error, path) or RunError(problem) from None
        return cls(path)

    @classmethod
    def at(cls, path: Path) -> "RunRecord":
        """Make a run folder at ``path``.

        Raises:
            RunError: the folder cannot be made, or already holds a run.
        """
        if (path / "run.json").exists():
            raise RunError(f"{path} already holds a run")
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = f"cannot make the run folder {path}: {error.strerror}; set paths.output_dir=DIR"
            raise disk_full(error, path) or RunError(problem) from None
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> "RunRecord":
        """Open the run at ``path``.

        Raises:
            RunError: there is no run at ``path``, or its run.json cannot be read.
        """
        path = Path(path)
        if not (path / "run.json").is_file():
            kind = "is not a run folder: it has no run.json" if path.is_dir() else "is not a folder"
            raise RunError(f"{path} {kind}{_nearest_run_hint(path)}")
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
    def best(self) -> Path:
        """The checkpoint of the best epoch on the validation split."""
        return self.path / "checkpoints" / "best.ckpt"

    @property
    def facts(self) -> dict[str, Any]:
        """The content of run.json."""
        return self._json("run.json")

    @property
    def metrics(self) -> dict[str, float]:
        """Final metrics; empty for a run that is not finished."""
        return self._json("metrics.json") if self.facts.get("status") == "finished" else {}

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, as nested plain values."""
        try:
            values = yaml.load((self.path / "config.yaml").read_text(encoding="utf-8"), LOADER)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise RunError(f"cannot read {self.path / 'config.yaml'}: {error}") from None
        if not isinstance(values, dict):
            raise RunError(f"{self.path / 'config.yaml'} does not hold a configuration")
        return values

    @property
    def status(self) -> str:
        """The status in run.json, but ``interrupted`` for a ``running`` run whose process is gone."""
        return status_of(self.facts)

    def has_ended(self, *, force: bool = False) -> bool:
        """Whether no process writes to the run any more.

        A run with status ``running`` on another machine counts as running, unless ``force`` is given: that machine may
        be gone.
        """
        elsewhere = self.facts.get("host") != socket.gethostname()
        return self.status != "running" or (force and elsewhere)

    def history(self) -> list[dict[str, float]]:
        """Return metrics.csv as a dict per row, without the columns that are empty there. Incomplete rows are skipped.

        Raises:
            RunError: the file is damaged, or cannot be read.
        """
        path = self.path / "metrics.csv"
        try:
            text = path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]  # an incomplete last line may lack digits, too
            rows = csv.reader(whole.splitlines())
            header = next(rows, list(FIRST_COLUMNS))
            if missing := [name for name in FIRST_COLUMNS if name not in header]:
                raise ValueError(f"it has no column {missing[0]}")
            return [
                {name: float(value) for name, value in zip(header, row, strict=True) if value}
                for row in rows
                if len(row) == len(header)
            ]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, csv.Error) as error:
            raise RunError(f"cannot read {path}: {first_line(error)}") from None

    def update(self, **facts: Any) -> None:
        """Set facts in run.json, keeping the others."""
        known = self.facts if (self.path / "run.json").exists() else {}
        self.write("run.json", json.dumps(known | facts, indent=2) + "\n")

    def start(self) -> None:
        """Mark the run as running in this process, and delete temporary files that a killed process left."""
        for leftover in self.path.rglob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        process = {"host": socket.gethostname(), "pid": os.getpid(), "process": _process_start()}
        self.update(status="running", error=None, reason=None, diverged=None, **process)

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
            kind = type(error) if isinstance(error, Interrupted) else Interrupted
            self.end("interrupted", reason=kind.reason)
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
        self.write("config.yaml", yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True))

    def write_metrics(self, metrics: Mapping[str, float]) -> None:
        """Write metrics.json."""
        self.write("metrics.json", json.dumps(dict(metrics), indent=2) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a file of the folder, atomically.

        Raises:
            RunError: the file cannot be written; ``DiskFull``: for lack of space.
        """
        try:
            write_text(self.path / name, text)
        except OSError as error:
            raise RunError(f"cannot write {self.path / name}: {error.strerror}") from error

    def _json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"cannot read {path}: {error}") from None
        if not isinstance(values, dict):
            raise RunError(f"{path} does not hold a JSON object")
        return values


def status_of(facts: Mapping[str, Any]) -> str:
    """Return the status of a run from its run.json: ``interrupted`` for a ``running`` run whose process is gone."""
    status = str(facts.get("status"))
    if status == "running" and facts.get("host") == socket.gethostname() and not _alive(facts.get("pid"), facts):
        return "interrupted"
    return status


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


def _process_start() -> str:
    """Start time of this process, which distinguishes it from a later process with the same id."""
    stat = _stat(os.getpid())
    return stat[19] if stat else ""


def _alive(pid: Any, facts: Mapping[str, Any]) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, TypeError, ValueError):
        return False
    except PermissionError:
        pass  # the process exists, and belongs to another user
    stat = _stat(pid)
    if stat is None:
        return True
    ended = stat[0] in "ZX"  # a zombie
    return not ended and facts.get("process") in ("", None, stat[19])


def _stat(pid: int) -> list[str] | None:
    """Fields of ``/proc/PID/stat`` from the state on (proc(5)); ``None`` if there is no such file."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _nearest_run_hint(path: Path) -> str:
    """A hint at a run folder: the newest one inside ``path``, or the one beside it with the most similar name."""
    try:
        if path.is_dir():
            runs = sorted(file.parent for file in path.glob("**/run.json"))
            return f"; the newest run in it is {runs[-1]}" if runs else ""
        names = [folder.name for folder in path.absolute().parent.iterdir() if (folder / "run.json").exists()]
    except OSError:
        return ""
    match = nearest(path.name, names)
    return did_you_mean(path.parent / match if match else "")
