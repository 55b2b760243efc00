"""Durations: as users type them, ``10m``, ``600s``, ``1h30m``, ``00:10:00``, and as a clock shows them."""

import re
from datetime import timedelta

FORMATS = "10m, 600s, 1h30m, 2d, HH:MM:SS or DD:HH:MM:SS"

_UNITS = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):([0-5]\d):([0-5]\d)")
_SECONDS = (86_400, 3_600, 60, 1)


def duration_seconds(text: str) -> int:
    """Return a duration in seconds; the form with colons is Lightning's, its days are optional.

    Raises:
        ValueError: ``text`` is not a duration, or is zero; the message lists the formats.
    """
    match = _UNITS.fullmatch(text) or _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(f"must be a duration: {FORMATS}")
    seconds = sum(int(part or 0) * unit for part, unit in zip(match.groups(), _SECONDS, strict=True))
    if seconds == 0:
        raise ValueError(f"must be longer than zero: {FORMATS}")
    return seconds


def clock(seconds: float) -> str:
    """A duration to the second, as a clock shows it: ``0:02:05``, ``2 days, 3:00:00``."""
    return str(timedelta(seconds=round(seconds))) if abs(seconds) < 1e9 else f"{seconds:.3g} s"


def short_duration(seconds: float) -> str:
    """A duration to three digits: ``12.3 ms``, ``1.87 s``; minutes from two on."""
    if seconds < 0.9995:  # more is 1 s to three digits
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
