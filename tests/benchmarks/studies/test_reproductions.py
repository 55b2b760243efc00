"""benchmarks/studies/reproductions.py: real, shortened runs of a tutorial, and the page made from their folders."""

import json
import shutil
import sys
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.running import ROOT

from vitrine.runs import RunRecord

SHORT = ["debug.limit_batches=2", "accelerator=cpu", "trainer.compile=nothing"]


@pytest.fixture
def page(study):
    return study("reproductions_page")


@pytest.fixture
def runs(study):
    return study("reproductions_runs")


@pytest.fixture
def reproduce(study, page, monkeypatch, tmp_path, shared_data):
    """Runs the study on MNIST; everything it writes lands in an empty folder."""
    reproductions = study("reproductions")
    monkeypatch.setattr(reproductions, "OUT", tmp_path / "out")
    monkeypatch.setattr(page, "DOCS", tmp_path / "docs")
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs/reproductions.md", tmp_path / "docs")
    monkeypatch.setattr(page, "JSON", tmp_path / "reproductions.json")
    monkeypatch.setattr(page, "FIGURES", tmp_path / "docs" / "images")
    monkeypatch.setattr(page, "EXPERIMENTS", shutil.copytree(page.EXPERIMENTS, tmp_path / "experiments"))

    def run(*options, tutorial="pulfer_mnist", epochs=5):
        short = [*SHORT, f"trainer.max_epochs={epochs}"]
        data = ["--data-root", str(shared_data), "--cache-dir", str(tmp_path / "cache")]
        monkeypatch.setattr(sys, "argv", ["reproduce.py", tutorial, *data, *options, "--overrides", *short])
        reproductions.main()

    return run


@pytest.mark.slow
def test_finished_runs_stay_interrupted_ones_are_resumed_and_the_page_shows_both(reproduce, tmp_path, capsys):
    def runs(variant, seed):
        return list((tmp_path / "out/pulfer_mnist" / variant / f"seed-{seed}/runs").iterdir())

    reproduce("--seeds", "1")
    (first,) = runs("faithful", 0)
    (second,) = runs("corrected", 0)
    done = (first / "run.json").stat().st_mtime_ns
    RunRecord(second).end("interrupted")
    (second / "metrics.json").unlink()
    capsys.readouterr()

    reproduce("--seeds", "1")
    printed = capsys.readouterr().out
    assert "pulfer_mnist/corrected/seed-0 (resumed)" in printed
    assert "faithful/seed-0" not in printed
    assert runs("faithful", 0) == [first]
    assert (first / "run.json").stat().st_mtime_ns == done
    assert runs("corrected", 0) == [second]
    assert RunRecord(second).status == "finished"

    reproduce("--seeds", "1", epochs=6)
    printed = capsys.readouterr().out
    assert "pulfer_mnist/faithful/seed-0 finished after 5 of 6 epochs; delete it to train all of them" in printed
    assert runs("faithful", 0) == [first]

    facts = json.loads((tmp_path / "reproductions.json").read_text())["pulfer_mnist"]
    assert {name: variant["seeds"] for name, variant in facts.items()} == {"faithful": [0], "corrected": [0]}
    assert facts["faithful"]["parameters"] == 1642
    assert facts["faithful"]["test/acc"] == [RunRecord(first).metrics["test/acc"]]
    heads = {path.stem: path.read_text() for path in (tmp_path / "experiments/pulfer_mnist").iterdir()}
    for variant, head in heads.items():
        assert f"# Measured: test accuracy {facts[variant]['test/acc'][0]:.4f} (1 seed); " in head
    assert "# Measured: not yet.\n" in (tmp_path / "experiments/intuitive_cifar10/faithful.yaml").read_text()
    text = (tmp_path / "docs/reproductions.md").read_text()
    assert text.count("(1 seed)") == 2
    assert text.count("| not yet measured |  | not yet measured |") == 3
    assert text.count("| nothing to reach |  | nothing to reach |") == 1
    assert text.startswith("# Five tutorials"), "what people wrote stays"
    assert "## Things to try" in text
    for picture in ("losses", "curves", "confusion", "attention", "positions"):
        assert (tmp_path / f"docs/images/pulfer_mnist_{picture}.png").stat().st_size > 1000, picture


