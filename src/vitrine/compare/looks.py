"""Looks at a sweep: seeds that are added because of what a comparison showed lead to too many findings.

``looks.json`` in the sweep's folder holds which trials the sweep had asked for at each comparison, the oldest first:
``{"looks": [{"at": time, "trials": [folder, ...]}, ...]}``. It can be deleted; then looks are forgotten.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from vitrine.compare.load import RunResult
from vitrine.compare.table import Table
from vitrine.errors import RunError
from vitrine.files import write_text
from vitrine.runs.record import now
from vitrine.text import plural
from vitrine.untrusted import misshapen, read_json

NAME = "looks.json"
SHAPES = {"looks": [{"at": str, "trials": [str]}]}


@dataclass(frozen=True)
class Growth:
    """Rows to which seeds were added after a comparison.

    Attributes:
        day: of the comparison, ``2026-11-23``.
        rows: their labels.
    """

    day: str
    rows: frozenset[str]

    @classmethod
    def of(cls, table: Table) -> "Growth | None":
        """Compare a table with the first look at its sweep that it has outgrown; ``None`` if there is none.

        Raises:
            RunError: looks.json is damaged.
        """
        known = _sweep([run for row in table.rows for run in row.runs.values()])
        for look in [] if known is None else read_looks(known[0]):
            seen = set(look["trials"])
            names = {row.label: {_name(run) for run in row.runs.values()} for row in table.rows}
            grown = frozenset(label for label, found in names.items() if found & seen and found - seen)
            if grown:
                return cls(str(datetime.fromisoformat(look["at"]).date()), grown)
        return None

    @property
    def caveat(self) -> str:
        """What this means, in a sentence."""
        return (
            f"{plural(len(self.rows), 'row')} got more seeds after a comparison on {self.day}: p-values and intervals "
            f"of a fixed number of seeds do not hold, and there is no verdict; sweep=decide adds seeds and allows for "
            f"looks. If the number of seeds did not depend on that comparison, delete {NAME} in the sweep's folder"
        )


def record_look(table: Table) -> None:
    """Add a look at a sweep to its folder, if these are runs of one sweep and the folder can be written."""
    known = _sweep([run for row in table.rows for run in row.runs.values()])
    if known is None or len(table.rows) < 2:
        return
    folder, trials = known
    try:
        looks = read_looks(folder)
        if trials not in [look["trials"] for look in looks]:
            looks = [*looks, {"at": now(), "trials": trials}]
            write_text(folder / NAME, json.dumps({"looks": looks}, indent=1) + "\n")
    except OSError:
        return  # another user's sweep: what matters is the comparison


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


def _sweep(runs: Sequence[RunResult]) -> tuple[Path, list[str]] | None:
    """The folder of the grid that holds all ``runs``, and the trials that it asked for, in order.

    ``None`` for other runs, and for sweeps that allow for looks.
    """
    parents = {None if run.folder is None else run.folder.resolve().parent for run in runs}
    parent = parents.pop() if len(parents) == 1 else None
    if parent is None or not (parent / "sweep.json").is_file():
        return None
    try:
        known = read_json(parent / "sweep.json")
        if "decision" in known:
            return None
        asked = [str(trial["folder"]) for trial in known["trials"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return parent, sorted({*asked, *map(_name, runs)})


def _name(run: RunResult) -> str:
    return run.folder.name if run.folder is not None else run.name
