"""Metrics in addition to accuracy and loss, computed once from the logits of all images of a split.

Some functions of torchmetrics keep tens of bytes per logit or per pair of classes, with trainer.deterministic per image
and pair. Where there may be many classes, theirs are computed here with no more than another copy of the logits.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from numbers import Real
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.functional.classification.auroc import binary_auroc
from torchmetrics.functional.classification.average_precision import multilabel_average_precision
from torchmetrics.functional.classification.calibration_error import multiclass_calibration_error
from torchmetrics.functional.classification.f_beta import multilabel_f1_score
from torchmetrics.utilities.data import dim_zero_cat

from vitrine.config.metrics import ROUNDING, extra_metrics
from vitrine.config.parts import PartError, as_part_error, function, parts_of
from vitrine.config.schema import CallbacksConfig
from vitrine.runs.image_groups import effective_images
from vitrine.runs.predictions import BINS, class_counts

QUANTILE = NormalDist().inv_cdf(0.975)  # scipy.stats takes a second to import
LISTED = 20  # classes that have metrics of their own

Function = Callable[[Tensor, Tensor], Any]  # of logits and labels, as `measure` takes them
NO_METRICS: Mapping[str, Function] = MappingProxyType({})

# Metrics of one label per image take logits (N, num_classes), float32 or float64, and labels (N,) int64, those of
# several labels the same logits and labels (N, num_classes) of 0 and 1. They return a scalar.


def balanced_acc(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over classes, of those that have images, of the share of their images that are classified correctly."""
    correct, of_class, _ = _counts(logits, labels)
    return (correct / of_class)[of_class > 0].mean()


