"""benchmarks/studies/recipes.py: rows and differences from the run folders of a question."""

import json

import pytest
import yaml


@pytest.fixture
def recipes(study):
    return study("recipes")


TRAINED = """epoch,step,seconds,train/acc,train/loss,val/acc
0,5,1.0,0.1,3.0,
0,9,1.0,,,0.3
1,14,2.0,0.5,1.5,
1,18,3.0,0.6,1.3,
1,18,3.0,,,0.6
"""


def make_run(folder, varies, seed, accuracy):
    folder.mkdir(parents=True)
    facts = {
        "status": "finished",
        "varies": varies,
        "code": {"commit": "0123456789"},
        "device": "CPU, 2 threads",
        "precision": "32-true",
        "machine": {"processor": "EPYC", "cores": 2},
        "versions": {"torch": "2.15.0"},
    }
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "metrics.json").write_text(json.dumps({"val/acc": accuracy, "train_seconds": 60.0}))
    (folder / "metrics.csv").write_text(TRAINED)
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": seed}))


@pytest.mark.parametrize("first", ["seed={seed},{choice}", "{choice},seed={seed}"], ids=["seed-first", "seed-last"])
def test_seeds_of_a_choice_share_a_row_and_differences_are_paired_by_seed(recipes, tmp_path, first):
    reached = {"pool=cls": [0.60, 0.70], "callbacks=[default,ema]": [0.61, 0.72]}
    for choice, accuracies in reached.items():
        for seed, accuracy in enumerate(accuracies):
            varies = first.format(seed=seed, choice=choice)
            make_run(tmp_path / "sweeps" / "one" / varies, varies, seed, accuracy)
    result = recipes.collect(tmp_path)
    assert {choice: sorted(seeds) for choice, seeds in result["rows"].items()} == {
        choice: ["0", "1"] for choice in reached
    }
    assert (result["on"], result["commit"]) == ("EPYC, 2 cores, torch 2.15.0", "0123456789")
    lines = recipes.section(result | {"command": "-m seed=0,1"}).splitlines()
    best, other = (line.strip("| ").split(" | ") for line in lines if line.startswith("| `"))
    assert best[0] == "`callbacks=[default,ema]`"
    assert best[1].startswith("0.6650 ± ")
    assert best[1].endswith(" (2)")
    assert other[2].startswith("0.0150 ± ")


def test_a_seed_that_does_not_vary_is_left_out_of_the_choice(recipes, tmp_path):
    make_run(tmp_path / "sweeps" / "one" / "trial", "pool=cls", 0, 0.6)
    rows = recipes.collect(tmp_path)["rows"]
    assert list(rows) == ["pool=cls"]
    assert [rows["pool=cls"]["0"][key] for key in ("train/acc", "train/loss")] == [0.55, 1.4]  # of the last epoch


def test_rows_name_device_and_precision_and_only_those_of_equal_seeds_are_paired(recipes):
    bfloat16 = {"seconds": 60.0, "commit": "2dd94c201c9", "device": "CPU, 2 threads", "precision": "bf16-mixed"}
    float32 = bfloat16 | {"commit": "c1ba8a353a3", "precision": "32-true"}
    rows = {
        "three": {str(seed): bfloat16 | {"val/acc": acc} for seed, acc in enumerate((0.85, 0.847, 0.843))},
        "one": {"0": float32 | {"val/acc": 0.8398}},
    }
    text = recipes.section({"command": "-m", "on": "EPYC", "commit": "2dd94c201c9", "rows": rows})
    assert "| `three` | 0.8467 ± 0.0087 (3) † |  | 60 | CPU, 2 threads, bf16-mixed |" in text
    assert "| `one` | 0.8398 (1) | 0.0069 | 60 | CPU, 2 threads, 32-true |" in text
    assert text.endswith("† Trained when initial weights were drawn in another order: today's values differ.\n")