@pytest.mark.slow
def test_recorded_results_stay_until_as_many_runs_have_been_trained_for_as_many_epochs(reproduce, study, tmp_path):
    result = {"test/acc": [0.7, 0.8], "test/loss": [1.7, 1.6], "best/acc": [], "parameters": 1642, "epochs": 5}
    result |= {"seeds": [0, 1], "training_loss": [2.0, 1.9, 1.8, 1.7, 1.6], "machine": "a machine", "device": "CPU"}
    recorded = {"faithful": result | {"commit": "abc"}, "corrected": result | {"commit": "abc"}}
    whole = {name: {} for name in study("tutorials").TUTORIALS}
    whole |= {"pulfer_mnist": recorded, "comsci_mnist": {"faithful": result | {"epochs": 15, "commit": "def"}}}
    known = tmp_path / "reproductions.json"
    known.write_text(json.dumps(whole))
    reproduce("--seeds", "1")
    assert json.loads(known.read_text()) == whole
    head = (tmp_path / "experiments/pulfer_mnist/faithful.yaml").read_text()
    assert "# Measured: test accuracy 0.7500 ± 0.6353 (2 seeds); a machine, CPU." in head

    less = json.loads(json.dumps(whole))
    less["pulfer_mnist"]["faithful"] |= {"seeds": [0], "epochs": 1}
    known.write_text(json.dumps(less))
    reproduce("--table")
    found = json.loads(known.read_text())
    (run,) = (tmp_path / "out/pulfer_mnist/faithful/seed-0/runs").iterdir()
    variants = found["pulfer_mnist"]
    assert variants["faithful"]["test/acc"] == [RunRecord(run).metrics["test/acc"]]
    assert RunRecord(run).facts["machine"]["processor"] in variants["faithful"]["machine"]
    assert variants["corrected"] == whole["pulfer_mnist"]["corrected"], "there is no run of it here"
    (row,) = [
        line for line in (tmp_path / "docs/reproductions.md").read_text().splitlines() if line.startswith("| T2:")
    ]
    assert row.split(" | ")[4] == "not yet measured", "it was trained by another commit"
    assert found["comsci_mnist"] == whole["comsci_mnist"]


def recorded(seeds, accuracies, losses, **changed):
    found = {"seeds": seeds, "test/acc": accuracies, "test/loss": accuracies, "best/acc": [], "training_loss": losses}
    return found | {"commit": "abc", "epochs": 2, "machine": "a machine", "device": "CPU"} | changed


def trained(runs, seed, commit="abc", epochs=2):
    facts = {"code": {"commit": commit}}
    run = SimpleNamespace(record=SimpleNamespace(facts=facts), config=SimpleNamespace(seed=seed))
    return runs.Trained(run, epochs, {}, [])


def test_runs_of_other_seeds_join_recorded_ones_of_the_same_commit(runs):
    before = recorded([0, 2], [0.7, 0.8], [2.0, 1.0])
    later = recorded([1], [0.9], [0.5, 0.4], machine="another", curves=[[0.8, 0.9]])
    found = runs.joined(before, later)
    assert (found["seeds"], found["test/acc"], found["best/acc"]) == ([0, 1, 2], [0.7, 0.9, 0.8], [])
    assert found["curves"] == [], "only one of them is known"
    assert found["training_loss"] == pytest.approx([1.5, 0.8])
    assert (found["machine"], found["device"]) == ("a machine; another", "CPU")
    whole = runs.joined(before | {"curves": [[0.1, 0.7], [0.2, 0.8]]}, later)
    assert whole["curves"] == [[0.1, 0.7], [0.8, 0.9], [0.2, 0.8]]

    assert runs.joinable([trained(runs, 1), trained(runs, 3)], before)
    for others in (
        [],
        [trained(runs, 2)],
        [trained(runs, 1, commit="def")],
        [trained(runs, 1, epochs=3)],
    ):
        assert not runs.joinable(others, before)


