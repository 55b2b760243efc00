"""scripts/reproduce.py: real runs of a tutorial, cut short, and the page that is made from their folders."""

import json
import shutil
import sys
from types import SimpleNamespace

import pytest
from helpers.running import ROOT

from vitrine.runs import RunRecord

SHORT = ["debug.limit_batches=2", "accelerator=cpu", "trainer.compile=nothing"]


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import reproductions_page

    yield reproductions_page
    del sys.modules["reproductions_page"]


@pytest.fixture
def reproduce(page, monkeypatch, tmp_path, shared_data):
    """Runs the script on MNIST; what it writes lands in an empty folder."""
    import reproduce

    monkeypatch.setattr(reproduce, "OUT", tmp_path / "out")
    monkeypatch.setattr(page, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(page, "PICTURES", tmp_path / "docs" / "images")
    monkeypatch.setattr(page, "EXPERIMENTS", shutil.copytree(page.EXPERIMENTS, tmp_path / "experiments"))

    def run(*words, tutorial="pulfer_mnist", epochs=1):
        short = [*SHORT, f"trainer.max_epochs={epochs}"]
        data = ["--data-root", str(shared_data), "--cache-dir", str(tmp_path / "cache")]
        monkeypatch.setattr(sys, "argv", ["reproduce.py", tutorial, *data, *words, "--words", *short])
        reproduce.main()

    yield run
    del sys.modules["reproduce"]


def test_what_is_finished_stays_what_was_interrupted_goes_on_and_the_page_says_what_came_out(
    reproduce, tmp_path, capsys
):
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
    told = capsys.readouterr().out
    assert "pulfer_mnist/corrected/seed-0 (goes on)" in told
    assert "faithful/seed-0" not in told
    assert runs("faithful", 0) == [first]
    assert (first / "run.json").stat().st_mtime_ns == done
    assert runs("corrected", 0) == [second]
    assert RunRecord(second).status == "finished"

    reproduce("--seeds", "1", epochs=5)
    told = capsys.readouterr().out
    assert "pulfer_mnist/faithful/seed-0 is finished after 1 of 5 epochs; delete it to run all" in told
    assert runs("faithful", 0) == [first]

    facts = json.loads((tmp_path / "docs/reproductions.json").read_text())["pulfer_mnist"]["variants"]
    assert {name: one["seeds"] for name, one in facts.items()} == {"faithful": [0], "corrected": [0]}
    assert facts["faithful"]["parameters"] == 1642
    assert facts["faithful"]["test/acc"] == [RunRecord(first).metrics["test/acc"]]
    heads = {path.stem: path.read_text() for path in (tmp_path / "experiments/pulfer_mnist").iterdir()}
    for variant, head in heads.items():
        assert f"# Measured: test accuracy {facts[variant]['test/acc'][0]:.4f} (1 seed), " in head
    assert "# Measured: not yet.\n" in (tmp_path / "experiments/intuitive_cifar10/faithful.yaml").read_text()
    text = (tmp_path / "docs/reproductions.md").read_text()
    assert text.count("(1 seed)") == 2
    assert text.count("| not yet measured | not yet measured |") == 4
    for picture in ("losses", "curves", "confusion", "attention", "positions"):
        assert (tmp_path / f"docs/images/pulfer_mnist_{picture}.png").stat().st_size > 1000, picture


def test_what_was_measured_before_stays_until_as_many_runs_have_been_trained_for_as_long(reproduce, tmp_path):
    whole = json.loads((ROOT / "docs" / "reproductions.json").read_text())
    known = tmp_path / "docs" / "reproductions.json"
    known.parent.mkdir()
    known.write_text(json.dumps(whole))
    reproduce("--seeds", "1")
    assert json.loads(known.read_text()) == whole
    head = (tmp_path / "experiments/pulfer_mnist/faithful.yaml").read_text()
    assert head == (ROOT / "conf/experiment/tutorials/pulfer_mnist/faithful.yaml").read_text()

    less = json.loads(json.dumps(whole))
    less["pulfer_mnist"]["variants"]["faithful"] |= {"seeds": [0], "epochs": 1}
    known.write_text(json.dumps(less))
    reproduce("--table")
    found = json.loads(known.read_text())
    (run,) = (tmp_path / "out/pulfer_mnist/faithful/seed-0/runs").iterdir()
    variants = found["pulfer_mnist"]["variants"]
    assert variants["faithful"]["test/acc"] == [RunRecord(run).metrics["test/acc"]]
    assert RunRecord(run).facts["machine"]["processor"] in variants["faithful"]["machine"]
    assert variants["corrected"] == whole["pulfer_mnist"]["variants"]["corrected"], "measured where it was"
    assert found["comsci_mnist"] == whole["comsci_mnist"]


def test_an_unknown_tutorial_is_told_with_those_there_are(reproduce, capsys):
    with pytest.raises(SystemExit):
        reproduce(tutorial="pulfer")
    assert "no tutorial is called pulfer; there are comsci_mnist, pulfer_mnist" in capsys.readouterr().err


def test_words_that_cannot_work_are_told_once_before_anything_is_run(reproduce, capsys, tmp_path):
    with pytest.raises(SystemExit):
        reproduce(epochs="many")
    assert capsys.readouterr().err.count("trainer.max_epochs=many") == 1
    assert not (tmp_path / "out").exists()


REPORTED = SimpleNamespace(epochs=10, oddities={"a switch": "loss=cross_entropy", "another": "model.final_norm=true"})


def test_fewer_epochs_than_reported_measure_nothing(page):
    one = {"test/acc": [0.5], "seeds": [0], "epochs": 2}
    assert page.measured(REPORTED, one) == "not yet measured; 0.5000 (1 seed) after 2 of 10 epochs"
    assert page.measured(REPORTED, one | {"epochs": 10}) == "0.5000 (1 seed)"


def test_what_an_oddity_costs_is_paired_by_seed(page):
    variants = {
        "faithful": {"seeds": [0, 1, 2], "test/acc": [0.5, 0.6, 0.7]},
        "a switch": {"seeds": [1, 2, 3], "test/acc": [0.61, 0.71, 0.9]},
    }
    table = page.oddity_table(REPORTED, variants)
    assert "| a switch | `loss=cross_entropy` | 0.7400 ± 0.3659 | +0.0100 ± 0.0000 |" in table
    assert "another" not in table, "it was not run"


def test_the_loss_of_an_epoch_is_the_mean_over_its_steps(page):
    rows = [
        {"step": 4, "epoch": 1, "train/loss": 2.0},
        {"step": 6, "epoch": 1, "train/loss": 1.4},
        {"step": 6, "epoch": 1, "val/acc": 0.5},
        {"step": 12, "epoch": 2, "train/loss": 1.0},
    ]
    assert page.epoch_losses(rows) == pytest.approx([1.8, 1.0])
