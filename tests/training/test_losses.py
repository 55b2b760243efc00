"""Losses agree with PyTorch, torchvision and timm, weights of classes with scikit-learn and their paper."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.running import SMALL
from sklearn.utils.class_weight import compute_class_weight
from timm.loss import BinaryCrossEntropy
from torch.nn import functional as F
from torchvision.ops import sigmoid_focal_loss

from vitrine import compose, fit
from vitrine.config.loss import LossConfig
from vitrine.config.parts import PartError
from vitrine.config.serialize import to_plain
from vitrine.errors import DataError, RunError
from vitrine.training.compile import Compilation
from vitrine.training.evaluate import classifier_from
from vitrine.training.lit_module import Classifier
from vitrine.training.losses import LOSSES, build_loss, check_class_names, class_weights, mean_loss, try_loss

LABELS = torch.tensor([0] * 70 + [1] * 20 + [2] * 10)
NAMES = ["ant", "bee", "cat"]


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12, 3, generator=generator) * 3, torch.randint(3, (12,), generator=generator)


def weights(given, **settings):
    return class_weights(LossConfig(class_weights=given, **settings), LABELS, NAMES, 3)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("weighted", [False, True])
def test_labels_and_shares_of_one_class_give_the_same_loss_and_finite_gradients(batch, name, weighted):
    logits, labels = batch
    config = LossConfig(name=name, label_smoothing=0.1, gamma=0.5 if name == "focal" else None)
    training, evaluation = build_loss(config, torch.tensor([1.0, 2.0, 3.0]) if weighted else None)
    shares = F.one_hot(labels, 3).float()
    torch.testing.assert_close(training(logits, shares), training(logits, labels))
    torch.testing.assert_close(evaluation(logits, shares), evaluation(logits, labels))
    sure = (1000 * shares).requires_grad_()
    training(sure, labels).backward()
    assert sure.grad.isfinite().all()


def test_focal_loss_is_the_papers(batch):
    logits, labels = batch
    focal, _ = build_loss(LossConfig(name="focal", gamma=2.0))
    p = logits.softmax(dim=1)[torch.arange(12), labels]
    torch.testing.assert_close(focal(logits, labels), (-((1 - p) ** 2) * p.log()).mean())
    plain, _ = build_loss(LossConfig(name="focal", gamma=0.0))
    torch.testing.assert_close(plain(logits, labels), F.cross_entropy(logits, labels))
    # Of two classes with logits x and 0, a softmax is a sigmoid of x.
    pair = torch.stack([torch.zeros(12), logits[:, 0]], dim=1)
    expected = sigmoid_focal_loss(logits[:, 0], (labels > 0).float(), alpha=-1, gamma=2, reduction="mean")
    torch.testing.assert_close(focal(pair, (labels > 0).long()), expected)


def test_the_binary_loss_is_timms(batch):
    logits, labels = batch
    for smoothing in (0.0, 0.1):
        ours, _ = build_loss(LossConfig(name="binary_cross_entropy", label_smoothing=smoothing))
        theirs = BinaryCrossEntropy(smoothing=smoothing)
        torch.testing.assert_close(ours(logits, labels), theirs(logits, labels))


def test_balanced_weights_are_scikit_learns():
    expected = compute_class_weight("balanced", classes=np.arange(3), y=LABELS.numpy())
    assert weights("balanced").tolist() == pytest.approx(expected.tolist())
    assert float(weights("balanced")[LABELS].mean()) == pytest.approx(1.0)


def test_effective_weights_are_those_of_the_paper():
    found = weights("effective", class_weights_beta=0.9)
    expected = torch.tensor([(1 - 0.9) / (1 - 0.9**count) for count in (70, 20, 10)])
    torch.testing.assert_close(found, expected * 3 / expected.sum())
    assert weights("effective", class_weights_beta=0.0).tolist() == [1.0, 1.0, 1.0]


def test_weights_can_be_listed_or_named_and_a_class_that_is_none_is_refused():
    assert weights(None) is None
    assert weights([1, 2, 3.5]).tolist() == [1.0, 2.0, 3.5]
    assert weights({"bee": 4}).tolist() == [1.0, 4.0, 1.0]
    in_another_form = LossConfig(class_weights={"ba\u0308r": 4})
    assert class_weights(in_another_form, LABELS, ["ant", "bee", "b\u00e4r"], 3).tolist() == [1.0, 1.0, 4.0]
    with pytest.raises(DataError, match=r"a weight for beee, which is not a class of the data; did you mean bee\?"):
        check_class_names(LossConfig(class_weights={"beee": 4}), NAMES)
    with pytest.raises(
        DataError, match="a weight for newt, which is not a class of the data; its classes are ant, bee and c"
    ):
        check_class_names(LossConfig(class_weights={"newt": 4}), NAMES)


def test_weights_of_other_classes_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(DataError, match="a weight for newt"):
        fit(compose([*SMALL, "loss.class_weights={newt: 5}", f"paths.output_dir={tmp_path}/out"]))
    assert not (tmp_path / "out").exists()


def test_a_weighted_batch_has_the_same_loss_in_parts(batch):
    logits, labels = batch
    training, evaluation = build_loss(LossConfig(), torch.tensor([1.0, 5.0, 9.0]))
    halves = [training(logits[part::2], labels[part::2]) for part in range(2)]
    torch.testing.assert_close(torch.stack(halves).mean(), training(logits, labels))
    each = F.cross_entropy(logits, labels, reduction="none") * torch.tensor([1.0, 5.0, 9.0])[labels]
    torch.testing.assert_close(training(logits, labels), each.mean())
    torch.testing.assert_close(evaluation(logits, labels), F.cross_entropy(logits, labels))


@pytest.mark.parametrize(
    ("loss", "given"),
    [
        (partial(F.cross_entropy, reduction="none"), r"a tensor of shape \(12,\)"),
        (lambda logits, labels: float(F.cross_entropy(logits, labels)), "a float"),
        (lambda logits, labels: F.cross_entropy(logits.detach(), labels), "one that is detached from the logits"),
    ],
)
def test_what_a_loss_of_the_users_returns_is_checked(batch, loss, given):
    logits, labels = batch
    with pytest.raises(PartError, match=f"^my_lab.loss must return the mean loss, a scalar tensor, not {given}$"):
        mean_loss(loss, "my_lab.loss", logits.requires_grad_(), labels)
    assert mean_loss(F.cross_entropy, "my_lab.loss", logits.detach(), labels).dim() == 0, "evaluation has no gradient"


def test_losses_of_pytorch_take_several_labels_per_image(batch):
    logits, labels = batch
    several = F.one_hot(labels, 3).to(torch.uint8)
    given = mean_loss(torch.nn.BCEWithLogitsLoss(), "torch.nn.BCEWithLogitsLoss", logits, several)
    assert given == LOSSES["binary_cross_entropy"](logits, several)


@pytest.mark.parametrize(
    ("loss", "given"),
    [
        ("timm.loss.SoftTargetCrossEntropy", r"labels \(2,\), as in validation"),
        ("torch.nn.MultiMarginLoss", r"shares of classes \(2, 10\), as in training with MixUp and CutMix"),
    ],
)
def test_a_loss_of_the_users_is_tried_on_the_targets_of_training_and_validation_first(tmp_path, loss, given):
    with pytest.raises(PartError, match=f"^{loss} failed: .*; given {given}$"):
        fit(compose([*SMALL, f"loss={loss}", "augment.mixup=0.8", f"paths.output_dir={tmp_path}"]))
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / "metrics.csv").exists()


class Temperature(torch.nn.Module):
    def __init__(self, trained=True):
        super().__init__()
        self.log = torch.nn.Parameter(torch.zeros(()), requires_grad=trained)

    def forward(self, logits, targets):
        return F.cross_entropy(logits * self.log.exp(), targets)


def test_a_loss_of_the_users_with_weights_which_would_not_be_trained_is_refused(batch):
    name = f"{__name__}.Temperature"
    with pytest.raises(PartError, match=f"^{name} has weights, which are not trained: put them into the model"):
        build_loss(LossConfig(name=name))
    training, _ = build_loss(LossConfig(name=name, options={"trained": False}))
    torch.testing.assert_close(training(*batch), F.cross_entropy(*batch))


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("batches", torch.tensor(0))

    def forward(self, logits, targets):
        self.batches = self.batches + self.training  # another tensor
        return F.cross_entropy(logits, targets)


class Lazy(Counting):
    """Resizes a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("size", torch.ones(1))

    def forward(self, logits, targets):
        self.size = torch.ones(len(logits))
        return super().forward(logits, targets)


