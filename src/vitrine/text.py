"""Text for people: plurals, lists, numbers, sizes, durations, and "did you mean"."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def plural(count: int, noun: str, several: str = "") -> str:
    """A count with its noun: ``1 run``, ``1,000 runs``; ``several`` is an irregular plural."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


def listed(items: Sequence[Any], most: int | None = None, separator: str = "") -> str:
    """Items as a sentence lists them: ``a and b``, ``a, b and c``; beyond ``most``, ``a, b and 7 more``.

    A ``separator`` such as ``"; "``, for items that hold commas, stands between all of them.
    """
    texts = [str(item) for item in items[:most]]
    if len(texts) < len(items):
        texts.append(f"{len(items) - len(texts):,} more")
    if separator or len(texts) < 2:
        return separator.join(texts)
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def file_size(count: float) -> str:
    """Bytes to three digits, in decimal units: ``1.23 GB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def short_number(value: float) -> str:
    """A number to three digits: ``1.23 M``."""
    for size, letter in ((1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def as_override(value: object) -> str:
    """A value as an override has it: ``null``, ``true``, ``0.1``."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def clock(seconds: float) -> str:
    """A duration to the second, as a clock shows it: ``0:02:05``, ``2 days, 3:00:00``."""
    return str(timedelta(seconds=round(seconds)))


def nearest(given: str, allowed: Iterable[str]) -> str:
    """The allowed name most similar to ``given``, or an empty string if none is similar."""
    matches = get_close_matches(given, list(allowed), n=1, cutoff=0.6)
    return matches[0] if matches else ""


def did_you_mean(match: object) -> str:
    """The hint that ends an error message: ``; did you mean rope?``. Empty if ``match`` is empty or ``None``."""
    return f"; did you mean {match}?" if match else ""


def print_table(table: "Table") -> None:
    """Print a rich table at its full width. A terminal wraps longer lines itself, so that paths can be copied whole."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, Console(width=10_000).measure(table).maximum)
    console.print(table, crop=False)