def macro_f1(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over classes of F1; classes that are neither true nor predicted of any image are left out."""
    correct, of_class, taken = _counts(logits, labels)
    return (2 * correct / (of_class + taken))[of_class + taken > 0].mean()


def _counts(logits: Tensor, labels: Tensor) -> list[Tensor]:
    """Return :func:`class_counts`, int64 on the CPU, where counting is deterministic."""
    predicted = logits.argmax(dim=1)
    return [*map(torch.from_numpy, class_counts(labels.cpu().numpy(), predicted.cpu().numpy(), logits.shape[1]))]


def top5_acc(logits: Tensor, labels: Tensor) -> Tensor:
    """Share of images whose class is among the five with the largest logits."""
    return (logits.topk(5, dim=1).indices == labels[:, None]).any(dim=1).float().mean()


def auroc(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over classes with images of the area under the ROC curve against all others; NaN if there is one class."""
    present = labels.unique().tolist()
    if len(present) < 2:
        return torch.tensor(torch.nan)
    logits, labels = logits.cpu(), labels.cpu()  # not every GPU has float64
    return _mean_area((odds, labels == one) for one, odds in zip(present, _log_odds(logits, present), strict=True))


def _log_odds(logits: Tensor, classes: Sequence[int]) -> Iterator[Tensor]:
    """Yield log(p / (1 - p)) of the probability of each of ``classes``, (N,) float32, also where p would round to 1."""
    highest, top = logits.max(dim=1)
    highest = highest.double()
    others = logits.scatter(1, top[:, None], -torch.inf)  # than the likeliest class
    rest = torch.cat([part.double().logsumexp(dim=1) for part in others.tensor_split(4)])
    total = 1 + (rest - highest).exp()  # relative to the likeliest class
    for one in classes:
        of_class = logits[:, one].double()
        below = of_class - highest
        yield torch.where(top == one, of_class - rest, below - (total - below.exp()).log()).float()


def _mean_area(classes: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the mean area under the ROC curves of scores (N,) and truth (N,) bool, taken class by class."""
    classes = ((_ranks(scores), true) for scores, true in classes)
    return torch.stack([binary_auroc(given, true.long(), validate_args=False) for given, true in classes]).mean()


def _ranks(scores: Tensor) -> Tensor:
    """Return numbers in [0, 1) of the same order as the scores (N,), ties included: many probabilities would be 1."""
    return scores.unique(return_inverse=True)[1] / len(scores)


def ece(logits: Tensor, labels: Tensor) -> Tensor:
    """Expected calibration error: mean distance of the likeliest class's probability from its accuracy, in bins."""
    probabilities = logits.softmax(dim=1)
    return multiclass_calibration_error(
        probabilities, labels, logits.shape[1], n_bins=BINS, norm="l1", validate_args=False
    )


def multi_label_macro_f1(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over classes of F1 at probability 0.5; classes that are neither true nor predicted of any image left out."""
    scores = multilabel_f1_score(logits.sigmoid(), labels, labels.shape[1], average="none", validate_args=False)
    return scores[(labels.bool() | (logits > 0)).any(dim=0)].mean()


def multi_label_auroc(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of the area under the ROC curve over the classes that some images have and others lack; NaN without any."""
    has = labels.bool()
    mixed = (has.any(dim=0) & ~has.all(dim=0)).nonzero().flatten().tolist()
    if not mixed:
        return torch.tensor(torch.nan)
    return _mean_area((logits[:, one], has[:, one]) for one in mixed)


def mean_average_precision(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over classes with images of their average precision; NaN where no image has a class."""
    with_images = labels.bool().any(dim=0)
    return average_precisions(logits[:, with_images], labels[:, with_images]).mean()


def average_precisions(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the area under the precision-recall curve of each class, as a step function; (num_classes,)."""
    if not labels.shape[1]:
        return logits.new_empty(0)
    ranks = torch.stack([_ranks(of_class) for of_class in logits.unbind(dim=1)], dim=1)
    return multilabel_average_precision(ranks, labels.long(), labels.shape[1], average="none", validate_args=False)


def all_labels_right(logits: Tensor, targets: Tensor) -> Tensor:
    """Return whether an image's labels are those with a probability above 0.5, all of them; (B,) bool.

    Args:
        logits: (B, num_classes).
        targets: (B, num_classes), 0 and 1; of mixed images, what is above 0.5 counts.
    """
    return ((logits > 0) == (targets > 0.5)).all(dim=1)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "balanced_acc": balanced_acc,
    "macro_f1": macro_f1,
    "top5_acc": top5_acc,
    "auroc": auroc,
    "ece": ece,
}
MULTI_LABEL_FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "macro_f1": multi_label_macro_f1,
    "auroc": multi_label_auroc,
    "map": mean_average_precision,
}


def own_metrics(config: CallbacksConfig) -> dict[str, Function]:
    """Return the user's own metrics by their name in metrics.json; they return floats, or raise PartError.

    Raises:
        PartError: a class in a metric's place cannot be built.
    """
    parts = [part for part in parts_of(config) if part.key == "metrics"]
    return {part.name.rpartition(".")[2]: partial(_own, part.name, function(part)) for part in parts}


def _own(name: str, metric: Function, logits: Tensor, labels: Tensor) -> float:
    """Return the value of a user's own metric; NaN, without calling it, where logits are not finite."""
    if not logits.isfinite().all():  # a diverged run is reported as such
        return math.nan
    with as_part_error(name, "failed"):
        value = metric(logits.clone(), labels.to(torch.int64, copy=True))  # which it may change
        if isinstance(value, Tensor) and value.dim() == 0:
            value = value.item()
        finite = isinstance(value, Real) and math.isfinite(value)  # OverflowError for an int beyond all floats
    if finite and name.endswith("acc"):
        share = min(max(float(value), 0.0), 1.0)
        if abs(value - share) <= ROUNDING:
            return share
        raise PartError(name, f"must return a share in [0, 1], not {value}, since its name ends in acc; or rename it")
    if finite:
        return float(value)
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
    given = value if isinstance(value, Real) else f"a {type(value).__name__}{shape}"
    raise PartError(name, f"must return a finite number, not {given}")


def measure(
    logits: Tensor, labels: Tensor, names: Iterable[str] | None = None, own: Mapping[str, Function] = NO_METRICS
) -> dict[str, float]:
    """Return metrics by name, NaN if a logit is; ``top5_acc`` with more than five classes only.

    Args:
        logits: (N, num_classes), float32 or float64.
        labels: (N,) int64; or (N, num_classes) of 0 and 1, where images have several.
        names: of the metrics; ``None`` for all that are of such labels.
        own: the user's, by name.
    """
    multi_label = labels.dim() == 2
    functions = {**(MULTI_LABEL_FUNCTIONS if multi_label else FUNCTIONS), **own}
    chosen = (*extra_metrics(multi_label=multi_label), *own) if names is None else names
    possible = [name for name in chosen if name != "top5_acc" or logits.shape[1] > 5]
    if logits.isnan().any():  # an order of them means nothing
        return dict.fromkeys(possible, math.nan)
    return {name: float(functions[name](logits, labels)) for name in possible}


def class_metrics(
    logits: Tensor, labels: Tensor, classes: Sequence[str], groups: np.ndarray | None = None
) -> dict[str, float]:
    """Return the accuracy of each class that has images, and its interval, :func:`share_interval`.

    The keys are ``class_acc/NAME``, ``class_acc_low/NAME`` and ``class_acc_high/NAME``. There are none with more than
    ``LISTED`` classes. Where images have several labels, it is the average precision of each class, ``class_ap/NAME``.

    Args:
        logits: (N, num_classes), float32 or float64.
        labels: (N,) int64; or (N, num_classes) of 0 and 1, where images have several.
        classes: their names.
        groups: (N,) the number of each image's group, if they have any.
    """
    if len(classes) > LISTED:
        return {}
    if labels.dim() == 2:
        with_images = labels.bool().any(dim=0)
        precisions = average_precisions(logits[:, with_images], labels[:, with_images]).tolist()
        names = [name for name, has in zip(classes, with_images.tolist(), strict=True) if has]
        return {f"class_ap/{name}": value for name, value in zip(names, precisions, strict=True)}
    found: dict[str, float] = {}
    correct, known = (logits.argmax(dim=1) == labels).numpy(), labels.numpy()
    for index, name in enumerate(classes):
        if (of_class := known == index).any():
            values = share_interval(correct[of_class], None if groups is None else groups[of_class])
            keys = ("class_acc", "class_acc_low", "class_acc_high")
            found |= {f"{key}/{name}": value for key, value in zip(keys, values, strict=True)}
    return found


def share_interval(correct: np.ndarray, groups: np.ndarray | None = None) -> tuple[float, float, float]:
    """Return the share of correct images, and both ends of its 95 % interval (Wilson's).

    Where images come in groups, it is that of as many independent images as tell as much,
    :func:`vitrine.runs.image_groups.effective_images`.

    Args:
        correct: (N,) bool, N at least 1.
        groups: (N,) the number of each image's group, if they have any.
    """
    right, images = int(correct.sum()), len(correct)
    effective = images if groups is None else effective_images(correct, groups)
    return right / images, *wilson_interval(right * (effective / images), effective)


def wilson_interval(correct: float, count: float) -> tuple[float, float]:
    """Return the 95 % interval of a proportion (Wilson, 1927), within [0, 1]; it is not degenerate at 0 and 1."""
    share, squared = correct / count, QUANTILE**2
    centre = share + squared / (2 * count)
    reach = QUANTILE * math.sqrt(share * (1 - share) / count + squared / (4 * count**2))
    low, high = ((centre + side * reach) / (1 + squared / count) for side in (-1, 1))
    return low if correct else 0.0, high if correct < count else 1.0  # exactly, which rounding would miss


def by_target(logits: Tensor, labels: Tensor, classes_per_target: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Return the logits (B, classes) and labels (B,) of each target; all there are, unless there are several.

    Args:
        logits: (B, num_classes).
        labels: (B, targets) int64 of several targets.
        classes_per_target: number of classes of each target.
    """
    if len(classes_per_target) == 1:
        return [(logits, labels)]
    return list(zip(logits.split(list(classes_per_target), dim=1), labels.unbind(dim=1), strict=True))


class LogitsAndLabels(Metric):
    """Logits and labels of a split, kept on the device until :func:`measure` takes them, over all ranks."""

    logits: list[Tensor]
    labels: list[Tensor]

    def __init__(self, names: Sequence[str], own: Mapping[str, Function] = NO_METRICS, **settings: Any) -> None:
        super().__init__(**settings)
        self.names, self.own = names, own
        self.add_state("logits", [], dist_reduce_fx="cat")
        self.add_state("labels", [], dist_reduce_fx="cat")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch: logits (B, num_classes), and labels as :func:`measure` takes them."""
        self.logits.append(logits)
        self.labels.append(labels)

    def compute(self) -> dict[str, float]:
        """Return the metrics by name."""
        with torch.no_grad():
            return measure(dim_zero_cat(self.logits), dim_zero_cat(self.labels), self.names, self.own)