def step_seconds(module):
    trainer = SimpleNamespace(world_size=1, precision_plugin=SimpleNamespace(train_step_context=nullcontext))
    return Compilation("blocks", True, print, nullcontext)._step_seconds(trainer, module)


@pytest.mark.parametrize("targets", ["digit", "digit,above5"])
def test_the_state_of_a_loss_of_the_users_is_that_of_training_alone_and_in_checkpoints(targets):
    config = compose([*SMALL, f"loss={__name__}.Counting", f"data.targets=[{targets}]"])
    module = Classifier(config, steps=1, images_per_step=2)
    logits, labels = torch.randn(2, config.model.num_classes), torch.zeros(2, targets.count(",") + 1).long().squeeze(1)

    def count(module=module):
        return {int(value) for name, value in module.state_dict().items() if "batches" in name}

    mean_loss(module.training_criterion, config.loss.name, logits, labels)
    (once,) = count()
    module.eval()
    mean_loss(module.criterion, config.loss.name, logits, labels)
    module.train()
    assert step_seconds(module) > 0
    assert count() == {once}
    checkpoint = {"state_dict": module.state_dict(), "config": to_plain(config)}
    assert count(classifier_from(config, checkpoint)) == {once}
    checkpoint["state_dict"]["criterion.more"] = torch.ones(2)
    with pytest.raises(RunError, match=r"Counting has other buffers than in the checkpoint, more: set back how it was"):
        classifier_from(config, checkpoint)


