"""Overrides that Hydra's grammar cannot read, and several values that it can read but no sweep can have."""

import re

from hydra.core.override_parser.types import IntervalSweep, RangeSweep, Sweep

from vitrine.errors import Fault
from vitrine.text import nearest

MAX_TRIALS = 100_000  # of a sweep: each is composed, checked and listed before the first one trains
TOO_MANY = f"a sweep has at most {MAX_TRIALS:,} trials"
FUNCTIONS = ["choice", "range", "interval", "tag", "glob", "sort", "shuffle"]

# How the errors of Hydra's parser begin, and what is printed instead.
SYNTAX_ERRORS = {
    r"^(token recognition error at:|no viable alternative at input|(mismatched|extraneous) input) ": "unexpected ",
    r"'<EOF>'$": "end",
    r"^(HydraException|TypeError) while evaluating ": "in ",
}


def syntax_fault(argument: str, error: Exception) -> Fault:
    """Return the fault of an override that Hydra's parser refuses with ``error``."""
    key, _, value = argument.partition("=")
    if key == argument:
        return Fault(argument, "", "is not of the form key=value")
    found = re.sub(r" expecting .*", "", str(error).splitlines()[0])  # names of the grammar's tokens
    if unknown := re.search(r"Unknown function '(\w+)'", found):
        near = nearest(unknown[1], FUNCTIONS)
        meant = near and argument.replace(f"{unknown[1]}(", f"{near}(")
        problem = f"there is no function {unknown[1]}; the functions are {', '.join(FUNCTIONS)}"
        return Fault(key, value, f"{problem} (quote text with brackets: '{key}=\"a(b)\"')", meant)
    for place, shown in SYNTAX_ERRORS.items():
        found = re.sub(place, shown, found)
    return Fault(argument, "", f"cannot be read: {found} (quote values with special characters: 'key=\"a, b\"')")


def sweep_fault(key: str, given: str, swept: Sweep) -> Fault | None:
    """Return what is wrong with the values ``swept``, typed as ``given``, before they are listed."""
    allowed = ["log"] if isinstance(swept, IntervalSweep) else []
    if unknown := sorted(swept.tags.difference(allowed)):
        tag = unknown[0]
        problem = f"has the tag {tag}; the one tag is log, of an interval: tag(log,interval(1e-4,1e-2))"
        near = re.sub(rf"\b{re.escape(tag)}\b", "log", given, count=1) if allowed and nearest(tag, allowed) else ""
        return Fault(key, given, problem, near and f"{key}={near}")
    if not isinstance(swept, RangeSweep):
        return None
    assert swept.start is not None
    assert swept.stop is not None
    if swept.step == 0:
        return Fault(key, given, "has a step of 0")
    if not (swept.stop - swept.start) // swept.step <= MAX_TRIALS:  # NaN for an infinite range
        return Fault(key, given, f"has more than {MAX_TRIALS:,} values; {TOO_MANY}")
    return None
