"""Published tables of accuracy follow from committed values of single runs: written again, no page changes."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from helpers.running import ROOT

from vitrine.compare.confidence_interval import ConfidenceInterval
from vitrine.compare.difference import difference
from vitrine.compare.simultaneous import Family
from vitrine.compare.table_formats import markdown

STUDIES = ROOT / "benchmarks" / "studies"
DOCS = ROOT / "docs"
TRAINED = ("first_runs", "time_to_accuracy", "recipes", "defaults", "positions", "finetuning", "reproductions")
TRAINED += ("range_tests", "things_to_try", "coverage", "first_decision", "peers")
COMMIT = re.compile(r'"([0-9a-f]{40})"|\b(?:at|by) commits? ([0-9a-f]{7}(?:(?:, | and )[0-9a-f]{7})*)', re.IGNORECASE)


def known(name):
    return json.loads((STUDIES / f"{name}.json").read_text())


@pytest.mark.parametrize("name", ["positions", "recipes", "defaults", "time_to_accuracy"])
def test_a_page_is_what_its_study_writes_from_the_values_of_runs(study, name):
    assert study(name).page(known(name)) == (DOCS / f"{name}.md").read_text()


def test_intervals_over_folds_are_widened_for_shared_training_images(study):
    """Nadeau and Bengio's variance is (1/5 + 1/4) s^2, that of independent trainings 1/5 s^2."""
    runs = known("defaults")["shorter"]
    losses = np.reshape([run["val/loss"] for run in runs[:10]], (2, 5))
    above = ConfidenceInterval.of(losses[1] - losses[0], 1 / 4)
    assert study("defaults").shorter_table(runs[:10])[1].endswith(f" | {above} |")
    float32 = [run | {"precision": "32-true"} for run in runs[5:10]]  # not beside its defaults
    assert study("defaults").shorter_table([*runs[:5], *float32])[1].endswith(" |  |  |")
    assert above.half_width == pytest.approx(1.5 * ConfidenceInterval.of(losses[1] - losses[0]).half_width)


@pytest.mark.parametrize("name", ["growth", "variants"])
def test_a_page_is_what_its_benchmark_writes(timing, name):
    benchmark = timing(name)
    assert benchmark.page(json.loads(benchmark.JSON.read_text())) == benchmark.PAGE.read_text()


def test_a_variant_that_one_setting_lacks_is_shown_as_not_measured(timing):
    variants = timing("variants")
    results = json.loads(variants.JSON.read_text())
    first, *others = results.values()
    for result in results.values():
        result["against plain"].pop("norm=rmsnorm")
    assert "`norm=rmsnorm`" not in variants.page(results).partition("## Against `")[2]
    first["against plain"]["norm=rmsnorm"] = [1.1, 1.0, 1.2]
    row = f"| `norm=rmsnorm` | 1.10 [1.00, 1.20] |{' not measured |' * len(others)}\n"
    assert row in variants.page(results)


def test_readmes_table_is_what_its_study_writes(study, tmp_path, monkeypatch):
    copy = tmp_path / "README.md"
    copy.write_text((ROOT / "README.md").read_text())
    script = study("first_runs")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    script.write_table(known("first_runs"))
    assert copy.read_text() == (ROOT / "README.md").read_text()


def test_the_recipe_of_digits_is_more_accurate_and_faster_as_the_pages_say():
    quick, defaults = known("defaults")["recipe"][:2]
    assert len(quick["seeds"]) == 5
    above = ConfidenceInterval.of(100 * np.subtract(quick["test/acc"], defaults["test/acc"]))
    assert f"{np.divide(quick['seconds'], defaults['seconds']).mean():.1f}" == "0.6"
    for page in ("README.md", "docs/first_steps.md", "conf/experiment/digits/quick.yaml"):
        said = " ".join((ROOT / page).read_text().split())
        assert re.search(r"in 0\.6 of the defaults' time|takes 0\.6 of the time", said)
        assert f"{above.mean:.1f} ± {above.half_width:.1f} points more accurate over" in said
    seconds = f"{min(quick['seconds']):.0f} to {max(quick['seconds']):.0f} s in the table's setting"
    assert seconds in (ROOT / "README.md").read_text()


def test_a_recipe_that_was_not_measured_claims_no_result():
    for path in (ROOT / "conf" / "experiment").rglob("*.yaml"):
        title, _, rest = path.read_text().removeprefix("# @package _global_\n").partition("#\n")
        if "# Measured: not yet." in rest:
            assert not re.search("best|most|fastest", title), path


def test_the_page_of_peers_is_what_its_study_writes(study, tmp_path, monkeypatch):
    """And gives the intervals that today's rule finds in the accuracies."""
    script, copy = study("peers"), tmp_path / "peers.md"
    copy.write_text((DOCS / "peers.md").read_text())
    monkeypatch.setattr(script, "PAGE", copy)
    script.write_page(known("peers"))
    assert copy.read_text() == (DOCS / "peers.md").read_text()
    accuracies: dict[tuple[float, float], dict[float, float]] = {}
    for run in known("peers")["vitrine"]["runs"]:
        accuracies.setdefault((run["lr"], run["batch"]), {})[run["seed"]] = 100 * run["acc"]
    for configuration in ((0.003, 64), (0.001, 128)):
        found = difference(accuracies[configuration], accuracies[0.001, 64], Family(3))
        assert f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]" in copy.read_text()
        assert f"{found.corrected:.3f}" == "0.004"


