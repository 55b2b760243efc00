"""The status of a run, and what each means to those that read it."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrine.runs.lock import lock_state
from vitrine.runs.lock_file import LockState
from vitrine.runs.process import process_exists

DONE = ("finished", "pruned", "diverged")  # a sweep never trains them again; see also sweeps/divergence.py
ENDED = (*DONE, "failed")
STATUSES = (*ENDED, "interrupted", "running")
FAILED = ("failed", "diverged")


def status_of(facts: Mapping[str, Any], folder: Path) -> str:
    """Return the status in run.json of the run in ``folder``: ``interrupted`` if a killed process left it running."""
    status = str(facts.get("status"))
    return "interrupted" if status == "running" and _has_lost_process(facts, folder) else status


def _has_lost_process(facts: Mapping[str, Any], folder: Path) -> bool:
    """Whether the process of a run with status ``running`` is known to be gone."""
    state, _ = lock_state(folder)
    if state is LockState.FREE:  # it was started by an earlier version, or without a lock
        return not is_elsewhere(facts) and not process_exists(facts.get("pid"), facts.get("process"))
    return state is LockState.DEAD


def is_elsewhere(facts: Mapping[str, Any]) -> bool:
    """Whether a run was started on another machine."""
    return facts.get("host") != socket.gethostname()
