"""The test behind the intervals and p-values of a table, in a sentence."""

import math
from collections import Counter
from collections.abc import Sequence

from vitrine.compare.difference import Difference
from vitrine.compare.simultaneous import POOLED_LEVEL, SIGNIFICANCE_LEVEL, Family
from vitrine.compare.table import ConfigurationRow, counted
from vitrine.text import listed

PAIRED, PARTLY = "paired t-test", "t-test of partly paired samples (Derrick, Toher and White, 2017)"
WELCH = "Welch's t-test"


def method_of(
    tested: Sequence[Difference],
    family: Family,
    levene: float,
    rows: Sequence[ConfigurationRow],
    *,
    all_pairs: bool = False,
) -> str:
    """Return the test in a sentence; empty if no difference has a p-value.

    Args:
        tested: differences that have a p-value.
        family: the differences whose intervals hold together.
        levene: p-value of equal variances of all rows; NaN if it was not asked for.
        rows: the baseline, and the rows whose difference from it has an interval.
        all_pairs: the family is of all pairs of the table's rows.
    """
    shown = [found for found in tested if not math.isnan(found.low)]
    equal = "p = 1 without a test where both sides have equal values" if len(shown) < len(tested) else ""
    if not shown:
        return equal
    kinds = Counter(PAIRED if found.paired else PARTLY if found.shared else WELCH for found in shown)
    tests = listed([kind if len(kinds) == 1 else f"{count} by {kind}" for kind, count in kinds.items()])
    counts = [count for found in shown for count in found.counts]
    over = counted(counts, rows)
    over += ", each with its mean over the other columns" if rows[0].is_main_effect else ""
    images = f"{'groups of ' * any(found.grouped for found in shown)}test images"
    parts = [
        f"{tests} over {over}",
        _variance(family, levene),
        _where("enlarged for shared training images (Nadeau and Bengio, 2003)", [found.overlap > 0 for found in shown]),
        _correction(family, all_pairs=all_pairs),
        "without full pairs, critical values raised for few seeds" if any(map(family.raises, _groups(shown))) else "",
        _where(
            f"variance over {images} added where that widens the interval (Clark, 1973)",
            [found.new_images for found in shown],
        ),
        equal,
    ]
    return f"intervals and p-values of differences: {'; '.join(filter(None, parts))}"


def sequential_method(confidence: float) -> str:
    """Return the sentence for the differences of a sweep that decided while it trained."""
    return (
        "intervals of differences: by the sequential rule that the sweep announced (sweep=decide), without p-values; "
        f"they are simultaneous at {100 * confidence:g} %"
    )


def _variance(family: Family, levene: float) -> str:
    equal = [] if math.isnan(levene) else [f"Levene's p = {levene:.2g}"]
    basis = ["two-way analysis of variance", *equal] if family.pooled else equal
    whose = "common variance of all rows" if family.pooled else "own variances"
    return f"{whose} ({', '.join(basis)})" if basis else whose


def _correction(family: Family, *, all_pairs: bool) -> str:
    count = family.comparisons
    if count == 1:
        return "no correction for a single comparison"
    over = f"{family.method.title()}'s correction for {f'all {count} pairs' if all_pairs else f'{count} comparisons'}"
    if not family.pooled:
        return over
    scale = SIGNIFICANCE_LEVEL / POOLED_LEVEL
    return f"{over} at {100 * POOLED_LEVEL:g} % (p-values times {scale:g}), since variances may differ after all"


def _groups(shown: Sequence[Difference]) -> list[tuple[int, int]]:
    return [found.counts for found in shown if not found.paired]


def _where(text: str, holds: Sequence[bool]) -> str:
    """``text``, and in how many differences it holds if not in all; empty if it holds in none."""
    count = sum(holds)
    of = "" if count == len(holds) else f" in {count} of {len(holds)}"
    return f"{text}{of}" if count else ""
