"""Metrics equal scikit-learn's, and runs measure, log and select on them."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers.running import SMALL
from helpers.user_parts import enter_lab
from sklearn import metrics as sklearn_metrics
from statsmodels.stats.proportion import proportion_confint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchmetrics.functional import classification

from vitrine import compose, fit
from vitrine.config.metrics import by_class
from vitrine.config.parts import PartError
from vitrine.config.schema import CallbacksConfig
from vitrine.runs import RunRecord
from vitrine.training.metrics import LogitsAndLabels, all_labels_right, auroc, class_metrics, measure, own_metrics


@pytest.fixture(params=[8, 3], ids=["eight classes, one absent", "three classes"])
def outputs(request):
    """Logits and labels of uneven classes, of which the last one has no images where there are eight."""
    classes = request.param
    generator = torch.Generator().manual_seed(classes)
    shares = torch.arange(classes, 0, -1).float() ** 2
    shares[-1] = 0 if classes == 8 else 1
    labels = shares.multinomial(300, replacement=True, generator=generator)
    logits = torch.randn(300, classes, generator=generator)
    logits[torch.arange(300), labels] += 1
    return logits, labels


def test_metrics_are_scikit_learns(outputs):
    logits, labels = outputs
    found, predicted, classes = measure(logits, labels), logits.argmax(dim=1), logits.shape[1]
    probabilities = logits.softmax(dim=1).numpy()
    present = labels.unique().tolist()
    expected = {
        "balanced_acc": sklearn_metrics.balanced_accuracy_score(labels, predicted),
        "macro_f1": sklearn_metrics.f1_score(labels, predicted, average="macro"),
        "auroc": sum(sklearn_metrics.roc_auc_score(labels == one, probabilities[:, one]) for one in present)
        / len(present),
    }
    if classes > 5:
        expected["top5_acc"] = sklearn_metrics.top_k_accuracy_score(labels, logits, k=5, labels=range(classes))
    else:
        expected["auroc"] = sklearn_metrics.roc_auc_score(labels, probabilities, multi_class="ovr")
    assert {name: value for name, value in found.items() if name != "ece"} == pytest.approx(expected, abs=1e-6)


def test_images_are_ranked_also_where_their_probability_is_1_in_float32(outputs):
    logits, labels = 20 * outputs[0], outputs[1]
    present = labels.unique().tolist()
    others = [[one for one in range(logits.shape[1]) if one != label] for label in present]
    odds = [logits[:, one] - logits[:, rest].logsumexp(dim=1) for one, rest in zip(present, others, strict=True)]
    areas = [sklearn_metrics.roc_auc_score(labels == one, scores) for one, scores in zip(present, odds, strict=True)]
    assert float(auroc(logits, labels)) == pytest.approx(np.mean(areas), abs=1e-6)
    has = torch.nn.functional.one_hot(labels, logits.shape[1])
    found = measure(logits, has, ["auroc", "map"])
    assert found["auroc"] == pytest.approx(sklearn_metrics.roc_auc_score(has[:, present], logits[:, present]), abs=1e-6)
    expected = sklearn_metrics.average_precision_score(has[:, present], logits[:, present])
    assert found["map"] == pytest.approx(expected, abs=1e-6)


def test_equal_logits_count_as_torchmetrics_counts_them(outputs):
    logits, labels = outputs[0].round(), outputs[1]
    classes, present = logits.shape[1], labels.unique()
    is_of_class = (labels[:, None] == present).long()
    probabilities = logits.double().softmax(dim=1).round(decimals=12)  # so that equal ones are equal
    expected = {
        "macro_f1": classification.multiclass_f1_score(logits, labels, classes, average="macro"),
        "auroc": classification.multilabel_auroc(probabilities[:, present], is_of_class, len(present)),
    }
    if classes > 5:
        expected["top5_acc"] = classification.multiclass_accuracy(logits, labels, classes, average="micro", top_k=5)
    assert measure(logits, labels, expected) == pytest.approx({name: float(one) for name, one in expected.items()})


class LargestTensor(TorchDispatchMode):
    """Notes the bytes of the largest tensor that an operation returns."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        self.bytes = max([self.bytes, *(one.untyped_storage().nbytes() for one in tensors)])
        return result


