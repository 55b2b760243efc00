"""benchmarks/studies/decisions.py: simulated sweeps end as real decisions do, and what the page promises holds."""

import json
import math

import numpy as np
import pytest
from helpers.running import ROOT

from vitrine.compare.sequential import Decision

KNOWN = json.loads((ROOT / "benchmarks" / "studies" / "decisions.json").read_text())


@pytest.fixture
def decisions(study):
    return study("decisions")


@pytest.mark.parametrize(
    ("method", "paired"), [("group_sequential", True), ("group_sequential", False), ("anytime", True)]
)
def test_simulated_sweeps_end_as_decisions_do(decisions, method, paired):
    scenario = decisions.Scenario(3, "normal", paired, method, 0.8)
    x = decisions.values(scenario, 20, np.random.default_rng(0))
    rule = decisions.Rule(0.025, None, 3, 20, method, paired)
    verdicts, seeds = decisions.decide(rule, x)
    assert len(np.unique(verdicts)) > 1
    for sweep, expected, used in zip(x, verdicts, seeds, strict=True):
        decision = Decision(["0", "1", "2"], "0", method=method, paired=paired)
        while wanted := decision.wanted():
            for arm, seed in wanted:
                decision.add(arm, seed, sweep[int(arm), seed])
        assert list(decision.verdicts.values()) == [verdict or "undecided" for verdict in expected]
        assert [decision.looks(arm)[-1].seeds for arm in "12"] == list(used)


def test_committed_errors_power_and_seeds_are_what_is_promised(decisions):
    names = [scenario.name for scenario in decisions.scenarios()]
    assert set(names) <= set(KNOWN)
    for scenario in decisions.scenarios():
        found = KNOWN[scenario.name]
        assert found["sweeps"] == 20_000
        if not scenario.effect:
            assert found["wrong"] <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 20_000)
            continue
        if scenario.method != "group_sequential" or scenario.arms == 10 or not scenario.paired:
            continue
        if scenario.effect >= 2:
            assert found["seeds"] <= 1.3 * found["fixed"]
        if scenario.effect == 1:
            assert found["found"] >= found["fixed_power"] - 0.1


def test_the_page_is_written_from_the_results(decisions, tmp_path, monkeypatch):
    page = tmp_path / "decisions.md"
    page.write_text(decisions.PAGE.read_text())
    monkeypatch.setattr(decisions, "PAGE", page)
    decisions.write_page(KNOWN)
    assert page.read_text() == (ROOT / "docs" / "decisions.md").read_text()
