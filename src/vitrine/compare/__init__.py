"""Comparisons of finished runs: tables, statistics, findings and a report.

``compare(load_results([folder]))`` compares the runs in a folder. Both are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrine.compare.comparison import compare as compare
    from vitrine.compare.load import load_results as load_results

_HOMES = {"compare": "vitrine.compare.comparison", "load_results": "vitrine.compare.load"}

__all__ = ["compare", "load_results"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrine.compare' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
