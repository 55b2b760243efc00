"""What benchmarks/recipes.py makes of the runs of a question."""

import json
import sys

import pytest
import yaml
from helpers.running import ROOT


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "running")  # the tests' own has the name of one there
    import recipes

    yield recipes
    for name in ("recipes", "timing", "running"):
        del sys.modules[name]


def make_run(folder, varies, seed, accuracy):
    folder.mkdir(parents=True)
    facts = {
        "status": "finished",
        "varies": varies,
        "code": {"commit": "0123456789"},
        "device": "CPU, 2 threads",
        "machine": {"processor": "EPYC", "cores": 2},
        "versions": {"torch": "2.15.0"},
    }
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "metrics.json").write_text(json.dumps({"val/acc": accuracy, "train_seconds": 60.0}))
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": seed}))


@pytest.mark.parametrize("first", ["seed={seed},{word}", "{word},seed={seed}"], ids=["seed-first", "seed-last"])
def test_seeds_of_one_answer_are_one_row_whose_differences_are_paired(benchmark, tmp_path, first):
    reached = {"pool=cls": [0.60, 0.70], "callbacks=[default,ema]": [0.61, 0.72]}
    for word, accuracies in reached.items():
        for seed, accuracy in enumerate(accuracies):
            varies = first.format(seed=seed, word=word)
            make_run(tmp_path / "sweeps" / "one" / varies, varies, seed, accuracy)
    found = benchmark.collect(tmp_path)
    assert {word: sorted(seeds) for word, seeds in found["rows"].items()} == {word: ["0", "1"] for word in reached}
    assert (found["on"], found["commit"]) == ("EPYC, 2 cores, torch 2.15.0", "0123456789")
    lines = benchmark.section(found | {"command": "-m seed=0,1"}).splitlines()
    best, other = (line.strip("| ").split(" | ") for line in lines if line.startswith("| `"))
    assert best[0] == "`callbacks=[default,ema]`"
    assert best[1].startswith("0.6650 ± ")
    assert best[1].endswith(" (2)")
    assert other[2].startswith("0.0150 ± ")


def test_one_seed_that_does_not_vary_is_no_part_of_a_row(benchmark, tmp_path):
    make_run(tmp_path / "sweeps" / "one" / "trial", "pool=cls", 0, 0.6)
    assert list(benchmark.collect(tmp_path)["rows"]) == ["pool=cls"]
