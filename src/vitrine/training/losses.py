"""Losses of logits and targets, weights of classes in them, and the mean loss over the batches of a split."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import Metric

from vitrine.config import TrainConfig
from vitrine.config.loss import LossConfig
from vitrine.config.parts import PartError, as_part_error, function, is_dotted, part_at
from vitrine.errors import DataError, RunError
from vitrine.text import did_you_mean, listed, nearest, nfc
from vitrine.training.metrics import by_target

Loss = Callable[[Tensor, Tensor], Tensor]


def softmax_cross_entropy(
    logits: Tensor, targets: Tensor, label_smoothing: float = 0.0, weight: Tensor | None = None
) -> Tensor:
    """Cross-entropy of a softmax's output taken for logits, as in some tutorials; see :func:`cross_entropy`."""
    return cross_entropy(logits.softmax(dim=1), targets, label_smoothing, weight)


def cross_entropy(
    logits: Tensor, targets: Tensor, label_smoothing: float = 0.0, weight: Tensor | None = None
) -> Tensor:
    """PyTorch's cross-entropy, but with weights, too, the mean over images.

    PyTorch's divides by the sum of the weights in the batch: there an image counts the more, the fewer rare ones are in
    its batch.

    Args:
        logits: (B, num_classes), float32 or float64.
        targets: labels (B,) int64, or shares of classes (B, num_classes) of the type of ``logits``. With several labels
            per image, (B, num_classes) uint8 of 0 and 1, for :func:`binary_cross_entropy` only.
        label_smoothing: in [0, 1).
        weight: of each class, (num_classes,).

    Returns:
        A scalar.
    """
    if weight is None:
        return F.cross_entropy(logits, targets, label_smoothing=label_smoothing)
    return F.cross_entropy(logits, targets, weight, reduction="none", label_smoothing=label_smoothing).mean()


def focal(
    logits: Tensor, targets: Tensor, label_smoothing: float = 0.0, weight: Tensor | None = None, *, gamma: float
) -> Tensor:
    """Focal loss of a softmax (arXiv:1708.02002, equation 5): cross-entropy with the factor (1 - p) ** ``gamma``.

    p is the probability of the class that a term is about; other arguments are those of :func:`cross_entropy`.
    """
    log_p = logits.log_softmax(dim=1)
    factor = (1 - log_p.exp()).clamp(min=1e-7) ** gamma  # at 0, powers below 1 have no gradient
    terms = factor * log_p * shares_of(targets, logits, label_smoothing)
    return -(terms if weight is None else terms * weight).sum(dim=1).mean()


def binary_cross_entropy(
    logits: Tensor, targets: Tensor, label_smoothing: float = 0.0, weight: Tensor | None = None
) -> Tensor:
    """Mean over classes and images of the cross-entropy of a sigmoid for each class.

    Arguments are those of :func:`cross_entropy`; ``weight`` counts for an image by its class.
    """
    shares = shares_of(targets, logits, label_smoothing)
    losses = F.binary_cross_entropy_with_logits(logits, shares, reduction="none").mean(dim=1)
    return (losses if weight is None else losses * (shares_of(targets, logits) @ weight)).mean()


