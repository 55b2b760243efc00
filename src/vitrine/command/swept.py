"""Overrides with several values, written with Hydra's functions: such as range(0,5)."""

from hydra.core.override_parser.types import RangeSweep, Sweep

MAX_TRIALS = 100_000  # of a sweep: each is composed, checked and listed before the first one trains
TOO_MANY = f"a sweep has at most {MAX_TRIALS:,} trials"


def problem_of(swept: Sweep) -> str:
    """Return what is wrong with the values of an override, before they are listed; "" if nothing is."""
    if not isinstance(swept, RangeSweep):
        return ""
    assert swept.start is not None
    assert swept.stop is not None
    if swept.step == 0:
        return "has a step of 0"
    if not (swept.stop - swept.start) // swept.step <= MAX_TRIALS:  # NaN for an infinite range
        return f"has more than {MAX_TRIALS:,} values; {TOO_MANY}"
    return ""