@pytest.mark.parametrize("deterministic", [False, True])
def test_no_metric_takes_more_memory_than_the_logits(deterministic):
    logits, labels = torch.randn(60, 60), torch.arange(60)
    expected = measure(logits, labels)
    torch._C._set_deterministic_algorithms(deterministic)  # the public function imports PyTorch's compiler
    try:
        with LargestTensor() as largest:
            assert measure(logits, labels) == expected
    finally:
        torch._C._set_deterministic_algorithms(False)
    assert largest.bytes <= logits.nbytes


def test_metrics_of_several_labels_are_scikit_learns():
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(200, 5, generator=generator) < torch.tensor([0.5, 0.3, 0.1, 0.05, 0.0])).to(torch.uint8)
    labels[0, 3] = 1
    logits = torch.randn(200, 5, generator=generator) + 2 * labels - torch.tensor([0, 0, 0, 0, 9])
    probabilities, predicted = logits.sigmoid().numpy(), logits > 0
    assert measure(logits, labels) == pytest.approx(
        {
            "macro_f1": sklearn_metrics.f1_score(labels[:, :4], predicted[:, :4], average="macro"),
            "auroc": sklearn_metrics.roc_auc_score(labels[:, :4], probabilities[:, :4]),
            "map": sklearn_metrics.average_precision_score(labels[:, :4], probabilities[:, :4]),
        },
        abs=1e-6,
    ), "a class without images is left out of means"
    right = all_labels_right(logits, labels)
    assert right.float().mean() == pytest.approx(sklearn_metrics.accuracy_score(labels, predicted))
    found = class_metrics(logits, labels, list("abcde"))
    assert list(found) == ["class_ap/a", "class_ap/b", "class_ap/c", "class_ap/d"]
    assert by_class({"test/class_ap/a": 0.5}, "test") == ["a AP 0.5000"]


@pytest.mark.parametrize("label", [0, 1])
def test_what_no_class_has_images_for_is_nan(label):
    logits, labels = torch.ones(4, 2), torch.full((4, 2), label, dtype=torch.uint8)
    found = measure(logits, labels) | class_metrics(logits, labels, ["a", "b"])
    classes = {"class_ap/a": 1.0, "class_ap/b": 1.0}
    expected = {"macro_f1": 1.0, "auroc": math.nan, "map": 1.0} | classes
    if not label:
        expected = {"macro_f1": 0.0, "auroc": math.nan, "map": math.nan}
    assert found == pytest.approx(expected, nan_ok=True)


def test_images_of_equal_logits_are_ties_also_at_a_probability_of_one_half():
    logits = torch.randn(1000, 1).expand(-1, 2)
    assert auroc(logits, torch.arange(1000) % 2) == 0.5


@pytest.mark.parametrize("labels", [torch.tensor([0, 1, 1]), torch.eye(3).long()[:, :2]])
def test_every_metric_of_undefined_logits_is_undefined(labels):
    found = measure(torch.tensor([[1.0, 0.0], [0.0, 1.0], [math.nan, 0.0]]), labels)
    assert set(found) > {"auroc", "macro_f1"}
    assert all(map(math.isnan, found.values()))


def test_a_single_class_has_no_area_under_the_curve():
    assert auroc(torch.randn(4, 3), torch.tensor([1, 1, 1, 1])).isnan()


def test_the_calibration_error_is_that_of_its_definition(outputs):
    logits, labels = outputs
    confidence, predicted = logits.softmax(dim=1).max(dim=1)
    bins = (confidence * 15).ceil().long() - 1
    expected = 0.0
    for number in range(15):
        inside = bins == number
        if inside.any():
            gap = (predicted[inside] == labels[inside]).float().mean() - confidence[inside].mean()
            expected += float(gap.abs()) * int(inside.sum()) / len(labels)
    assert measure(logits, labels, ["ece"]) == {"ece": pytest.approx(expected, abs=1e-6)}


def test_classes_have_accuracies_with_wilson_intervals(outputs):
    logits, labels = outputs
    names = [f"class {index}" for index in range(logits.shape[1])]
    found = class_metrics(logits, labels, names)
    recalls = sklearn_metrics.recall_score(labels, logits.argmax(dim=1), average=None, labels=labels.unique())
    assert [found[f"class_acc/class {label}"] for label in labels.unique().tolist()] == pytest.approx(recalls.tolist())
    for label in labels.unique().tolist():
        own = labels == label
        right = int((logits.argmax(dim=1)[own] == label).sum())
        low, high = proportion_confint(right, int(own.sum()), method="wilson")
        values = (found[f"class_acc_low/class {label}"], found[f"class_acc_high/class {label}"])
        assert values == pytest.approx((low, high), abs=1e-6)
    assert len(found) == 3 * len(labels.unique())
    assert class_metrics(logits, labels, [str(index) for index in range(21)]) == {}


