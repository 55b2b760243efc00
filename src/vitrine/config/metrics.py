"""Metrics of classifiers on validation and test images: their names, and whether lower is better."""

import re
from collections.abc import Mapping

BASIC = ("acc", "loss")  # with several labels per image, it counts as correct if all of them are

# Measured on the test images once; on validation images after each epoch if callbacks.metrics names them, or if they
# are monitored.
EXTRA = ("balanced_acc", "macro_f1", "top5_acc", "auroc", "ece", "map")

MULTI_LABEL = ("macro_f1", "auroc", "map")  # those of EXTRA that are of several labels per image
SINGLE_LABEL = tuple(name for name in EXTRA if name != "map")

VALIDATION = tuple(f"val/{name}" for name in BASIC + EXTRA)
TEST = tuple(f"test/{name}" for name in BASIC + EXTRA)

TITLES = {  # in tables and sentences
    "acc": "accuracy",
    "balanced_acc": "balanced accuracy",
    "macro_f1": "macro F1",
    "top5_acc": "top-5 accuracy",
    "auroc": "AUROC",
    "ece": "calibration error",
    "map": "mean average precision",
    "class_acc": "accuracy",
    "class_ap": "average precision",
}

OF_CLASSES = ("class_acc", "class_acc_low", "class_acc_high", "class_ap")  # of each class: test/class_acc/NAME
COSTS = ("parameters", "flops_per_image")
LOWER = {"ece", "error", "errors", "loss", "seconds", "nll", "mae", "mse", "rmse", "brier", "perplexity"}  # in names
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^A-Z_]+")  # of a name: MulticlassNLL has two, like error_rate
ROUNDING = 1e-4  # beyond 0 or 1: a mean over classes, in float32, may be 1.0000001
RESERVED = {*BASIC, *EXTRA, *TITLES, *OF_CLASSES}  # not names of a user's own metrics


def extra_metrics(*, multi_label: bool) -> tuple[str, ...]:
    """Return the metrics of ``EXTRA`` that are measured on data with one label per image, or with several."""
    return MULTI_LABEL if multi_label else SINGLE_LABEL


def kind_of(name: str) -> str:
    """Return which metric a name in metrics.json is of: ``acc`` for ``test/acc`` and for ``test/acc/NAME`` of a target.

    What follows it is the user's own name of a class or a target, and says nothing of the metric.
    """
    return name.split("/")[min(1, name.count("/"))]


def is_of_a_class(name: str) -> bool:
    """Whether a metric in metrics.json is that of one class: ``test/class_acc/NAME``."""
    return kind_of(name) in OF_CLASSES and name.count("/") > 1


def is_share(name: str) -> bool:
    """Whether a metric in metrics.json is in [0, 1]."""
    kind = kind_of(name)
    return kind.endswith("acc") or kind in (*EXTRA, *OF_CLASSES)


def bias_of(name: str) -> str:
    """Return why a difference in a metric in metrics.json is no finding, and what tells more; empty if it is one."""
    if kind_of(name) != "ece":
        return ""
    loss = f"{name.partition('/')[0]}/loss"
    return (
        "of finitely many images, the calibration error is above 0 for perfect probabilities, too, and more so for "
        f"less accurate ones, so a difference may be one of accuracy; cross-entropy, {loss} where it is trained, is a "
        "proper score"
    )


def difference_problem(name: str, difference: float) -> str:
    """Return why no two values of a metric differ by ``difference``; empty if they can."""
    is_none = is_share(name) and difference >= 1
    return "must be below 1, as the metric is in [0, 1]: 0.01 is one point" if is_none else ""


def by_class(metrics: Mapping[str, float], stage: str, digits: int = 2) -> list[str]:
    """Return the metrics of each class: ``cat 0.95 (0.91 to 0.98)``, or its average precision: ``cat AP 0.9500``.

    Args:
        metrics: by their names in metrics.json.
        stage: ``test`` or ``val``.
        digits: of an accuracy after the point.
    """
    found, prefix = [], f"{stage}/class_acc/"
    for key, value in metrics.items():
        if key.startswith(prefix):
            name = key.removeprefix(prefix)
            low, high = (metrics.get(f"{stage}/class_acc_{end}/{name}") for end in ("low", "high"))
            interval = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
            found.append(f"{name} {value:.{digits}f}{interval}")
    prefix = f"{stage}/class_ap/"
    return found + [f"{key.removeprefix(prefix)} AP {metrics[key]:.4f}" for key in metrics if key.startswith(prefix)]


def lower_is_better(name: str) -> bool:
    """Whether a metric of a run is an error, a loss or a cost, by its name in metrics.json or in a search."""
    kind = kind_of(name)
    return kind in COSTS or not LOWER.isdisjoint(word.lower() for word in WORD.findall(kind))
