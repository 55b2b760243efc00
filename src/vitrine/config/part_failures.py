"""Exceptions in code of a user's parts while they run: which part failed, and at which line of the user's."""

import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from vitrine.config.parts import PartError, load, names_of, package_of, reason
from vitrine.config.source_code import sources
from vitrine.errors import Interrupted, Pruned, VitrineError


@contextmanager
def failing_in_one_line(config: Any) -> Iterator[None]:
    """Turn an exception in code of a user's part that ``config`` names into a PartError of one line; others pass."""
    try:
        yield
    except (VitrineError, Interrupted, Pruned):
        raise
    except Exception as error:
        if (name := _failing_part(error, names_of(config))) is None:
            raise
        raise PartError(name, f"failed: {reason(error, name)}") from error


def _failing_part(error: BaseException, names: Collection[str]) -> str | None:
    """Return the part whose own code, or else whose package outside installed ones, is innermost in the traceback."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
    homes = {name: load(name) for name in names}
    for frame in frames:
        for name, home in homes.items():
            is_inside = f"{frame.f_code.co_qualname}.".startswith(f"{home.__qualname__}.")
            if is_inside and frame.f_globals.get("__name__") == home.__module__:
                return name
    packages = {name.partition(".")[0]: name for name in names if sources(name)}
    return next((packages[package_of(frame)] for frame in frames if package_of(frame) in packages), None)
