"""benchmarks/studies/time_to_accuracy.py and seeds.py: times, tables and limits from run folders."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture
def benchmark(study):
    return study("time_to_accuracy")


@pytest.fixture
def seeds(study):
    return study("seeds")


HISTORY = [
    {"step": 5, "seconds": 4.0, "train/loss": 2.0},
    {"step": 10, "seconds": 9.0, "val/acc": 0.85},
    {"step": 20, "seconds": 19.0, "val/acc": 0.92},
    {"step": 30, "seconds": 29.0, "val/acc": 0.91},
]


def test_time_counts_from_the_start_of_the_command_in_every_session(benchmark):
    starts = [{"step": 0, "seconds": 7.0, "compiling": 1.0}, {"step": 20, "seconds": 5.0, "compiling": 0.0}]
    points = benchmark.curve(starts, HISTORY)
    assert points == [(16.0, 0.85), (26.0, 0.92), (41.0, 0.91)]
    assert [benchmark.first_reached(points, accuracy) for accuracy in (0.8, 0.9, 0.92, 0.93)] == [
        16.0,
        26.0,
        26.0,
        None,
    ]


def test_a_row_shows_how_many_seeds_reached_a_threshold(benchmark):
    result = {
        "curves": [[(10.0, 0.85), (20.0, 0.91)], [(12.0, 0.81), (24.0, 0.89)]],
        "seconds": [30.0, 32.0],
        "start_up": [[7.0], [5.0, 4.0]],
        "compiling": [0.0, 0.0],
        "mean": 0.9,
        "half_interval": 0.01,
        "device": "GPU",
        "precision": "bf16-mixed",
        "torch": "2",
        "commits": ["0123456789abcdef", None],
    }
    cells = benchmark.table_row("cifar10/cpu", result, 11).strip("| ").split(" | ")
    assert cells[1:4] == ["11.0 ± 12.7 s", "20.0 s (1 of 2)", "not reached"]
    assert cells[6:] == [
        "31.0 ± 12.7 s",
        "8.0 ± 12.7 s",
        "0.0 s",
        "0.9000 ± 0.0100 (2 seeds)",
        "GPU, bf16-mixed, torch 2, commit 0123456; 1 of 2 runs did not record their commit",
    ]


def test_the_page_lists_what_was_measured_and_what_was_not(benchmark):
    result = {
        "command": "python train.py experiment=cifar10/cpu",
        "mean": 0.8,
        "half_interval": 0.01,
        "seconds": [30.0, 32.4],
        "memory": 1_810_000_000,
        "machine": "a",
        "device": "CPU, 2 threads",
        "torch": "2",
        "commits": ["0123456789abcdef", None],
    }
    *_, row, _, machine, missing = benchmark.cost_lines({"cifar10/cpu": result})
    assert row == "| `python train.py experiment=cifar10/cpu` | 0.8000 ± 0.0100 | 30 to 32 s | 1.81 GB |"
    assert machine.endswith("on a, CPU, 2 threads, torch 2.")
    assert missing == "Not yet measured: `cifar10/fast`, `cifar10/best`, `cifar10/stem`."
    assert not any("Not yet" in line for line in benchmark.cost_lines(dict.fromkeys(benchmark.RECIPES, result)))
    earlier = benchmark.cost_lines({"cifar10/cpu": result | {"commits": ["2dd94c201c929dba", None]}})
    assert earlier[2] == "| `python train.py experiment=cifar10/cpu` | 0.8000 ± 0.0100 † | 30 to 32 s | 1.81 GB |"
    assert earlier[-1] == "† Trained when initial weights were drawn in another order: today's values differ."


def test_a_time_limit_holds_for_all_seeds_together(seeds, monkeypatch, capsys):
    overrides = ["experiment=cifar10/cpu", "trainer.max_time=10m"]
    monkeypatch.setattr(seeds, "STARTED", time.time() - 200)
    assert seeds.with_remaining_time(overrides) == ["experiment=cifar10/cpu", "trainer.max_time=400s"]
    assert seeds.with_remaining_time(overrides[:1]) == overrides[:1]
    monkeypatch.setattr(seeds, "STARTED", time.time() - 550)
    with pytest.raises(SystemExit, match="75"):
        seeds.with_remaining_time(overrides)
    assert "rerun the same command to continue" in capsys.readouterr().out


def test_seeds_trained_in_different_ways_are_not_averaged(seeds, monkeypatch):
    monkeypatch.setattr(seeds, "ROOT", Path("/"))
    config = {"optimizer": {"lr": 1e-3}, "trainer": {"max_epochs": 3, "max_time": None}, "paths": {}}
    configs = {Path(f"/runs/{seed}"): {**config, "seed": seed} for seed in range(3)}
    monkeypatch.setattr(seeds, "RunRecord", lambda folder: SimpleNamespace(config=configs[folder]))
    result = {
        "test/acc": 0.9,
        "seconds": 10.0,
        "memory": 1,
        "precision": "32-true",
        "device": "CPU, 2 threads",
        "code": {},
        "machine": {"processor": "a", "cores": 2},
        "versions": {"torch": "2"},
    }
    runs = [{**result, "folder": folder} for folder in configs]
    configs[Path("/runs/1")]["trainer"] = {"max_epochs": 3, "max_time": "10m"}
    assert seeds.summarize("model=vit_tiny", runs)["mean"] == 0.9
    configs[Path("/runs/2")]["trainer"] = {"max_epochs": 4, "max_time": None}
    with pytest.raises(SystemExit, match=r"different ways: runs/1, runs/2; remove"):
        seeds.summarize("model=vit_tiny", runs)
    with pytest.raises(SystemExit, match=r"different ways: runs/0, runs/1"):
        seeds.summarize("model=vit_tiny", [runs[0], {**runs[1], "device": "CPU, 1 thread"}])


@pytest.mark.parametrize(("at_once", "group"), [(1, {0}), (2, {0, 1})])
def test_no_seed_is_started_after_one_that_fails(seeds, monkeypatch, tmp_path, at_once, group):
    started = set()

    def fails(*arguments):
        started.update(int(argument.removeprefix("seed=")) for argument in arguments if argument.startswith("seed="))
        return seeds.CommandCost(1.0, 1, 3)

    monkeypatch.setattr(seeds, "ROOT", tmp_path)
    monkeypatch.setattr(seeds, "run_command", fails)
    with pytest.raises(SystemExit, match="exit code 3"):
        seeds.train_seeds(tmp_path / "runs", ["model=vit_nano"], at_once)
    assert {0} <= started <= group
