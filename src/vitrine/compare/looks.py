"""Looks at a sweep: seeds that are added because of what a comparison showed lead to too many findings.

``looks.json`` in the sweep's folder holds which trials the sweep had asked for at each comparison, the oldest first:
``{"looks": [{"at": time, "trials": [folder, ...]}, ...]}``. It can be deleted; then looks are forgotten.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from vitrine.compare.load import RunResult, parse_overrides
from vitrine.compare.table import ConfigurationRow, Table
from vitrine.errors import DiskFull, RunError
from vitrine.files import write_text
from vitrine.runs.record import RunRecord, now
from vitrine.runs.status import ENDED
from vitrine.text import listed, plural
from vitrine.untrusted import misshapen, read_json

NAME = "looks.json"
SHAPES = {"looks": [{"at": str, "trials": [str]}]}
UNTIL_DECIDED = "until sweep=decide had decided"


@dataclass(frozen=True)
class Growth:
    """Rows to which seeds were added because of results.

    Attributes:
        rows: by label, because of which: ``after a comparison on 2026-11-23``, ``until sweep=decide had decided``.
    """

    rows: dict[str, str]

    @classmethod
    def of(cls, table: Table, sweeps: "Sequence[ComparedSweep]") -> "Growth | None":
        """Compare a table with the first look at each of its sweeps that it has outgrown; ``None`` if there is none.

        Args:
            table: the rows.
            sweeps: those of its runs.

        Raises:
            RunError: looks.json is damaged.
        """
        rows = {row.label: UNTIL_DECIDED for row in table.rows if any(map(_was_to_decide, row.runs.values()))}
        for sweep in sweeps:
            if sweep.decides:
                in_sweep = [row.label for row in table.rows if _runs_in(sweep.folder, row)]
                rows |= dict.fromkeys(in_sweep, UNTIL_DECIDED)
            for look in reversed(read_looks(sweep.folder)):  # the first comes last, and replaces the others
                day = datetime.fromisoformat(look["at"]).date()
                grown = [row.label for row in table.rows if _has_grown(row, sweep.folder, look)]
                rows |= dict.fromkeys(grown, f"after a comparison on {day}")
        return cls(rows) if rows else None

    @property
    def caveat(self) -> str:
        """What this means, in a sentence."""
        reasons = listed(sorted(set(self.rows.values())))
        hint = (
            "; sweep=decide, from a fresh seed on, allows for looks. If the number of seeds did not depend on that "
            f"comparison, delete {NAME} in the sweep's folder"
        )
        return (
            f"{plural(len(self.rows), 'row')} got more seeds {reasons}: p-values and intervals of a fixed number of "
            f"seeds do not hold, and there is no verdict{hint if 'comparison' in reasons else ''}"
        )


def interim_caveat(sweeps: "Sequence[ComparedSweep]") -> str:
    """Return what it means that sweeps have trials left, in a sentence; empty if none has."""
    left = sum(sweep.left for sweep in sweeps if not sweep.decides)
    if not left:
        return ""
    return (
        f"{plural(left, 'trial')} of the sweep {'has' if left == 1 else 'have'} not ended: what is looked for after "
        "each trial turns up by chance in more than 5 % of sweeps; compare at the end, or use sweep=decide"
    )


def record_look(table: Table) -> None:
    """Add a look to the folder of each sweep that is compared, if it can be written."""
    if len(table.rows) < 2:
        return
    for sweep in sweeps_of(table):
        if sweep.decides:
            continue
        try:
            looks = read_looks(sweep.folder)
            if sweep.trials not in [look["trials"] for look in looks]:
                looks = [*looks, {"at": now(), "trials": sweep.trials}]
                write_text(sweep.folder / NAME, json.dumps({"looks": looks}, indent=1) + "\n")
        except (OSError, DiskFull):
            continue  # another user's sweep, or no room: what matters is the comparison


def read_looks(folder: Path) -> list[dict[str, Any]]:
    """Read the looks at the sweep in ``folder``, the oldest first.

    Raises:
        RunError: looks.json is damaged.
    """
    path = folder / NAME
    if not path.is_file():
        return []
    try:
        known = read_json(path)
        if problem := misshapen(known, SHAPES):
            raise ValueError(problem)
        looks: list[dict[str, Any]] = known["looks"]
        for look in looks:
            datetime.fromisoformat(look["at"])
            set(look["trials"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"cannot read {path}: {error}; delete it to forget earlier comparisons") from None
    return looks


@dataclass(frozen=True)
class ComparedSweep:
    """A sweep of which runs are compared.

    Attributes:
        folder: of the sweep.
        trials: names of the folders that it asked for, and of the runs that are compared, in order.
        decides: whether it added seeds itself.
        left: number of trials that have not ended.
    """

    folder: Path
    trials: list[str]
    decides: bool
    left: int


def sweeps_of(table: Table) -> list[ComparedSweep]:
    """Read the sweeps with runs of a table; what cannot be read is left out."""
    parents = {run.parent for row in table.rows for run in row.runs.values()}
    found = []
    for parent in sorted(parent for parent in parents if parent is not None and (parent / "sweep.json").is_file()):
        try:
            known = read_json(parent / "sweep.json")
            asked = [str(trial["folder"]) for trial in known["trials"]]
            decides = "decision" in known
            left = _left(parent, known)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        names = [_name(run) for row in table.rows for run in _runs_in(parent, row)]
        found.append(ComparedSweep(parent, sorted({*asked, *names}), decides, left))
    return found


def _left(folder: Path, sweep: Mapping[str, Any]) -> int:
    """Number of trials of a sweep that have not ended, by sweep.json, which may be behind, and by their folders."""
    if sweep.get("complete") is True:  # with a pruner, the other seeds of pruned trials never start
        return 0
    trials = sweep["trials"]
    return max(sweep.get("planned") or 0, len(trials)) - sum(_has_ended(folder, trial) for trial in trials)


def _has_ended(folder: Path, trial: Mapping[str, Any]) -> bool:
    if trial.get("status", "finished") in ENDED:
        return True
    with suppress(RunError):  # it has no folder yet
        return RunRecord(folder / trial["folder"]).status in ENDED
    return False


def _was_to_decide(run: RunResult) -> bool:
    """Whether the command of a run chose to decide: at W&B, all that is known of its sweep."""
    given = parse_overrides(str(run.facts.get("command", "")), "")
    return given.get("sweep") == "decide" or given.get("sweep.method", "null") != "null"


def _has_grown(row: ConfigurationRow, folder: Path, look: Mapping[str, Any]) -> bool:
    """Whether a row has runs of a look at ``folder``, and others: of that folder, or of any and started since."""
    here, seen = {_name(run) for run in _runs_in(folder, row)}, set(look["trials"])
    since = any(run.started > look["at"] for run in row.runs.values() if run.parent != folder)
    return bool(here & seen) and (since or bool(here - seen))


def _runs_in(folder: Path, row: ConfigurationRow) -> list[RunResult]:
    return [run for run in row.runs.values() if run.parent == folder]


def _name(run: RunResult) -> str:
    return run.folder.resolve().name if run.folder is not None else run.name