def shares_of(targets: Tensor, logits: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return targets as shares of classes (B, num_classes), smoothed as in arXiv:1512.00567, section 7."""
    classes = logits.shape[1]
    shares = F.one_hot(targets, classes).to(logits.dtype) if targets.dim() == 1 else targets.to(logits.dtype)
    return shares * (1 - label_smoothing) + label_smoothing / classes if label_smoothing else shares


LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": cross_entropy,
    "softmax_cross_entropy": softmax_cross_entropy,
    "focal": focal,
    "binary_cross_entropy": binary_cross_entropy,
}


class WeightedLoss(nn.Module):
    """A loss with weights of classes, which move with the model to its device."""

    weight: Tensor

    def __init__(self, loss: Callable[..., Tensor], weight: Tensor) -> None:
        super().__init__()
        self.loss = loss
        self.register_buffer("weight", weight, persistent=False)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the weighted mean loss, a scalar."""
        return self.loss(logits, targets, weight=self.weight)


class SumOverTargets(nn.Module):
    """The sum over targets of a loss of their own logits and labels.

    Args:
        loss: of logits (B, classes) and labels (B,). The state of a module is the sum's, too.
        name: ``loss.name``.
        classes_per_target: number of classes of each target.
    """

    def __init__(self, loss: Loss, name: str, classes_per_target: Sequence[int]) -> None:
        super().__init__()
        self.loss, self.name, self.classes_per_target = loss, name, classes_per_target

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(B, sum of ``classes_per_target``) logits and (B, targets) int64 labels -> a scalar."""
        pairs = by_target(logits, labels, self.classes_per_target)
        return torch.stack([mean_loss(self.loss, self.name, *pair) for pair in pairs]).sum()


class MeanLoss(Metric):
    """Mean loss over images, summed in ``dtype``. Unlike torchmetrics' MeanMetric, NaN batches propagate."""

    total: Tensor
    images: Tensor

    def __init__(self, dtype: torch.dtype = torch.float32, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state("total", torch.tensor(0.0, dtype=dtype), dist_reduce_fx="sum")
        self.add_state("images", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, loss: Tensor, images: int) -> None:
        """Add a batch of ``images`` images with mean loss ``loss``, a scalar."""
        self.total += loss * images
        self.images += images

    def compute(self) -> Tensor:
        """Return the mean, a scalar."""
        return self.total / self.images


def build_loss(
    config: LossConfig, class_weights: Tensor | None = None, classes_per_target: Sequence[int] = ()
) -> tuple[Loss, Loss]:
    """Return the loss to train with and the one to evaluate with, without label smoothing and weights of classes.

    Both map logits (B, num_classes) float32 and labels (B,) int64, or shares of classes (B, num_classes) float32, to
    the mean over the images. Of several targets, with labels (B, targets) int64, the loss is the sum of theirs.

    Args:
        config: the loss.
        class_weights: of the classes in training.
        classes_per_target: number of classes of each target, where there are several.

    Raises:
        PartError: the user's loss cannot be built, or has weights to train.
    """
    training: Loss
    plain: Loss
    if (own := part_at(config, "name")) is not None:
        training = plain = function(own)
        if isinstance(training, nn.Module) and any(one.requires_grad for one in training.parameters()):
            problem = "has weights, which are not trained: put them into the model, or set requires_grad=False"
            raise PartError(own.name, problem)
    else:
        plain = LOSSES[config.name] if config.gamma is None else partial(LOSSES[config.name], gamma=config.gamma)
        training = partial(plain, label_smoothing=config.label_smoothing)
    if len(classes_per_target) > 1:
        trained, evaluated = (SumOverTargets(loss, config.name, classes_per_target) for loss in (training, plain))
        return trained, evaluated
    return training if class_weights is None else WeightedLoss(training, class_weights), plain


def mean_loss(loss: Loss, name: str, logits: Tensor, targets: Tensor) -> Tensor:
    """Return a loss of logits and targets, a scalar.

    Args:
        loss: as :func:`build_loss` returns it.
        name: ``loss.name``.
        logits: (B, num_classes).
        targets: as of ``loss``.

    Raises:
        PartError: the user's loss fails, or returns anything else, or in training a scalar without a gradient.
    """
    if targets.dtype == torch.uint8:  # several labels per image: PyTorch's own losses take shares alone
        targets = targets.to(logits.dtype)
    with as_part_error(name, "failed"):
        value = loss(logits, targets)
    given = f"a {type(value).__name__}"
    if isinstance(value, Tensor):
        given = f"a tensor of shape {tuple(value.shape)}"
        if value.dim() == 0:
            if value.requires_grad or not logits.requires_grad:
                return value
            given = "one that is detached from the logits"
    raise PartError(name, f"must return the mean loss, a scalar tensor, not {given}")


def try_loss(config: TrainConfig) -> None:
    """Call a loss of the user's with each kind of targets of a run: those of validation come after a whole epoch.

    Raises:
        PartError: as of :func:`mean_loss`, or it makes or resizes a buffer, which a checkpoint could not restore.
    """
    data, name, classes = config.data, config.loss.name, config.model.num_classes
    if not is_dotted(name):
        return
    _, plain = build_loss(config.loss, classes_per_target=data.classes_per_target)
    shapes = _shapes(plain)
    several = len(data.classes_per_target)
    labels = torch.zeros((2, several) if several > 1 else 2, dtype=torch.int64)
    kinds = {"labels": torch.zeros(2, classes, dtype=torch.uint8) if data.multi_label else labels}
    if config.augment.mixes:
        kinds["shares of classes"] = F.one_hot(torch.zeros(2, dtype=torch.int64), classes).float()
    for kind, targets in kinds.items():
        try:
            mean_loss(plain, name, torch.zeros(2, classes), targets)
        except PartError as error:
            when = "validation" if kind == "labels" else "training with MixUp and CutMix"
            raise PartError(name, f"{error.problem}; given {kind} {tuple(targets.shape)}, as in {when}") from error
    if changed := sorted(dict(_shapes(plain).items() - shapes.items())):
        problem = (
            f"makes or resizes {changed[0].removeprefix('loss.')} in training; register it with its shape in __init__"
        )
        raise PartError(name, problem)


def check_state(loss: Loss, name: str, stored: Mapping[str, Tensor]) -> None:
    """Raise RunError where a user's loss has other buffers than it had when a checkpoint was saved.

    Args:
        loss: the one to evaluate with.
        name: ``loss.name``.
        stored: its state in the checkpoint, by name.
    """
    own, known = _shapes(loss), {key: value.shape for key, value in stored.items()}
    if differ := [key for key in {**own, **known} if own.get(key) != known.get(key)]:
        raise RunError(f"loss={name} has other buffers than in the checkpoint, {listed(differ)}: set back how it was")


def _shapes(loss: Loss) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in loss.state_dict().items()} if isinstance(loss, nn.Module) else {}


def class_weights(config: LossConfig, labels: Tensor, classes: Sequence[str], num_classes: int) -> Tensor | None:
    """Return the weight of each class in training; ``None`` if all are equal.

    ``balanced`` is scikit-learn's: images / (classes * images of the class), so that the mean over images is 1.
    ``effective`` is (1 - beta) / (1 - beta ** images of the class), scaled to a sum of the number of classes
    (arXiv:1901.05555, equation 4).

    Args:
        config: the loss.
        labels: of the training images, (N,) int64.
        classes: names of the classes, among which are those of ``loss.class_weights``.
        num_classes: number of logits; those without a class have weight 1.

    Returns:
        (num_classes,) float32.
    """
    given = config.class_weights
    if given is None:
        return None
    weights = torch.ones(num_classes, dtype=torch.float64)
    counts = labels.cpu().bincount(minlength=num_classes).double()
    present = counts > 0
    if given == "balanced":
        weights[present] = len(labels) / (int(present.sum()) * counts[present])
    elif given == "effective":
        beta = config.class_weights_beta
        inverse = (1 - beta) / (1 - beta ** counts[present])
        weights[present] = inverse * (len(inverse) / inverse.sum())
    elif isinstance(given, list):
        weights[: len(given)] = torch.tensor(given, dtype=torch.float64)
    else:
        for name, value in given.items():
            weights[list(map(nfc, classes)).index(nfc(str(name)))] = value
    return weights.float()


def check_class_names(config: LossConfig, classes: Sequence[str]) -> None:
    """Raise DataError where ``loss.class_weights`` names a class that is not among ``classes``, those of the data."""
    if not isinstance(config.class_weights, dict):
        return
    known = set(map(nfc, classes))
    for name in map(str, config.class_weights):
        if nfc(name) not in known:
            hint = did_you_mean(nearest(name, classes)) or f"; its classes are {listed(classes, most=20)}"
            raise DataError(f"loss.class_weights has a weight for {name}, which is not a class of the data{hint}")
