"""What benchmarks/time_to_accuracy.py makes of a run's record."""

import sys

import pytest
from running import ROOT


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "running")  # the tests' own has the name of one there
    import time_to_accuracy

    yield time_to_accuracy
    for name in ("time_to_accuracy", "running"):
        del sys.modules[name]


HISTORY = [
    {"step": 5, "seconds": 4.0, "train/loss": 2.0},
    {"step": 10, "seconds": 9.0, "val/acc": 0.85},
    {"step": 20, "seconds": 19.0, "val/acc": 0.92},
    {"step": 30, "seconds": 29.0, "val/acc": 0.91},
]


def test_time_counts_from_the_commands_start_in_every_session(benchmark):
    starts = [{"step": 0, "seconds": 7.0, "compiling": 1.0}, {"step": 20, "seconds": 5.0, "compiling": 0.0}]
    points = benchmark.curve(starts, HISTORY)
    assert points == [(16.0, 0.85), (26.0, 0.92), (41.0, 0.91)]
    assert [benchmark.reached(points, accuracy) for accuracy in (0.8, 0.9, 0.92, 0.93)] == [16.0, 26.0, 26.0, None]


def test_a_row_says_how_many_seeds_got_there(benchmark):
    one = {
        "curves": [[(10.0, 0.85), (20.0, 0.91)], [(12.0, 0.81), (24.0, 0.89)]],
        "seconds": [30.0, 32.0],
        "start_up": [[7.0], [5.0, 4.0]],
        "compiling": [0.0, 0.0],
        "mean": 0.9,
        "half_interval": 0.01,
        "device": "GPU",
        "precision": "bf16-mixed",
        "torch": "2",
    }
    cells = benchmark.row("cifar10/cpu", one, 11).strip("| ").split(" | ")
    assert cells[1:4] == ["11.0 ± 12.7 s", "20.0 s (1 of 2)", "not reached"]
    assert cells[6:] == [
        "31.0 ± 12.7 s",
        "8.0 ± 12.7 s",
        "0.0 ± 0.0 s",
        "0.9000 ± 0.0100 (2 seeds)",
        "GPU, bf16-mixed, torch 2",
    ]
