"""Several questions about an image, from the configuration to every command that uses the trained model."""

import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, roc_auc_score

from vitrine import compose, fit, load_run
from vitrine.cli.main import main
from vitrine.compare.comparison import compare
from vitrine.compare.load import load_results
from vitrine.config.schema import EvalConfig
from vitrine.data.datamodule import ImageDataModule
from vitrine.errors import ConfigError, RunError
from vitrine.explain.page import run_sections
from vitrine.inference.export.formats import ExportRequest
from vitrine.inference.export.source import ExportSource
from vitrine.inference.page.page import write_page
from vitrine.runs import RunRecord
from vitrine.training.evaluate import classifier_from, evaluate_run
from vitrine.training.weights import read_checkpoint

pytestmark = pytest.mark.whole

SMALL = ["model=vit_nano", "depth=1", "trainer.max_epochs=4", "trainer.compile=nothing", "trainer.precision=32-true"]
BOTH = "data.targets=[digit,above5]"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that reads digits and says whether they are above 5."""
    folder = tmp_path_factory.mktemp("out")
    given = [*SMALL, BOTH, "trainer.compile=auto", "augment=none", "optimizer.lr=3e-3", f"paths.output_dir={folder}"]
    return load_run(fit(compose(given)).run_dir)


@pytest.fixture(scope="module")
def stored(run):
    with np.load(run.record.path / "predictions.npz") as arrays:
        return dict(arrays)


def test_metrics_of_each_target_are_scikit_learns(run, stored):
    digit, above = stored["labels"], stored["labels/above5"]
    assert np.array_equal(above, digit > 5)
    logits, of_above = (stored[name].astype(np.float64) for name in ("logits", "logits/above5"))
    assert (logits.shape, of_above.shape) == ((360, 10), (360, 2))
    log_p, log_above = (one - np.logaddexp.reduce(one, axis=1, keepdims=True) for one in (logits, of_above))
    guess = of_above.argmax(axis=1)
    expected = {
        "test/acc": accuracy_score(digit, logits.argmax(axis=1)),
        "test/acc/above5": accuracy_score(above, guess),
        "test/balanced_acc/above5": balanced_accuracy_score(above, guess),
        "test/macro_f1/above5": f1_score(above, guess, average="macro"),
        "test/auroc/above5": roc_auc_score(above, log_above[:, 1] - log_above[:, 0]),
        "test/loss": -(log_p[range(360), digit] + log_above[range(360), above]).mean(),
    }
    assert {name: run.metrics[name] for name in expected} == pytest.approx(expected, abs=1e-5)
    assert "val/acc/above5" in run.metrics
    assert expected["test/acc"] > 0.3, "it learns"
    assert expected["test/acc/above5"] > above.mean() + 0.1, "it learns both"
    assert run.record.facts["targets"]["above5"] == ["no", "yes"]


def test_evaluation_gives_the_same(run, capsys):
    found = evaluate_run(EvalConfig(str(run.record.path)))
    assert found == {name: pytest.approx(run.metrics[name], abs=1e-6) for name in found}
    shown = capsys.readouterr().out
    assert re.search(rf"^test accuracy of above5 +{found['test/acc/above5']:.4f}", shown, re.MULTILINE)


def test_data_whose_second_target_has_other_classes_is_not_what_the_run_was_trained_on(run, tmp_path):
    shutil.copytree(run.record.path, tmp_path / "run")
    targets = run.record.facts["targets"]
    RunRecord(tmp_path / "run").update(targets=targets | {"above5": ["below", "above"]})
    with pytest.raises(RunError, match="of above5, class 0 is no, not below and class 1 is yes, not above"):
        evaluate_run(EvalConfig(str(tmp_path / "run")))
    RunRecord(tmp_path / "run").update(targets=targets)
    assert evaluate_run(EvalConfig(str(tmp_path / "run")))


def test_one_target_named_is_the_data_set_as_it_is(tmp_path):
    """Training on the digit by name is training without targets, to the bit; of above5, the labels differ."""
    weights = []
    for name, given in {"plain": [], "named": ["data.targets=[digit]"]}.items():
        paths = [f"paths.output_dir={tmp_path}/{name}", "trainer.max_epochs=1", "debug.limit_batches=3"]
        one = load_run(fit(compose([*SMALL, *paths, *given])).run_dir)
        weights.append(one.model.state_dict())
        assert "targets" in one.record.facts or not given
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    config = compose([*SMALL, "data.targets=[above5]"])
    assert (config.data.num_classes, config.model.num_classes, config.data.target_classes) == (2, 2, [2])
    plain, alone = ImageDataModule(compose(SMALL)).dataset, ImageDataModule(config).dataset
    assert torch.equal(alone.train.labels, (plain.train.labels > 5).long())
    assert alone.classes == ["no", "yes"]


def test_the_splits_are_those_of_the_first_target():
    plain, both, swapped = (
        ImageDataModule(compose([*SMALL, *given]))
        for given in ([], [BOTH], ["data.targets=[above5,digit]", "data.sampling=balanced"])
    )
    assert plain.validation_hash == both.validation_hash
    assert plain.validation_hash != swapped.validation_hash
    assert torch.equal(both.train.labels, torch.stack([plain.train.labels, (plain.train.labels > 5).long()], dim=1))


def test_a_target_of_a_run_is_used_as_a_run_of_its_own(run, stored):
    above = load_run(run.record.path, target="above5")
    config = above.trained_config
    module = classifier_from(config, read_checkpoint(above.record.best)).eval()
    images = ImageDataModule(config).test.images
    with torch.no_grad():
        normalised = module.normalised(images)
        together = module.model(normalised)
        assert torch.allclose(above.model(normalised), together[:, 10:], atol=1e-6)
        assert torch.allclose(run.model(normalised), together[:, :10], atol=1e-6)
    assert (run.classes[3], above.classes) == ("3", ["no", "yes"])
    assert above.metrics["test/acc"] == run.metrics["test/acc/above5"]
    found = above.predict(images[:5])
    assert [one.name for one in found] == [above.classes[index] for index in stored["logits/above5"][:5].argmax(1)]
    with pytest.raises(RunError, match=r"no target above: its targets are digit and above5; did you mean above5\?"):
        _ = load_run(run.record.path, target="above").config
    exported = ExportSource.load(ExportRequest(run.record.path, "torch_export", target="above5"))
    assert exported.program.module()(images[:2]).shape == (2, 2)
    assert (exported.run.metrics["test/acc"], exported.facts["classes"]) == (above.metrics["test/acc"], '["no", "yes"]')


def test_the_commands_take_a_target(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    image = ImageDataModule(run.trained_config).test.images[0, 0].numpy()
    Image.fromarray(image).save("digit.png")
    given = [f"run={run.record.path}", "input=digit.png", "workers=0", "accelerator=cpu"]
    main(["predict", *given, "target=above5", "calibrate=true"])
    out = capsys.readouterr().out
    assert re.search(r"^(yes|no) .*digit\.png", out, re.MULTILINE)
    assert "on 360 test images" in out
    page = write_page(run.record.path, tmp_path / "page.html", target="above5").path.read_text()
    assert re.search(r'"classes": ?\["no", ?"yes"\]', page)
    assert f"test accuracy {100 * run.metrics['test/acc/above5']:.2f} %" in page


def test_pages_and_comparisons_have_the_first_target_and_the_metrics_of_all(run):
    compared = compare(load_results([run.record.path]), metric="test/acc/above5")
    assert compared.metric.title == "test accuracy of above5"
    assert compared.metric.value(0.5) == "50.00 %"
    sections = {section.key: section for section in run_sections(run.record)}
    assert [len(sections[key].figures) > 0 for key in ("confusion", "wrong", "rollout")] == [True] * 3


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (
            ["data.targets=[digit,abov5]"],
            "abov5 is not one of the targets of data=digits: digit, above5 did you mean",
        ),
        (["data.targets=[digit,digit]"], "names a target twice"),
        (["data=csv", "data.root=none.csv", "data.targets=[digit,digit]"], "names a target twice"),
        (
            ["data=cifar10", BOTH],
            "is for data=csv, whose columns are targets, and for digits and mnist, not for",
        ),
        ([BOTH, "augment=none", "augment.mixup=0.2"], "augment.mixup=0.2 is for one target"),
        ([BOTH, "loss.class_weights=balanced"], "loss.class_weights=balanced is for one target"),
        ([BOTH, "model.num_classes=10"], "model.num_classes=10 must be 12, the classes of all targets together"),
        (["data.target_classes=[3]"], r"data.target_classes=\[3\] is counted, not set"),
    ],
)
def test_what_does_not_fit_several_targets_is_refused(overrides, fault):
    with pytest.raises(ConfigError) as error:
        compose(overrides)
    assert re.search(fault, " ".join(str(error.value).split()))
    assert len(error.value.faults) == 1


def test_a_later_run_counts_again(run):
    config = compose([f"like={run.record.path}", "data.targets=[]"])
    assert (config.data.num_classes, config.model.num_classes, config.data.target_classes) == (10, 10, [])
    assert compose([f"like={run.record.path}", "data=mnist"]).model.num_classes == 12