def test_batches_give_what_all_images_together_give(outputs):
    logits, labels = outputs
    metric = LogitsAndLabels(["balanced_acc", "ece"])
    for part in torch.arange(300).split(70):
        metric.update(logits[part], labels[part])
    assert metric.compute() == pytest.approx(measure(logits, labels, ["balanced_acc", "ece"]))


@pytest.mark.whole
def test_metrics_import_little():
    """Lightning and torchmetrics cost seconds to import; the metrics' own modules must add next to nothing."""
    script = (
        "import sys, vitrine.training.lit_module; before = set(sys.modules); import vitrine.training.metrics;"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "import json; print(json.dumps([sorted(new), 'torchvision' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    new, torchvision = json.loads(done.stdout)
    assert set(new) <= {"torchmetrics", "vitrine"}
    assert not torchvision


def test_a_metric_of_ones_own_returns_a_finite_number(tmp_path, monkeypatch, outputs):
    given = {
        "tensor": "(labels == 0).sum()",
        "true": "np.float32(2.5)",
        "nan": "logits.sum() * float('nan')",
        "each": "logits.mean(dim=0)",
        "nothing": "None",
        "wrong": "1 / 0",
        "huge": "10**400",
        "five_acc": "93.0",
        "mean_acc": "torch.tensor(1.0000001)",  # all right: shares of ten classes, added in float32
    }
    functions = [f"def {name}(logits, labels): return {value}" for name, value in given.items()]
    module = "\n".join(["import numpy as np", "import torch", *functions])
    enter_lab(tmp_path, monkeypatch, "lab_of_values", own=module)
    logits, labels = outputs
    own = own_metrics(CallbacksConfig(metrics=["ece", *(f"lab_of_values.own.{name}" for name in given)]))
    assert measure(logits, labels, ["tensor", "true"], own) == {"tensor": (labels == 0).sum(), "true": 2.5}
    assert own["mean_acc"](logits, labels) == 1
    shape = f"a Tensor of shape ({logits.shape[1]},)"
    for name, problem in {"nan": "nan", "each": shape, "nothing": "a NoneType"}.items():
        with pytest.raises(PartError) as error:
            own[name](logits, labels)
        assert str(error.value) == f"lab_of_values.own.{name} must return a finite number, not {problem}"
    with pytest.raises(PartError, match=r"^lab_of_values.own.five_acc must return a share in \[0, 1\], not 93.0"):
        own["five_acc"](logits, labels)
    for name, problem in {"wrong": "ZeroDivisionError", "huge": "OverflowError"}.items():
        with pytest.raises(PartError, match=f"^lab_of_values.own.{name} failed: {problem}"):
            own[name](logits, labels)
    assert math.isnan(own["wrong"](logits / 0, labels))  # the run has diverged, and is reported as such


@pytest.mark.whole
def test_a_run_selects_on_a_metric_and_records_all_of_them(tmp_path, capsys):
    overrides = ["data.sampling=balanced", "data.per_class=30", "callbacks.monitor=val/balanced_acc"]
    overrides += ["callbacks.metrics=[ece]", "trainer.compile=nothing", f"paths.output_dir={tmp_path}"]
    result = fit(compose([*SMALL, *overrides, "loss=focal"]))
    record = RunRecord(result.run_dir)
    assert record.facts["images"]["train"] == 300
    rows = [row for row in record.history() if "val/balanced_acc" in row]
    assert len(rows) == 2
    assert result.metrics["val/balanced_acc"] == max(row["val/balanced_acc"] for row in rows)
    assert "val/ece" in rows[0]
    assert "val/auroc" not in rows[0]
    stored = {name.partition("/")[2] for name in record.metrics if name.startswith("test/")}
    assert {"acc", "loss", "balanced_acc", "macro_f1", "top5_acc", "auroc", "ece", "class_acc/7"} <= stored
    assert record.metrics["test/class_acc_low/7"] <= record.metrics["test/class_acc/7"]
    printed = capsys.readouterr().out
    assert f"balanced accuracy {record.metrics['test/balanced_acc']:.4f}" in printed
    assert "test by class" in printed
