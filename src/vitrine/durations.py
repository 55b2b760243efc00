"""Lengths of time as they are typed: ``10m``, ``600s``, ``1h30m``, ``00:10:00``."""

import re

ALLOWED = "10m, 600s, 1h30m, 2d, HH:MM:SS or DD:HH:MM:SS"

_UNITS = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):([0-5]\d):([0-5]\d)")
_SECONDS = (86_400, 3_600, 60, 1)


def duration_seconds(text: str) -> int:
    """Seconds of a length of time; the form with colons is Lightning's, and may leave out the days.

    Raises:
        ValueError: ``text`` is no such length, or no time at all; the message says what is allowed.
    """
    match = _UNITS.fullmatch(text) or _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(f"must be a length of time: {ALLOWED}")
    seconds = sum(int(part or 0) * unit for part, unit in zip(match.groups(), _SECONDS, strict=True))
    if seconds == 0:
        raise ValueError(f"must be longer than no time at all: {ALLOWED}")
    return seconds
