"""benchmarks/faults.py: quick faults have the outcome that the page shows, and each fault names a test that exists."""

import ast
import importlib
import sys

import pytest
from helpers.running import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
FAULTS = importlib.import_module("faults").FAULTS
sys.path.remove(str(ROOT / "benchmarks"))
LEVELS = {"foreign-runs": pytest.mark.quick, "read-only": pytest.mark.slow, "clock": pytest.mark.slow}


@pytest.mark.whole
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=LEVELS[name]) if name in LEVELS else name
        for name, fault in FAULTS.items()
        if fault.quick
    ],
)
def test_a_quick_fault_has_the_expected_outcome(name, tmp_path):
    made = importlib.import_module("faults").make(FAULTS[name], tmp_path)
    if made["outcome"] == "not made":
        pytest.skip(made["happened"])
    assert made["outcome"] == "as expected", made["happened"]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_the_test_that_a_fault_names_exists(fault):
    path, _, name = fault.test.partition("::")
    module = ast.parse((ROOT / path).read_text())
    assert name in [found.name for found in module.body if isinstance(found, ast.FunctionDef)]


def test_what_happened_names_no_run_and_no_process():
    without_names = importlib.import_module("faults").without_names
    line = "cannot write out/runs/2026-11-23_00-12-58_digits-s0_fa11/checkpoints/last.ckpt; see runs/2026-11-23_x"
    assert without_names(line) == "cannot write RUN/checkpoints/last.ckpt; see RUN"
    assert without_names("as process 26124 on vm, since then") == "as process PID on HOST, since then"
