"""Trials that diverged. They would do so again at the same step, so they are tried again only by other code."""

import shutil
from collections.abc import Sequence
from contextlib import suppress

from vitrine.errors import RunError
from vitrine.runs import RunRecord, provenance
from vitrine.runs.diff import code_diff
from vitrine.sweeps.trial import Trial, locked, read_result


def forget_outdated(trials: Sequence[Trial]) -> list[Trial]:
    """Remove the folders of diverged trials that other code of vitrine trained, and return these trials.

    A folder that another process has locked, or that cannot be locked, stays.
    A user's own parts need no such check: their code is a part of a trial's fingerprint.
    """
    diverged = [trial for trial in trials if read_result(trial.folder).status == "diverged"]
    code = _code_here() if diverged else ()
    outdated = [trial for trial in diverged if _code_of(RunRecord(trial.folder)) != code]
    for trial in outdated:
        with suppress(RunError), locked(trial):
            shutil.rmtree(trial.folder, ignore_errors=True)
    return outdated


def _code_here() -> tuple[object, ...]:
    """Version, commit and uncommitted changes of vitrine."""
    commit, difference = provenance.code_state()
    return provenance.versions().get("vitrine"), commit, difference.encode()


def _code_of(record: RunRecord) -> tuple[object, ...]:
    facts = record.facts
    return (facts.get("versions") or {}).get("vitrine"), facts.get("code"), code_diff(record)
