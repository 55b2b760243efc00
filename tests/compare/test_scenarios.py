"""Sweeps of equal configurations, compared as people do: how often does ``compare`` call one better or worse?

Each scenario led a comparison with a plain t-test to false findings in 8 to 29 % of sweeps.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from helpers.levels import slow

from vitrine.compare.comparison import Comparison, compare
from vitrine.compare.load import RunResult, RunResults
from vitrine.compare.looks import record_look

pytestmark = pytest.mark.whole

SWEEPS = 150
MOST = 0.05 + 2 * math.sqrt(0.05 * 0.95 / SWEEPS)
Values = Mapping[str, Mapping[int, float]]  # by row and seed


@pytest.fixture(autouse=True)
def what_decides(monkeypatch):
    """Without planning, which decides nothing and takes longer than everything else."""
    monkeypatch.setattr("vitrine.compare.seed_sentence.Plan.detects", lambda *arguments: 0.01)


def results(values: Values, folder: Path | None = None) -> RunResults:
    """Finished runs with these test accuracies, not on disk."""
    runs = [
        RunResult(
            name=f"{row}-{seed}",
            status="finished",
            config={"model.position": row, "seed": seed, "data.name": "digits"},
            overrides={"position": row, "seed": str(seed)},
            facts={"id": f"{row}-{seed}"},
            metrics={"test/acc": acc},
            history=[],
            folder=None if folder is None else folder / f"{row}-{seed}",
        )
        for row, seeds in values.items()
        for seed, acc in seeds.items()
    ]
    return RunResults(runs, [])


def drawn(
    rng: np.random.Generator, rows: int, seeds: int, spreads: tuple[float, ...] = (1.0,), shared: float = 1.0
) -> dict[str, dict[int, float]]:
    """Accuracies of equal configurations. A seed does the same to all rows, ``shared`` times as much as its own part.

    ``spreads`` are of the first rows; those that follow vary like the last of them.
    """
    common = shared * rng.normal(size=seeds)
    own = rng.normal(size=(rows, seeds)) * np.array([*spreads, *[spreads[-1]] * rows])[:rows, None]
    return {f"row{row}": dict(enumerate(0.9 + 0.01 * (common + own[row]))) for row in range(rows)}


def called(compared: Comparison) -> bool:
    """Whether any row is called better or worse; from three seeds on, each verdict must agree with its interval."""
    for tested in compared.findings.comparisons:
        if min(tested.difference.counts) < 3:
            assert tested.verdict == "inconclusive"
            continue
        excludes_zero = tested.difference.low > 0 or tested.difference.high < 0
        assert excludes_zero == (tested.verdict != "inconclusive")
        assert excludes_zero == (tested.difference.corrected < 0.05)
    return any(tested.verdict != "inconclusive" for tested in compared.findings.comparisons)


def share_of(scenario: Callable[[np.random.Generator], bool], sweeps: int = SWEEPS) -> float:
    """Share of sweeps with a false finding."""
    rng = np.random.default_rng(0)
    return sum(scenario(rng) for _ in range(sweeps)) / sweeps


@pytest.mark.parametrize(
    ("rows", "seeds", "spreads"),
    [(2, 3, (1.0,)), (5, 3, (1.0,)), slow(10, 5, (1.0,)), (5, 3, (1.0, 1.0, 1.0, 1.0, 2.0)), (5, 5, (3.0, 1.0))],
    ids=["two", "five", "ten", "one varies more", "the baseline varies more"],
)
def test_the_first_row_against_all_others(rows, seeds, spreads):
    assert share_of(lambda rng: called(compare(results(drawn(rng, rows, seeds, spreads))))) <= MOST


@pytest.mark.parametrize("rows", [3, slow(6)])
def test_the_best_row_named_as_baseline(rows):
    def scenario(rng):
        values = drawn(rng, rows, 5)
        best = max(values, key=lambda row: np.mean([*values[row].values()]))
        return called(compare(results(values), baseline=best))

    assert share_of(scenario) <= MOST


@pytest.mark.parametrize(
    ("seeds", "spreads", "common"),
    [
        ((3, 10), (1, 1), True),
        ((3, 10), (3, 1), False),
        slow((3, 10), (1, 1), False),
        slow((3, 10), (3, 1), True),
        *(slow(*case, common) for case in [((2, 10), (1, 1)), ((10, 3), (3, 1))] for common in (False, True)),
    ],
)
def test_two_groups_of_unequal_size(seeds, spreads, common):
    def scenario(rng):
        shared = rng.normal(size=20)
        sides = [
            {seed: 0.9 + 0.01 * (shared[seed] * common + spread * rng.normal()) for seed in range(first, first + count)}
            for first, count, spread in zip((0, 0 if common else 10), seeds, spreads, strict=True)
        ]
        return called(compare(results({"one": sides[0], "other": sides[1]})))

    assert share_of(scenario) <= MOST


def test_seeds_added_after_each_look_until_something_is_found(tmp_path):
    def scenario(rng):
        values, found = drawn(rng, 2, 12), False
        (tmp_path / "looks.json").unlink(missing_ok=True)
        for seeds in (3, 4, 6, 9, 12):
            some = {row: dict(list(by_seed.items())[:seeds]) for row, by_seed in values.items()}
            (tmp_path / "sweep.json").write_text(json.dumps({"trials": []}))
            compared = compare(results(some, tmp_path))
            record_look(compared.table)
            found = found or called(compared)
            assert (seeds > 3) == any("got more seeds after a comparison" in text for text in compared.caveats)
        return found

    assert share_of(scenario, sweeps=100) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 100)


def test_the_best_of_all_is_among_those_that_are_named():
    """Multiple comparisons with the best: each row may be it here, and is left out in at most one sweep of twenty."""

    def scenario(rng):
        sentence = compare(results(drawn(rng, 4, 4))).findings.sentences[1]
        assert sentence.startswith("with 95 % confidence, ")
        return "row0" not in sentence and "any of the 4" not in sentence

    assert share_of(scenario) <= MOST
