"""The folder that a run leaves, written and read back. No torch here: thousands of runs are listed quickly.

::

    outputs/runs/2026-01-31_12-00-00_digits-192x12-p2-sincos2d-s0_3f9a/
        config.yaml       every value the run was made with, resolved
        run.json          id, status, command, code, versions, machine, times, sizes
        code.diff         what the code had that its commit had not; only where there was such a difference
        metrics.csv       a row per logged step and epoch
        metrics.json      final metrics, flat: {"val/acc": ..., "test/acc": ...}
        predictions.npz   test logits (float32) and labels (int64)
        curves.png        loss and accuracy over the epochs
        confusion.png     test labels against predictions
        attention.png     a few images, and where the model looks
        checkpoints/      best.ckpt, last.ckpt

``run.json``'s ``status`` is ``running``, ``finished``, ``failed`` (with ``error``), ``interrupted`` (with ``reason``),
or ``pruned``: stopped by a search, after the epoch that ``error`` names. Every file but metrics.csv is replaced whole
(:mod:`vitrine.files`), so a crash leaves the old or the new one; metrics.csv grows by whole rows, and a row cut short
by a crash is dropped when the run goes on. A process that is killed cannot say so: its run still reads ``running``, and
:attr:`RunRecord.status` tells that no such process is there any more.
"""

import csv
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from vitrine.errors import Interrupted, Pruned, RunError, first_line
from vitrine.files import write_text
from vitrine.redact import hide
from vitrine.text import did_you_mean, nearest

FIRST_COLUMNS = ("epoch", "step", "seconds")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's reads a configuration in a tenth of the time


