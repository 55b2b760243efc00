"""benchmarks/studies/things_to_try.py: the table of docs/reproductions.md, from the models and the record."""

import shutil
from pathlib import Path

import pytest

SEEDS = [0, 1, 2]


@pytest.fixture
def study_of_things(study):
    return study("things_to_try")


def runs(*accuracies, commit="abc"):
    facts = {"commit": commit, "precision": "32-true", "device": "CPU, 1 thread", "machine": "a machine"}
    return [{"seed": seed, "test/acc": accuracy} | facts for seed, accuracy in zip(SEEDS, accuracies, strict=False)]


@pytest.mark.whole
def test_the_page_has_the_costs_of_the_models_and_the_accuracies_of_the_record(study_of_things, monkeypatch, tmp_path):
    published = study_of_things.PAGE.read_text()
    monkeypatch.setattr(study_of_things, "PAGE", Path(shutil.copy(study_of_things.PAGE, tmp_path)))
    study_of_things.write_page()
    assert study_of_things.PAGE.read_text() == published, "run python benchmarks/studies/things_to_try.py --table"


def test_an_accuracy_is_shown_once_all_seeds_are_trained_by_the_commit_of_t2(study_of_things, monkeypatch):
    monkeypatch.setattr(study_of_things, "ROWS", (study_of_things.ROWS[0], study_of_things.ROWS[4]))

    def heads(of_itself, of_eight):
        lines = study_of_things.table({"T2 itself": of_itself, "model.heads=8": of_eight})
        return lines[3].split(" | ")[3]

    three = runs(0.7, 0.8, 0.6)
    shown = "not yet measured; 0.7000 ± 0.2484; not yet measured; 0.5000"
    assert heads(three, runs(0.5, 0.5, 0.5)) == shown
    pending = shown.replace("0.5000", "not yet measured")
    assert heads(three, runs(0.5, 0.5)) == pending
    assert heads(three, runs(0.5, 0.5, 0.5, commit="def")) == pending
    assert heads([], runs(0.5, 0.5, 0.5)) == "not yet measured"


@pytest.mark.whole
def test_every_cheap_change_is_trained_once_for_each_seed_the_cheapest_first(study_of_things):
    jobs = study_of_things.jobs("DIR")
    labels = [job.label for job in jobs]
    assert labels[:6] == [f"{name}, seed {seed}" for name in ("T2 itself", "data.train_fraction=0.1") for seed in SEEDS]
    assert labels[-1] == "model.dim=32, seed 2"
    assert len(set(labels)) == len(labels) == len({job.folder for job in jobs})
    assert not any("model.heads=2" in label or "patch='1'" in label or "fashion" in label for label in labels)
    assert all("data.root=DIR" in job.overrides and f"seed={job.label[-1]}" in job.overrides for job in jobs)
