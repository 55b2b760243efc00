"""Comparisons of finished runs: tables, statistics, findings and a report.

``compare(load_results([folder]))`` compares the runs in a folder. Both are imported when they are first used.
"""

from typing import TYPE_CHECKING

from vitrine.lean_imports import lazy_names

if TYPE_CHECKING:
    from vitrine.compare.comparison import compare as compare
    from vitrine.compare.load import load_results as load_results

__all__ = ["compare", "load_results"]

__getattr__, __dir__ = lazy_names(
    __name__, {"compare": "vitrine.compare.comparison", "load_results": "vitrine.compare.load"}
)