@dataclass(frozen=True)
class RunRecord:
    """A run folder. ``RunRecord(path)`` trusts the path; :meth:`open` checks it, :meth:`create` makes a new one."""

    path: Path

    @classmethod
    def create(cls, parent: Path, word: str) -> "RunRecord":
        """Make a new folder under ``parent``, its name unique also among runs that start in the same second.

        Raises:
            RunError: the folder cannot be made.
        """
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        path = parent / f"{stamp}_{word}_{secrets.token_hex(2)}"
        try:
            (path / "checkpoints").mkdir(parents=True)
        except FileExistsError:
            if path.is_dir():
                return cls.create(parent, word)
            raise RunError(f"cannot make the run folder {path}: there is a file in its way") from None
        except OSError as error:
            raise RunError(f"cannot make the run folder {path}: {error.strerror}; set paths.output_dir=DIR") from None
        return cls(path)

    @classmethod
    def at(cls, path: Path) -> "RunRecord":
        """Make the folder ``path`` itself.

        Raises:
            RunError: it cannot be made, or there is a run in it.
        """
        if (path / "run.json").exists():
            raise RunError(f"there is a run in {path} already")
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the run folder {path}: {error.strerror}; set paths.output_dir=DIR") from None
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> "RunRecord":
        """The run at ``path``.

        Raises:
            RunError: there is no run at ``path``, or its run.json cannot be read.
        """
        path = Path(path)
        if not (path / "run.json").is_file():
            kind = "is not a run folder: it has no run.json" if path.is_dir() else "is no folder"
            raise RunError(f"{path} {kind}{_neighbour(path)}")
        record = cls(path)
        _ = record.facts
        return record

    @property
    def name(self) -> str:
        """The folder's own name, unique among runs."""
        return self.path.name

    @property
    def last(self) -> Path:
        """The checkpoint of the last step that was saved: all that is needed to go on."""
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def best(self) -> Path:
        """The checkpoint of the epoch that was best on validation."""
        return self.path / "checkpoints" / "best.ckpt"

    @property
    def facts(self) -> dict[str, Any]:
        """What run.json says."""
        return self._json("run.json")

    @property
    def metrics(self) -> dict[str, float]:
        """Final metrics; empty for a run that did not come to its end."""
        return self._json("metrics.json") if self.facts.get("status") == "finished" else {}

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as it was resolved, as plain values."""
        try:
            values = yaml.load((self.path / "config.yaml").read_text(encoding="utf-8"), LOADER)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise RunError(f"cannot read {self.path / 'config.yaml'}: {error}") from None
        if not isinstance(values, dict):
            raise RunError(f"{self.path / 'config.yaml'} does not hold a configuration")
        return values

    @property
    def status(self) -> str:
        """As in run.json, but that a run is ``interrupted``, too, whose process was killed."""
        return status_of(self.facts)

    def has_ended(self, *, force: bool = False) -> bool:
        """Whether nobody writes the run any more.

        One that reads as running on another machine, which may be gone, is taken for running; by ``force`` it is not.
        """
        elsewhere = self.facts.get("host") != socket.gethostname()
        return self.status != "running" or (force and elsewhere)

    def history(self) -> list[dict[str, float]]:
        """metrics.csv, a dict per row with the columns that the row has a value for. Incomplete rows are left out.

        Raises:
            RunError: it is damaged, or can't be read.
        """
        path = self.path / "metrics.csv"
        try:
            text = path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]  # a last line without its end may lack digits, too
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
        """Mark the run as running, in this process, and clear away what a killed one had half written."""
        for leftover in self.path.rglob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        process = {"host": socket.gethostname(), "pid": os.getpid(), "process": _process_start()}
        self.update(status="running", error=None, reason=None, **process)

    def end(self, status: str, error: str | None = None, reason: str | None = None) -> None:
        """Mark the run as ``finished``, ``failed`` or ``pruned`` (by ``error``), ``interrupted`` (for ``reason``)."""
        self.update(status=status, error=error and hide(error), reason=reason, ended=now())

    def end_by(self, error: BaseException | None) -> str:
        """Mark the run as what ``error`` made of it, which may be none; gives the status."""
        if error is None:
            self.end("finished")
            return "finished"
        if isinstance(error, (Interrupted, KeyboardInterrupt, SystemExit)):  # Lightning makes a SystemExit of Ctrl-C
            kind = type(error) if isinstance(error, Interrupted) else Interrupted
            self.end("interrupted", reason=kind.reason)
            return "interrupted"
        if isinstance(error, Pruned):
            self.end("pruned", str(error))
            return "pruned"
        self.end("failed", f"{type(error).__name__}: {error}")
        return "failed"

    def write_config(self, values: Mapping[str, Any]) -> None:
        """Write config.yaml; ``values`` are plain."""
        self.write("config.yaml", yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True))

    def write_metrics(self, metrics: Mapping[str, float]) -> None:
        """Write metrics.json."""
        self.write("metrics.json", json.dumps(dict(metrics), indent=2) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a file of the folder, whole or not at all.

        Raises:
            RunError: it can't be written, as on a full disk.
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
            raise RunError(f"{path} does not hold a record")
        return values


def status_of(facts: Mapping[str, Any]) -> str:
    """What became of a run, from what its run.json says: a running one whose process is gone is ``interrupted``."""
    status = str(facts.get("status"))
    if status == "running" and facts.get("host") == socket.gethostname() and not _alive(facts.get("pid"), facts):
        return "interrupted"
    return status


def now() -> str:
    """The time as an ISO 8601 string in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def check_writable(folder: Path) -> None:
    """Raise RunError where a run folder could not be made under ``folder``; tries it, and leaves nothing."""
    folder = folder.absolute()
    try:
        ancestor = next(path for path in (folder, *folder.parents) if path.exists())
    except PermissionError:
        raise RunError(f"{folder} cannot be reached: a folder above it may not be entered") from None
    if not ancestor.is_dir():
        raise RunError(f"{ancestor} is a file, not a folder for runs")
    try:
        tempfile.TemporaryDirectory(dir=ancestor).cleanup()
    except OSError as error:
        raise RunError(f"{ancestor} cannot be written to: {error.strerror}") from None


def _process_start() -> str:
    """When this process started, in a form that tells it from a later one with the same number."""
    stat = _stat(os.getpid())
    return stat[19] if stat else ""


def _alive(pid: Any, facts: Mapping[str, Any]) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, TypeError, ValueError):
        return False
    except PermissionError:
        pass  # there is such a process, of somebody else
    stat = _stat(pid)
    if stat is None:
        return True
    ended = stat[0] in "ZX"  # dead, but its parent has not asked how it ended
    return not ended and facts.get("process") in ("", None, stat[19])


def _stat(pid: int) -> list[str] | None:
    """What the system says of a process, from its state on (proc(5)); None where it says nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _neighbour(path: Path) -> str:
    """A hint at the nearest run folder: inside a folder of runs the newest, else the one with nearly this name."""
    try:
        if path.is_dir():
            runs = sorted(one.parent for one in path.glob("**/run.json"))
            return f"; the newest run in it is {runs[-1]}" if runs else ""
        names = [one.name for one in path.absolute().parent.iterdir() if (one / "run.json").exists()]
    except OSError:
        return ""
    match = nearest(path.name, names)
    return did_you_mean(path.parent / match if match else "")
