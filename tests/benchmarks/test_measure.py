"""benchmarks/timing: that what a page claims follows from the single rounds that stand beside it."""

import csv
import json
import re
from collections import defaultdict
from itertools import permutations

import pytest

RATIO = re.compile(r"[\d.e+]+x \[[\d.e+]+, [\d.e+]+\]")
# Measured before rounds were kept, so that nothing shows whether their ratios are right. The list only gets shorter.
WITHOUT_ROUNDS = {"predict"}


@pytest.fixture
def measure(timing):
    return timing("measure")


def read(path):
    """Case -> alternative -> values."""
    rounds = defaultdict(lambda: defaultdict(list))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            values = rounds[row["case"]][row["alternative"]]
            assert int(row["round"]) == len(values)
            values.append(float(row["value"]))
    return rounds


def test_a_benchmark_leaves_its_rounds_beside_its_table(measure, tmp_path, monkeypatch):
    for name in ("ROOT", "JSON", "ROUNDS", "PAGE"):
        monkeypatch.setattr(measure, name, tmp_path / name)
    monkeypatch.setattr(measure, "ROUNDS", tmp_path / "ROOT" / "rounds")
    (tmp_path / "ROOT").mkdir()
    rounds = {'a step, "small"': {"ours": [0.5, 0.25], "theirs": [1 / 3, 1e-6]}}
    arguments = {"title": "Steps", "text": "Text.", "columns": ["a"], "rows": [["1"]], "claims": {}}
    measure.publish("steps", **arguments, rounds=rounds)
    assert read(tmp_path / "ROOT" / "rounds" / "steps.csv") == {
        'a step, "small"': {"ours": [0.5, 0.25], "theirs": [0.3333333, 1e-6]}
    }
    assert "Each round: `rounds/steps.csv`." in (tmp_path / "PAGE").read_text()


def test_a_page_says_where_uncommitted_code_was_measured(measure):
    commit = {"commit": "1f2e3d4" + 33 * "0"}
    assert measure.at_commit(commit | {"changed": False}) == measure.at_commit(commit) == ", at commit 1f2e3d4"
    assert measure.at_commit(commit | {"changed": True}) == ", at commit 1f2e3d4 with uncommitted changes"
    assert measure.at_commit({"commit": None, "changed": False}) == ""


def test_each_published_ratio_follows_from_the_published_rounds(measure):
    without = set()
    for name, result in json.loads(measure.JSON.read_text()).items():
        texts = [str(cell) for row in result["rows"] for cell in row] + list(result["claims"].values())
        if not (claimed := {found for text in texts for found in RATIO.findall(text)}):
            continue
        if not (path := measure.ROUNDS / f"{name}.csv").exists():
            without.add(name)
            continue
        cases = read(path).values()
        pairs = [pair for case in cases for pair in permutations(case.values(), 2) if len({*map(len, pair)}) == 1]
        known = {measure.format_ratio(measure.ratio(*pair)) for pair in pairs if len(pair[0]) >= 6}
        assert claimed <= known, name
    assert without == WITHOUT_ROUNDS


def test_speeds_next_to_timm_say_which_of_both_ran_as_cuda_graphs(timing, measure):
    row = ["`vit_tiny`", "32x32", 1024, "0.9x [0.8, 1]", "1.9x [1.6, 2]", "130", "13%"]
    claims = timing("gpu").step_claims(("vit_tiny", 32, 4, 1024), row)
    name = "`vit_tiny` step on a GPU, 32x32, against timm's compiled, ours as CUDA graphs, timm's without"
    assert claims[name] == "1.9x [1.6, 2]"
    assert claims.keys() <= json.loads(measure.JSON.read_text())["gpu_step"]["claims"].keys()
