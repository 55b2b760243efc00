"""Simulate comparisons of a fixed number of seeds where the truth is known: how often they are wrong.

python benchmarks/studies/comparisons.py           # simulates (two minutes on one core) and writes docs/decisions.md
python benchmarks/studies/comparisons.py --page    # only writes the page
"""

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy import stats
from seeds import ROOT, STUDIES, markdown_table, write_between

from vitrine.compare.simultaneous import UNEQUAL, Family
from vitrine.files import write_text

RESULTS = STUDIES / "comparisons.json"
PAGE = ROOT / "docs" / "decisions.md"
SWEEPS = 20_000
DESIGNS = [(rows, seeds) for rows in (2, 5, 10) for seeds in (3, 5, 10)]
# Standard deviations of the baseline, of one other row, and of the rest.
SPREADS = {
    "equal": (1, 1, 1),
    "one row varies twice as much": (1, 2, 1),
    "the baseline does": (2, 1, 1),
    "one row, four times": (1, 4, 1),
    "the baseline, four times": (4, 1, 1),
}
EFFECT = 3.0  # of one row, in standard deviations of a run


def drawn(rng: np.random.Generator, sweeps: int, design: tuple[int, int], spreads: tuple[int, ...]) -> np.ndarray:
    """Values of equal rows, the baseline first: (sweeps, rows, seeds). What seeds share cancels, and is left out."""
    rows, seeds = design
    deviations = np.array([*spreads[:2], *[spreads[2]] * rows])[:rows]
    return rng.normal(size=(sweeps, rows, seeds)) * deviations[:, None]


def verdicts(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which rows ``compare`` calls different from the first, (sweeps, rows - 1), and with each pair's own variance."""
    _, rows, seeds = values.shape
    apart = values[:, 1:] - values[:, :1]
    mean = np.abs(apart.mean(2))
    own = mean > Family(rows - 1).critical_t(seeds - 1) * np.sqrt(apart.var(2, ddof=1) / seeds)
    if rows < 3:
        return own, own
    rest = values - values.mean(1, keepdims=True) - values.mean(2, keepdims=True) + values.mean((1, 2), keepdims=True)
    freedom = (rows - 1) * (seeds - 1)
    error = np.sqrt(2 * (rest**2).sum((1, 2)) / freedom / seeds)[:, None]
    pooled = mean > Family(rows - 1, "dunnett", pooled=True).critical_t(freedom) * error
    return np.where((levene(rest) < UNEQUAL)[:, None], own, pooled), own


def levene(values: np.ndarray) -> np.ndarray:
    """The p-value of Levene's test for the rows of each sweep: (sweeps, rows, seeds) -> (sweeps,)."""
    _, rows, seeds = values.shape
    far = np.abs(values - values.mean(2, keepdims=True))
    between = seeds * far.mean(2).var(1, ddof=1)
    within = far.var(2, ddof=1).mean(1)
    return np.asarray(stats.f.sf(between / within, rows - 1, rows * (seeds - 1)))


def simulate(design: tuple[int, int], sweeps: int) -> dict[str, float]:
    """Shares of sweeps with any false verdict, by the spreads of the rows, and of those that find an effect."""
    rng, found = np.random.default_rng(design), {"sweeps": float(sweeps)}
    for name, spreads in SPREADS.items():
        found[name] = float(verdicts(drawn(rng, sweeps, design, spreads))[0].any(1).mean())
    values = drawn(rng, sweeps, design, (1, 1, 1))
    plain = np.abs(stats.ttest_rel(values[:, 1:], values[:, :1], axis=2).pvalue) < 0.05
    found["plain t-tests"] = float(plain.any(1).mean())
    values[:, 1] += EFFECT
    found["power"], found["own power"] = (float(called[:, 0].mean()) for called in verdicts(values))
    return found


def name_of(design: tuple[int, int]) -> str:
    """``5 rows, 3 seeds``."""
    return f"{design[0]} rows, {design[1]} seeds"


def table(known: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The table of docs/decisions.md."""
    columns = ["rows, seeds", "plain t-tests", *SPREADS, f"finds {EFFECT:g} deviations", "with own variances"]
    lines = []
    for design in DESIGNS:
        found = known[name_of(design)]
        wrong = [f"{found[name]:.1%}" for name in ("plain t-tests", *SPREADS)]
        lines.append([name_of(design), *wrong, f"{found['power']:.2f}", f"{found['own power']:.2f}"])
    return markdown_table(columns, lines)


def main() -> None:
    """Simulate, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="simulate nothing")
    if not parser.parse_args().page:
        known: dict[str, Any] = {name_of(design): simulate(design, SWEEPS) for design in DESIGNS}
        write_text(RESULTS, json.dumps(known, indent=1) + "\n")
    write_between(PAGE, "comparisons", table(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