CODE = {"commit": "abc", "changed": False, "untracked": []}


@pytest.mark.parametrize(
    ("resumed", "kept"),
    [
        ([], True),
        ([{"at": "then", "code": CODE}], True),
        ([{"at": "then"}], True),  # by a version that did not record it
        ([{"at": "then", "code": CODE}, {"at": "later", "code": CODE | {"commit": "def"}}], False),
        ([{"at": "then", "code": CODE | {"changed": True}}], False),
    ],
)
def test_a_run_that_was_resumed_by_other_code_is_left_out(runs, monkeypatch, tmp_path, capsys, resumed, kept):
    rows = [{"step": 4.0, "epoch": 1.0, "train/loss": 2.0}]
    facts = {"code": CODE, "parameters": 1642, "machine": {"processor": "some", "cores": 2}}
    facts |= {"versions": {"torch": "2"}, "device": "CPU", "precision": "32-true", "resumed": resumed}
    record = SimpleNamespace(facts=facts, path=tmp_path / "run", history=lambda: rows)
    run = SimpleNamespace(record=record, config=SimpleNamespace(seed=0))
    one = runs.Trained(run, 1, {"test/acc": 0.7, "test/loss": 1.7}, [])
    monkeypatch.setattr(runs, "longest", lambda folder: [one] if folder.name == "faithful" else [])
    found = runs.collect(SimpleNamespace(quirks=[]), tmp_path, {})
    assert list(found) == (["faithful"] if kept else [])
    printed = capsys.readouterr().out
    assert (f"{record.path} is left out: it was resumed by other code" in printed) is not kept


def under_way(status="running", schedule="constant"):
    tested = [{"epoch": 1.0, "val/acc": 0.3, "test/acc": 0.2, "test/loss": 2.0}]
    tested += [{"epoch": 2.0, "val/acc": 0.5, "test/acc": 0.4, "test/loss": 1.5}, {"epoch": 3.0, "train/loss": 1.0}]
    record = SimpleNamespace(status=status, facts={"epochs": 9}, history=lambda: tested)
    config = SimpleNamespace(seed=0, schedule=SimpleNamespace(name=schedule))
    return SimpleNamespace(record=record, config=config, metrics={"test/acc": 0.9, "test/loss": 0.1})


def test_a_run_under_way_is_a_shorter_one_if_its_learning_rate_is_constant(runs):
    one = runs.Trained.of(under_way())
    assert (one.epochs, one.metrics["test/acc"], one.metrics["test/loss"], one.curve) == (2, 0.4, 1.5, [0.2, 0.4])
    assert runs.Trained.of(under_way(schedule="cosine")) is None
    whole = runs.Trained.of(under_way("finished", "cosine"))
    assert (whole.epochs, whole.metrics["test/acc"], whole.curve) == (9, 0.9, [0.2, 0.4])


def test_runs_under_way_are_measured_only_where_none_has_finished(runs, monkeypatch, tmp_path):
    found = {"0": under_way(), "1": under_way("interrupted")}
    for seed, run in found.items():
        run.config.seed = int(seed)
        (tmp_path / f"seed-{seed}/runs/run").mkdir(parents=True)
        (tmp_path / f"seed-{seed}/runs/run/run.json").touch()
    monkeypatch.setattr(runs, "load_run", lambda path: found[path.parents[1].name.removeprefix("seed-")])
    assert [one.run.config.seed for one in runs.longest(tmp_path)] == [0, 1]
    found["1"] = under_way("finished")
    assert [one.epochs for one in runs.longest(tmp_path)] == [9]


def test_an_unknown_tutorial_is_refused_with_the_known_ones(reproduce, capsys):
    with pytest.raises(SystemExit):
        reproduce(tutorial="pulfer")
    assert "unknown tutorial: pulfer; choose from comsci_mnist, pulfer_mnist" in capsys.readouterr().err


def test_an_unknown_variant_is_refused_with_the_known_ones(reproduce, capsys):
    with pytest.raises(SystemExit):
        reproduce("--variants", "faithful", "a final form")
    assert "unknown variant: a final form; choose from faithful, corrected, 10 classes" in capsys.readouterr().err


