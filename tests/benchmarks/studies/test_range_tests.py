"""benchmarks/studies/range_tests.py: a refused or failed test ends it, and the table says what it rests on."""

from types import SimpleNamespace

import pytest

from vitrine.runs import RunRecord


@pytest.fixture
def range_tests(study, tmp_path, monkeypatch):
    script = study("range_tests")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "OUT", tmp_path / "range_tests")
    return script


def leave_run(folder, number, **facts):
    path = folder / "runs" / f"run-{number}"
    path.mkdir(parents=True)
    RunRecord(path).update(**facts)


def test_a_test_that_failed_is_run_again(range_tests, monkeypatch):
    folder, codes = range_tests.OUT / "sgd-0", [2, 1, 0]
    machine = {"machine": {"processor": "AMD EPYC", "cores": 2}, "device": "CPU", "versions": {"torch": "2.15.0"}}
    facts = {"lr_range": {"found": 0.02}, "precision": "32-true", "code": {"commit": "a" * 40}, **machine}

    def run_command(*arguments):
        assert not any(argument.startswith("debug.") for argument in arguments)
        code = codes.pop(0)
        if code != 2:  # a refused command leaves nothing
            leave_run(folder, len(codes), **({"status": "failed"} if code else {"status": "finished", **facts}))
        return SimpleNamespace(code=code)

    monkeypatch.setattr(range_tests, "run_command", run_command)
    for code in (2, 1):
        with pytest.raises(SystemExit, match=f"exit code {code}; run `python train.py model=vit_nano"):
            range_tests.tested("sgd", 0)
    for _ in range(2):  # the second time, nothing is run
        found = range_tests.tested("sgd", 0)
        assert (found["found"], found["default"], found["commit"]) == (0.02, 0.1, "a" * 40)
    assert not codes


def test_rates_found_by_code_that_was_not_committed_are_refused(range_tests):
    code = {"commit": "a" * 40, "changed": True}
    leave_run(range_tests.OUT / "sgd-0", 0, status="finished", code=code, lr_range={"found": 0.02})
    with pytest.raises(SystemExit, match="not committed"):
        range_tests.commit_of(range_tests.finished(range_tests.OUT / "sgd-0")[0])


def test_the_table_names_the_largest_factor_and_every_commit(range_tests):
    runs = [
        {"optimizer": optimizer, "seed": seed, "found": 1e-3, "default": 1e-3, "device": "AMD EPYC, 2 cores"}
        | {"precision": "32-true", "commit": "a" * 40}
        for optimizer, seeds in range_tests.OPTIMIZERS.items()
        for seed in seeds
    ]
    runs[-1] |= {"found": 5e-5, "commit": "b" * 40}
    *_, factor, where = range_tests.table(runs)
    assert factor == "Found rate and default differ by a factor of at most 20.0."
    assert where.endswith("32-true on AMD EPYC, 2 cores, at commits aaaaaaa and bbbbbbb.")
