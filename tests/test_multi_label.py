"""Pictures with several labels, from a CSV file to every command that uses the trained model."""

import csv
import re
import sys

import numpy as np
import pytest
import torch
import yaml
from helpers.user_parts import enter
from PIL import Image
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score

from vitrine import compose, fit, load_run
from vitrine.cli.main import main
from vitrine.compare.comparison import compare
from vitrine.compare.load import load_results
from vitrine.compare.predictions import INDEPENDENT, Predictions, correct_images
from vitrine.compare.report.page import render as render_comparison
from vitrine.config.schema import EvalConfig
from vitrine.data.datamodule import ImageDataModule
from vitrine.errors import ConfigError, RunError
from vitrine.explain.page import _facts, run_sections
from vitrine.inference.export.formats import ExportRequest
from vitrine.inference.export.model_card import model_card
from vitrine.inference.export.source import ExportSource
from vitrine.inference.page.page import write_page
from vitrine.inference.results import Journal
from vitrine.training import compile as compilation
from vitrine.training.evaluate import evaluate_run
from vitrine.training.lit_module import Classifier

pytestmark = pytest.mark.whole

COLOURS = ["blue", "green", "red"]
LABELLED = ["data=csv", "data.multi_label=true", "data.image_size=8", "patch=4"]
SMALL = ["model=vit_nano", "depth=1", "trainer.max_epochs=2", "trainer.compile=nothing", "trainer.precision=32-true"]
BINARY = "loss=binary_cross_entropy"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A CSV file that lists 160 noisy squares with one, several or none of three colours, a quarter for the test."""
    folder, generator = tmp_path_factory.mktemp("squares"), np.random.default_rng(0)
    rows = ["path,label,split"]
    for number in range(160):
        has = generator.random(3) < 0.4
        pixels = generator.integers(0, 230, (8, 8, 3)) + 25 * has[::-1]
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
        names = "|".join(name for name, there in zip(COLOURS, has, strict=True) if there) or "|"
        rows.append(f"{number}.png,{names},{'test' if number >= 120 else 'train'}")
    path = folder / "squares.csv"
    path.write_text("\n".join(rows))
    return path


def configured(table, folder, *overrides):
    paths = [f"data.root={table}", f"paths.output_dir={folder}", f"paths.cache_dir={folder}/cache"]
    return compose([*LABELLED, *SMALL, *paths, *overrides])


@pytest.fixture(scope="module")
def run(table, tmp_path_factory):
    """A run that mixes images, and selects and stops on mean average precision."""
    folder = tmp_path_factory.mktemp("out")
    settings = ["augment=none", "augment.mixup=0.2", "optimizer.lr=3e-3", "data.batch_size=16"]
    selection = ["callbacks=early_stopping", "callbacks.monitor=val/map", "callbacks.early_stopping.monitor=val/auroc"]
    return load_run(fit(configured(table, folder, BINARY, *settings, *selection)).run_dir)


def test_metrics_of_the_test_images_are_scikit_learns(run):
    stored = np.load(run.record.path / "predictions.npz")
    logits, labels = stored["logits"].astype(np.float64), stored["labels"]
    assert labels.shape == logits.shape == (40, 3)
    assert 0.2 < labels.mean() < 0.6
    probabilities = 1 / (1 + np.exp(-logits))
    expected = {
        "test/acc": accuracy_score(labels, logits > 0),
        "test/macro_f1": f1_score(labels, logits > 0, average="macro"),
        "test/auroc": roc_auc_score(labels, probabilities),
        "test/map": average_precision_score(labels, probabilities),
        "test/loss": -np.mean(np.where(labels, np.log(probabilities), np.log(1 - probabilities))),
    }
    for label, name in enumerate(COLOURS):
        expected[f"test/class_ap/{name}"] = average_precision_score(labels[:, label], probabilities[:, label])
    tested = {name: value for name, value in run.metrics.items() if name.startswith("test/")}
    assert tested == pytest.approx(expected, abs=1e-5)
    assert expected["test/map"] > labels.mean() + 0.2, "it learns"
    assert {"val/map", "val/auroc", "val/acc", "val/loss"} <= set(run.metrics)
    assert not (run.record.path / "confusion.png").exists()


class Unsure(torch.nn.Module):
    """Gives every label a logit of 0.1."""

    def forward(self, images):
        return torch.full((len(images), 3), 0.1)


def test_logits_near_zero_are_not_taken_for_probabilities(table, tmp_path):
    module = Classifier(configured(table, tmp_path, BINARY), steps=1, images_per_step=2, model=Unsure())
    images, labels = torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([[1, 1, 1], [1, 1, 0]])
    module.validation_step((images, labels.to(torch.uint8)), 0)
    assert module.metrics["val"].accuracies[0].compute() == 0.5


def test_a_loss_of_ones_own_is_given_the_labels_of_all_classes_also_where_a_step_is_timed(
    table, tmp_path, monkeypatch, capsys
):
    enter(tmp_path, monkeypatch, "mylosses")
    (tmp_path / "mylosses.py").write_text(
        "from torch.nn.functional import binary_cross_entropy_with_logits\n\n\n"
        "def loss(logits, targets):\n    return binary_cross_entropy_with_logits(logits, targets)\n"
    )
    monkeypatch.setitem(compilation.WHAT, "cpu", "blocks")
    quick = ["trainer.max_epochs=1", "trainer.compile=auto", "debug.limit_batches=1"]
    assert fit(configured(table, tmp_path, "loss=mylosses.loss", *quick)).metrics["test/loss"] < 1
    assert "compiler         not used: training takes less than" in capsys.readouterr().out


def test_evaluation_gives_the_same(run):
    found = evaluate_run(EvalConfig(str(run.record.path)))
    assert found["test/map"] == pytest.approx(run.metrics["test/map"], abs=1e-6)


def test_a_label_is_given_at_its_own_probability(run, table, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    logits = np.load(run.record.path / "predictions.npz")["logits"].astype(np.float64)
    probabilities = 1 / (1 + np.exp(-logits))
    least = float(np.median(probabilities))
    given = [f"run={run.record.path}", f"input={table}", "workers=0", "accelerator=cpu"]
    main(["predict", *given, "output=x.csv", f"confidence={least}"])
    with (tmp_path / "x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))[120:]
    for row, shares in zip(rows, probabilities, strict=True):
        order = [index for index in np.argsort(-shares) if shares[index] >= least]
        assert row["classes"] == ("|".join(COLOURS[index] for index in order) or "|")
        assert set(row["label"].split("|")) <= {*COLOURS, ""}
        shown = [float(share) for share in row["probabilities"].split("|") if share]
        assert shown == pytest.approx([shares[index] for index in order], abs=1e-5)
    main(["predict", *given])
    right = sum(Predictions.of(load_results([run.record.path]).runs[0]).correct)
    assert right == round(run.metrics["test/acc"] * 40)
    shown = capsys.readouterr().out
    assert f"accuracy of test   {run.metrics['test/acc']:.4f} of 40 labelled pictures, all labels right\n" in shown
    prediction = run.predict(str(table.parent / "120.png"))
    assert prediction.labels(least) == [pair for pair in prediction.top(3) if pair[1] >= least]


def test_an_interrupted_prediction_is_not_continued_with_another_confidence(run, table, tmp_path, monkeypatch, capsys):
    """Its rows lack the labels that were less likely."""
    monkeypatch.chdir(tmp_path)
    command = ["predict", f"run={run.record.path}", f"input={table}", "output=x.csv", "workers=0", "accelerator=cpu"]
    monkeypatch.setattr(Journal, "finish", lambda *_: sys.exit(9))
    for confidence, code in (("0.9", 9), ("0.5", 1)):
        with pytest.raises(SystemExit) as end:
            main([*command, f"confidence={confidence}"])
        assert end.value.code == code
    assert "other runs or settings" in (error := capsys.readouterr().err)
    assert "(confidence was 0.9, is 0.5)" in error


def test_an_export_gives_sigmoids(run):
    source = ExportSource.load(ExportRequest(run.record.path, "torch_export"))
    pictures = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    given = source.program.module()(pictures)
    assert torch.allclose(given, source.reference.logits(pictures).sigmoid(), atol=1e-6)
    assert "each label by itself" in source.facts["output"]


def test_the_card_for_the_hub_says_when_a_picture_is_right_and_has_mean_average_precision(run):
    card = model_card(ExportSource.load(ExportRequest(run.record.path, "hf")))
    right, precision = (round(run.metrics[f"test/{name}"], 4) for name in ("acc", "map"))
    assert f"| test accuracy (all labels of a picture right) | {right:.4f} (95 % interval" in card
    assert f"| mean average precision | {precision:.4f} |\n| model |" in card
    (result,) = yaml.safe_load(card.split("---")[1])["model-index"][0]["results"]
    assert [(metric["type"], metric.get("name"), metric["value"]) for metric in result["metrics"]] == [
        ("accuracy", "exact match", right),
        ("mean_average_precision", None, precision),
    ]


def test_pages_have_what_there_is_of_several_labels(run):
    compared = compare(load_results([run.record.path]))
    assert (compared.metric.name, correct_images(run.record.path / "predictions.npz").mean()) == (
        "test/acc",
        pytest.approx(run.metrics["test/acc"]),
    )
    page = render_comparison(compared, ["x"])
    assert "F1 per class" in page
    assert INDEPENDENT in page
    assert "There is none: a test image has several labels" in page
    sections = {section.key: section for section in run_sections(run.record)}
    assert "There is no matrix" in sections["confusion"].text
    assert sections["confusion"].figures == []
    assert "are wrong. An image is right if all of its labels are." in sections["wrong"].text
    assert sections["classes"].text.startswith("Recall is the share of its images that are taken for it; precision")
    assert sections["calibration"].text.endswith(INDEPENDENT)
    assert ("test mean average precision", f"{run.metrics['test/map']:.4f}") in _facts(run.record)
    assert [len(sections[key].figures) for key in ("classes", "calibration", "wrong", "rollout")] == [1, 1, 2, 1]
    wrong = sections["wrong"].figures[0].numbers
    assert wrong[0] == ["test image", "labels", "taken for", "probability (%)", "of the labels (%)", "file"]
    assert all(row[-1] == f"{120 + int(row[0])}.png" for row in wrong[1:])
    assert all(set(cell.split(", ")) <= {*COLOURS, "none"} for row in wrong[1:] for cell in row[1:3])
    with pytest.raises(RunError, match="several labels per picture, and a page shows one"):
        write_page(run.record.path)


def test_every_split_is_stratified_and_repeats(table, tmp_path):
    labels = {}
    for key, overrides in {
        "split": [],
        "fold": ["data.folds=4", "data.fold=1"],
        "part": ["data.train_fraction=0.5"],
    }.items():
        data = ImageDataModule(configured(table, tmp_path, BINARY, *overrides))
        again = ImageDataModule(configured(table, tmp_path, BINARY, *overrides))
        assert torch.equal(data.train.labels, again.train.labels)
        labels[key] = data.train.labels, data.val.labels
    assert [len(part) for pair in labels.values() for part in pair] == [108, 12, 90, 30, 54, 12]
    whole = torch.cat(labels["split"]).float().mean(dim=0)
    assert (labels["fold"][1].float().mean(dim=0) - whole).abs().max() < 0.12
    assert (labels["part"][0].float().mean(dim=0) - whole).abs().max() < 0.12


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (["loss=focal"], "loss=focal is of one class per image.*did you mean loss=binary_cross_entropy"),
        ([], "loss=cross_entropy is of one class per image.*did you mean loss=binary_cross_entropy"),
        ([BINARY, "loss.class_weights=balanced"], "loss.class_weights=balanced is for one label per image"),
        ([BINARY, "loss.label_smoothing=0.1"], "loss.label_smoothing=0.1 is for one label per image"),
        ([BINARY, "data.sampling=balanced"], "data.sampling=balanced is for one label per image"),
        ([BINARY, "data.per_class=3"], "data.per_class=3 is for one label per image"),
        ([BINARY, "model.num_classes=4"], "model.num_classes=4 must be 3"),
        ([BINARY, "data.targets=[label]", "model.num_classes=4"], "data.multi_label=true is for one target"),
        ([BINARY, "callbacks.monitor=val/ece"], "monitor=val/ece is not a metric of several labels per image"),
        ([BINARY, "callbacks.metrics=[top5_acc]"], "top5_acc is not one of macro_f1, auroc, map"),
    ],
)
def test_what_does_not_fit_several_labels_is_refused(table, tmp_path, overrides, fault):
    with pytest.raises(ConfigError) as error:
        configured(table, tmp_path, *overrides)
    assert re.search(fault, " ".join(str(error.value).split()))
    assert len(error.value.faults) == 1


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (["data.multi_label=true"], "data.multi_label=true is for data=csv"),
        (["callbacks.monitor=val/map"], "callbacks.monitor=val/map is not a metric of one label per image"),
    ],
)
def test_one_label_is_not_several(overrides, fault):
    with pytest.raises(ConfigError, match=re.escape(fault.split()[0])) as error:
        compose(overrides)
    assert re.search(fault, " ".join(str(error.value).split()))
