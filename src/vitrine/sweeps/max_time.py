"""``trainer.max_time`` of a sweep: whether it leaves time for another trial."""

import time
from collections.abc import Sequence

from vitrine.durations import duration_seconds
from vitrine.errors import RunError
from vitrine.runs import RunRecord
from vitrine.sweeps.trial import Trial

STEP_AND_SAVE_SECONDS = 10.0  # of a trial's first step and its checkpoint, at most


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
