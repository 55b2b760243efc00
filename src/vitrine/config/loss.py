"""The training loss: its configuration, and what can be said of the weights of classes without the data."""

import math
from dataclasses import dataclass
from typing import Any

from vitrine.config.fields import as_float, number, part, part_options
from vitrine.config.parts import Interface
from vitrine.errors import Fault
from vitrine.text import as_override, nearest, plural

LOSSES = ("cross_entropy", "softmax_cross_entropy", "focal", "binary_cross_entropy")
CLASS_WEIGHTS = ("balanced", "effective")


@dataclass
class LossConfig:
    """The training loss.

    Attributes:
        name: ``softmax_cross_entropy`` applies softmax twice, a common mistake. For ten classes it cannot fall below
            1.461. The others are in training/losses.py.
        options: arguments of a loss of your own.
        label_smoothing: share of each target that is spread over all classes (arXiv:1512.00567, section 7).
        gamma: exponent of ``focal``, and of no other loss.
        class_weights: factors of the images' training losses by class: ``balanced`` is inverse to the number of
            training images, ``effective`` to their effective number (arXiv:1901.05555); a list has a number for each
            class, a mapping the weights of some by name, the others' being 1. Evaluation takes no weights.
        class_weights_beta: beta of ``effective``, and of no other weights.
    """

    name: str = part(LOSSES, "cross_entropy", interface=Interface(("logits", "targets"), function=True))
    options: dict[str, Any] = part_options()
    label_smoothing: float = number(0.0, ge=0, lt=1)
    gamma: float | None = number(None, ge=0, le=100)
    class_weights: Any = None
    class_weights_beta: float = number(0.999, ge=0, lt=1)

    def __post_init__(self) -> None:
        given = self.class_weights
        if isinstance(given, str) and given[:1] + given[-1:] == "{}":  # with names that Hydra's grammar cannot read
            pairs = [pair.rpartition(":") for pair in given[1:-1].split(",")]
            given = {name.strip(" '\""): as_float(weight.strip()) for name, _, weight in pairs}
        if isinstance(given, dict):  # typed {0: 3} replaces {"0": 2} of a file
            given = {str(name): weight for name, weight in given.items()}
        self.class_weights = given


def class_weight_fault(given: object, classes: int) -> Fault | None:
    """Return what is wrong with ``loss.class_weights``, as far as it can be known without the names of the classes."""
    key, shown = "loss.class_weights", as_override(given)
    allowed = f"{', '.join(CLASS_WEIGHTS)}, a list of {classes} numbers, or {{class: number}}"
    if isinstance(given, str):
        if given in CLASS_WEIGHTS:
            return None
        return Fault(key, shown, f"is not one of {allowed}", nearest(given, CLASS_WEIGHTS))
    if not isinstance(given, (list, dict)):
        return Fault(key, shown, f"must be {allowed}")
    if isinstance(given, list) and len(given) != classes:
        return Fault(key, shown, f"has {plural(len(given), 'number')} for {classes} classes")
    for value in given if isinstance(given, list) else given.values():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            return Fault(key, str(value), "must be a number > 0")
    return None