def test_the_table_of_finetuning_is_what_its_study_writes(study, tmp_path):
    script, copy = study("finetuning"), tmp_path / "finetuning.md"
    copy.write_text((DOCS / "finetuning.md").read_text())
    script.write_between(copy, "study", script.table(known("finetuning")))
    assert copy.read_text() == (DOCS / "finetuning.md").read_text()


def test_the_page_of_reproductions_is_written_from_its_record(study, tmp_path, monkeypatch):
    page = study("reproductions_page")
    monkeypatch.setattr(page, "DOCS", tmp_path)
    monkeypatch.setattr(page, "FIGURES", tmp_path / "images" / "reproductions")
    shutil.copytree(DOCS / "images" / "reproductions", page.FIGURES)  # drawn from runs, which are not kept
    monkeypatch.setattr(page, "JSON", tmp_path / "reproductions.json")
    page.JSON.write_text((STUDIES / "reproductions.json").read_text())
    (tmp_path / "reproductions.md").write_text((DOCS / "reproductions.md").read_text())
    monkeypatch.setattr(page, "write_head", lambda *arguments: None)
    page.write_page(study("tutorials").TUTORIALS, tmp_path / "no runs")
    assert (tmp_path / "reproductions.md").read_text() == (DOCS / "reproductions.md").read_text()


def test_every_published_mean_has_its_runs():
    """A seed and a value for each run, and how it was computed, or the commit of tables whose runs were not kept."""
    measured = [*known("first_runs")["runs"].values(), *known("time_to_accuracy").values()]
    measured += [variant for tutorial in known("reproductions").values() for variant in tutorial.values()]
    for result in measured:
        assert len(result["seeds"]) == len(result["test/acc"]) == len(set(result["seeds"]))
        assert result["device"]
        assert result.get("commit") or result["commits"][0]
    assert known("finetuning")["commits"]
    for method in known("finetuning")["methods"].values():
        assert len(method["seeds"]) == len(method["test/balanced_acc"])
        assert method["device"]
        assert method["precision"]
    for question in known("recipes").values():
        assert question["commit"]
        assert all(run["val/acc"] > 0 for seeds in question["rows"].values() for run in seeds.values())
    for result in known("positions").values():
        runs = {(run["position"], run["seed"]): run for run in result["runs"]}
        assert len(runs) == len(result["runs"]) == 50
        assert all({"seed", "commit", "precision", "machine", "device"} <= set(run) for run in runs.values())
    assert known("defaults")["commit"]
    assert known("first_runs")["start_up"]["commit"]
    assert all(known("first_runs")["start_up"]["seconds"].values())


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.split()


@pytest.fixture
def history():
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a clone of the repository")
    if git("rev-parse", "--is-shallow-repository") != ["false"]:
        pytest.skip("the clone is shallow: it lacks the history")
    return {commit[:7] for commit in git("rev-list", "HEAD")}


def test_trainings_with_initial_weights_of_another_order_are_marked(study, history):
    """Published ones are of commits that lack the one that changed the order."""
    today = {commit[:7] for commit in git("rev-list", "--ancestry-path", "8c59cc28^..HEAD")}
    text = "".join((STUDIES / f"{name}.json").read_text() for name in TRAINED)
    commits = {commit[:7] for commit in re.findall(r'"([0-9a-f]{7,40})"', text)} & history
    started = known("first_runs")["start_up"]["commit"][:7]  # trained nothing
    assert commits - today - {started} == set(study("seeds").OTHER_WEIGHTS_COMMITS)


def test_every_commit_that_measured_something_is_in_the_history(history):
    """Those of other projects are not given as ``at commit`` or ``by commit``."""
    paths = [*(ROOT / "benchmarks").rglob("*.json"), *DOCS.rglob("*.md")]
    named = {
        commit[:7]: path.name
        for path in paths
        for groups in COMMIT.findall(path.read_text())
        for commit in re.findall(r"[0-9a-f]{7,}", " ".join(groups))
    }
    assert len(named) > 40
    assert {commit: name for commit, name in named.items() if commit not in history} == {}


def test_positions_are_compared_from_the_values_of_their_runs(study):
    """Made of two schemes, as a page is written once the sweep has run again."""
    runs = [
        {"position": position, "seed": seed, "commit": commit, "precision": "32-true", "device": "CPU, 1 thread"}
        | {"compiled": "nothing", "images": {"test": 10_000}, "parameters": 200_000, "flops_per_image": 21_000_000}
        | {"test/acc": acc + 0.001 * (seed % 2)}
        for position, acc, commit in (("learned", 0.95, "a" * 40), ("rope", 0.97, "b" * 40))
        for seed in range(3)
    ]
    runs[3]["test/acc"] += 0.001
    positions = study("positions")
    text = markdown(positions.compared("mnist", runs))
    assert "- rope is better than learned by 2.03 points (" in text
    assert "on these 10,000 images" in text
    assert "- caveat: runs used different versions of the code: aaaaaaa (3 runs) and bbbbbbb (3 runs)" in text
    assert positions.missing(runs)["rope"] == [3, 4]
    assert positions.missing(runs)["none"] == [0, 1, 2, 3, 4]