def test_a_slice_that_ends_in_time_is_resumed_with_its_limit_and_told_by_the_exit_code(
    study, monkeypatch, tmp_path, capsys
):
    """The training itself is stood in for: it leaves a checkpoint and ends with the code of max_time."""
    study("reproductions_page")
    reproductions, commands = study("reproductions"), []

    def train(command, **_):
        commands.append(command[2:])
        run = tmp_path / "pulfer_mnist/faithful/seed-0/runs/run"
        (run / "checkpoints").mkdir(parents=True, exist_ok=True)
        (run / "checkpoints/last.ckpt").touch()
        (run / "run.json").write_text('{"status": "interrupted"}')
        return 75

    monkeypatch.setattr(reproductions.subprocess, "call", train)
    arguments = ["pulfer_mnist", "--train", "--variants", "faithful", "--seeds", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *arguments, "--overrides", "trainer.max_time=1h"])
    for _ in range(2):
        with pytest.raises(SystemExit) as end:
            reproductions.main()
        assert end.value.code == 75
    assert capsys.readouterr().out.count("pulfer_mnist/faithful/seed-0 is out of time; rerun to resume") == 2
    first, second = commands
    assert first[0] == "experiment=tutorials/pulfer_mnist/faithful"
    assert second == [f"resume={tmp_path}/pulfer_mnist/faithful/seed-0/runs/run", "trainer.max_time=1h"]


def test_an_invalid_override_is_reported_once_before_anything_is_trained(reproduce, capsys, tmp_path):
    with pytest.raises(SystemExit):
        reproduce(epochs="many")
    assert capsys.readouterr().err.count("trainer.max_epochs=many") == 1
    assert not (tmp_path / "out").exists()


QUIRKS = [("a switch", "loss=cross_entropy", "Why."), ("another", "model.final_norm=true", "Because.")]


@pytest.fixture
def reported(study):
    """Part of a tutorial."""
    quirks = [study("tutorials").Quirk(*quirk) for quirk in QUIRKS]
    return SimpleNamespace(epochs=10, quirks=quirks, accuracy=(0.60, 0.61))


def test_fewer_epochs_than_reported_measure_nothing(page, reported):
    result = {"test/acc": [0.5], "seeds": [0], "epochs": 2}
    assert page.accuracy(reported, result) == "not yet measured; 0.5000 (1 seed) after 2 of 10 epochs"
    assert page.accuracy(reported, result | {"epochs": 10}) == "0.5000 (1 seed)"


def test_the_effect_of_a_quirk_is_paired_by_seed_and_holds_for_all_of_them(page, reported):
    variants = {
        "faithful": {"seeds": [0, 1, 2], "test/acc": [0.5, 0.6, 0.7], "commit": "abc", "machine": "A"},
        "a switch": {"seeds": [0, 1, 2], "test/acc": [0.51, 0.62, 0.73], "commit": "abc", "machine": "A"},
        "another": {"seeds": [0, 1, 2], "test/acc": [0.9, 0.9, 0.9], "commit": "def", "machine": "B"},
    }
    table = "\n".join(page.quirk_table(reported, variants))
    # 0.01, 0.02, 0.03: mean 0.02, standard error 0.00577; t(2) at 2.5 % / 2 is 6.205.
    assert "| Why. | a switch: `loss=cross_entropy` | 0.6200 ± 0.2733 | +0.0200 [-0.0158, +0.0558] |" in table
    assert "| Because. | another: `model.final_norm=true` | not yet measured |  |" in table, "by another commit"
    variants["faithful"] = {"seeds": [0, 1, 2, 3], "test/acc": [0.5, 0.6, 0.7, 0.1], "commit": "abc", "machine": "A"}
    more = "\n".join(page.quirk_table(reported, variants))
    assert "| 0.6200 ± 0.2733 | +0.0200 [-0.0158, +0.0558] |" in more, "other seeds of the faithful runs change nothing"
    assert "| as published, seeds 0, 1 and 2 | nothing | 0.6000 ± 0.2484 |  |" in more, "what it is compared with"
    variants["another"] = {"seeds": [0, 1], "test/acc": [0.9, 0.9], "commit": "abc", "machine": "A"}
    assert "| not yet measured: 2 of 3 seeds |  |" in "\n".join(page.quirk_table(reported, variants))
    assert "processors" not in table + more, "all were trained on one"
    variants["a switch"]["machine"] = "A; B"
    where = "these rows were trained on several: *as published* and *another* on A; *a switch* on A and B."
    assert where in "\n".join(page.quirk_table(reported, variants))