def test_a_loss_of_the_users_that_makes_or_resizes_a_buffer_is_refused():
    for targets in ("digit", "digit,above5"):
        config = compose([*SMALL, f"loss={__name__}.Lazy", f"data.targets=[{targets}]"])
        with pytest.raises(PartError, match=r"\.Lazy makes or resizes size in training; register it with its shape in"):
            try_loss(config)
        try_loss(replace(config, loss=LossConfig(name=f"{__name__}.Counting")))


def test_weights_move_with_the_model_and_are_no_part_of_its_checkpoint():
    config = compose(["model=vit_nano", "depth=1"])
    module = Classifier(config, steps=1, images_per_step=1, class_weights=torch.ones(10)).to(torch.float64)
    assert module.training_criterion.weight.dtype == torch.float64
    assert not any("weight" in name and "criterion" in name for name in module.state_dict())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loss=focl"], "did you mean loss=focal?"),
        (["loss.class_weights=balance"], "did you mean balanced?"),
        (["loss.class_weights=[1,2]"], "has 2 numbers for 10 classes"),
        (["loss.class_weights={cat: -1}"], "must be a number > 0"),
        (["loss.class_weights=3"], "must be balanced, effective, a list of 10 numbers, or {class: number}"),
        (["loss.gamma=2"], "belongs to focal"),
        (["loss.class_weights=effective", "data.sampling=balanced"], "set one of them"),
        (["data.sampling=even"], "is not one of shuffle, balanced"),
        (["data.train_fraction=0"], "must be > 0 and <= 1"),
        (["data.train_fraction=1.1"], "must be > 0 and <= 1"),
        (["data.train_fraction=0.1", "data.per_class=3"], "set one of them"),
        (["data.folds=5"], "-m data.fold=range(5)"),
        (["data.fold=1"], "did you mean data.folds=5?"),
        (["data.folds=5", "data.fold=5"], "they count from 0"),
        (["callbacks.metrics=[macro_f]"], "did you mean macro_f1?"),
        (["callbacks.monitor=val/balanced"], "did you mean val/balanced_acc?"),
    ],
)
@pytest.mark.whole
def test_settings_of_uneven_data_that_cannot_be_are_refused_in_one_line(refusal, overrides, message):
    (fault,) = refusal(*overrides)
    assert message in str(fault)
