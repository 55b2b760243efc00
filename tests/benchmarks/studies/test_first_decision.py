"""benchmarks/studies/first_decision.py: any verdict is shown, and each run keeps its own commit."""

from types import SimpleNamespace

import pytest

from vitrine.runs import RunRecord

VERDICTS = [
    "position=none is worse than position=learned after 3 seeds, -27.78 points [-43.35, -12.20]",
    "position=none and position=learned are equal within 1 point after 9 seeds, +0.10 points [-0.50, +0.70]",
    "position=none and position=learned: undecided after 20 seeds, +0.10 points [-1.50, +1.70]",
]


@pytest.mark.parametrize("verdict", VERDICTS, ids=["worse", "equal", "undecided"])
def test_the_decision_is_kept_with_its_runs(study, tmp_path, monkeypatch, verdict):
    script = study("first_decision")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "OUT", tmp_path / "decision")
    monkeypatch.setattr(script.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=f"\n{verdict}\n\nmore\n"))
    machine = {"machine": {"processor": "AMD EPYC", "cores": 2}, "device": "CPU", "versions": {"torch": "2.15.0"}}
    for seed, (status, commit) in enumerate([("finished", "a" * 40), ("diverged", "b" * 40)]):
        folder = script.OUT / f"seed-{seed}"
        folder.mkdir(parents=True)
        record = RunRecord(folder)
        record.update(status=status, code={"commit": commit}, **machine)
        record.write_config({"model": {"position": "none"}, "seed": seed})
        if status == "finished":
            record.write_metrics({"val/acc": 0.5, "val/loss": 1.0})
    found = script.decided()
    assert found["line"] == verdict
    assert [run["commit"] for run in found["runs"]] == ["a" * 40, "b" * 40]
    assert [run["val/acc"] for run in found["runs"]] == [0.5, None]