def test_the_machines_of_each_commit_are_named_and_those_of_what_is_not_compared_are_not(page):
    def variant(commit, machine):
        return {"commit": commit, "machine": machine, "device": "CPU, 1 thread"}

    results = [
        {"faithful": variant("1234567890", "one; another"), "corrected": variant("abcdefghij", "a third")},
        {"faithful": variant("defdefdefd", "one")},
        {},
    ]
    assert page.machines(results) == (
        "Trained by commit 1234567 on another, CPU, 1 thread; one, CPU, 1 thread. "
        "Trained by commit defdefd on one, CPU, 1 thread."
    )


def test_every_picture_of_the_page_has_a_caption_and_no_blank_line_is_doubled(page):
    lines = (page.DOCS / "reproductions.md").read_text().splitlines()
    pictures = [number for number, line in enumerate(lines) if line.startswith("![")]
    assert len(pictures) >= 14
    assert all(lines[number + 1] == "" and lines[number + 2].startswith("*") for number in pictures)
    curves = [lines[number + 2] for number in pictures if "_curves.png" in lines[number]]
    assert all("Seed 0" in caption and "trained on" in caption for caption in curves)
    assert not any(before == line == "" for before, line in pairwise(lines))


def test_accuracies_are_counted_against_the_range_that_the_published_one_stands_for(page, reported):
    assert page.stands_for(reported) == "0.6 to 0.61"
    assert page.place_of(np.array([0.59, 0.605, 0.60, 0.7]), reported) == "1 below it, 2 in it, 1 above it"
    assert page.place_of(np.array([0.61]), reported) == "above it"


def test_a_run_of_fewer_epochs_that_was_tested_once_has_no_curve_to_tell_of(page, study, monkeypatch, tmp_path):
    monkeypatch.setattr(page, "FIGURES", tmp_path)
    tutorial = study("tutorials").TUTORIALS["pulfer_mnist"]
    short = recorded([0], [0.7], [2.0, 1.9], curves=[], parameters=1642)
    lines = "\n".join(page.section("pulfer_mnist", tutorial, {"faithful": short}, tmp_path))
    assert "Not yet measured" in lines
    assert "seed 0 is at" not in lines


def test_the_page_says_how_far_runs_under_way_are(page, reported):
    faithful = {"seeds": [0, 1], "epochs": 3, "curves": [[0.1, 0.5, 0.4], [0.2, 0.3, 0.6]]}
    reached = "seed 0 is at 0.4000 (best: 0.5000, after 2) and seed 1 is at 0.6000 (best: 0.6000, after 3)"
    assert page.so_far(reported, faithful).startswith(f"After 3 of 10 epochs, {reached}.")


def test_an_epoch_ends_with_a_test(runs):
    rows = [
        {"step": 4, "epoch": 1, "val/acc": 0.5, "test/acc": 0.4},
        {"step": 8, "epoch": 2, "val/acc": 0.6, "test/acc": 0.7},
        {"step": 8, "epoch": 2, "train/loss": 1.0},
    ]
    assert runs.tested_epochs(rows) == rows[:2]


def test_the_loss_of_an_epoch_is_the_mean_over_its_steps(runs):
    rows = [
        {"step": 4, "epoch": 1, "train/loss": 2.0},
        {"step": 6, "epoch": 1, "train/loss": 1.4},
        {"step": 6, "epoch": 1, "val/acc": 0.5},
        {"step": 12, "epoch": 2, "train/loss": 1.0},
    ]
    assert runs.epoch_losses(rows) == pytest.approx([1.8, 1.0])
