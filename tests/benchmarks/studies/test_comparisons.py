"""benchmarks/studies/comparisons.py: simulated sweeps end as real comparisons do, and what the page promises holds."""

import json
import math

import numpy as np
import pytest
from helpers.running import ROOT

from vitrine.compare.comparison import compare
from vitrine.compare.load import RunResult, RunResults

KNOWN = json.loads((ROOT / "benchmarks" / "studies" / "comparisons.json").read_text())


def compared(values):
    """A sweep's comparison, of values (rows, seeds)."""
    runs = [
        RunResult(f"{row}-{seed}", "finished", {"model.depth": row, "seed": seed}, {}, {}, {"val/loss": value}, [])
        for row, by_seed in enumerate(values.tolist())
        for seed, value in enumerate(by_seed)
    ]
    return compare(RunResults(runs, []))


@pytest.mark.parametrize("design", [(2, 4), (5, 3)])
def test_simulated_sweeps_end_as_comparisons_do(study, design):
    comparisons = study("comparisons")
    values = comparisons.drawn(np.random.default_rng(0), 12, design, (1, 3, 1))
    values[::2, 1] += 9.0
    expected, _ = comparisons.verdicts(values)
    assert len(np.unique(expected)) == 2
    for sweep, called in zip(values, expected, strict=True):
        found = {tested.row.label: tested.verdict for tested in compared(sweep).findings.comparisons}
        assert [found[f"model.depth={row}"] != "inconclusive" for row in range(1, design[0])] == called.tolist()


def test_committed_errors_are_what_is_promised(study):
    comparisons = study("comparisons")
    most = 0.05 + 2 * math.sqrt(0.05 * 0.95 / 20_000)
    for design in comparisons.DESIGNS:
        found = KNOWN[comparisons.name_of(design)]
        assert found["sweeps"] == 20_000
        assert found["equal"] <= most
        assert max(found[name] for name in comparisons.SPREADS) <= 0.065
        assert found["power"] >= found["own power"] - 0.005
    assert KNOWN["10 rows, 5 seeds"]["plain t-tests"] > 0.15


def test_the_page_is_written_from_the_results(study, tmp_path, monkeypatch):
    comparisons = study("comparisons")
    page = tmp_path / "decisions.md"
    page.write_text(comparisons.PAGE.read_text())
    comparisons.write_between(page, "comparisons", comparisons.table(KNOWN))
    assert page.read_text() == (ROOT / "docs" / "decisions.md").read_text()
