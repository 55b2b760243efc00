"""Targets: the questions that one model answers about an image, each with classes of its own. Imports no torch.

A column of a CSV file is a target. For data sets of digits they are named here.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vitrine.config.schema import TrainConfig
from vitrine.errors import Fault
from vitrine.text import nearest


@dataclass(frozen=True)
class Target:
    """A question whose answer follows from the class of a data set.

    Attributes:
        classes: names of its classes.
        of: maps the data set's class, an index, to one of them.
    """

    classes: Sequence[str]
    of: Callable[[int], int]


OF_DIGITS = {
    "digit": Target([str(digit) for digit in range(10)], lambda digit: digit),
    "above5": Target(["no", "yes"], lambda digit: int(digit > 5)),
}
# By data.name; those of csv are its columns.
TARGETS: dict[str, Mapping[str, Target]] = {"digits": OF_DIGITS, "mnist": OF_DIGITS}
OTHER_COLUMNS = {"path": "image file", "split": "split"}  # of a CSV file


def with_target(config: TrainConfig, name: str) -> TrainConfig:
    """Return the configuration of a model that answers ``name``, one of the targets, alone."""
    classes = config.data.target_classes[config.data.targets.index(name)]
    data = replace(config.data, targets=[name], target_classes=[classes], num_classes=classes)
    return replace(config, data=data, model=replace(config.model, num_classes=classes))


def named_for(target: str, file: str) -> str:
    """Return the name of a file of one target: ``model_odd.onnx``; without a target, ``file`` as it is."""
    stem, dot, suffix = file.partition(".")
    name = re.sub(r"[^\w-]+", "_", target)
    return f"{stem}_{name}{dot}{suffix}" if target else file


def target_faults(data: str, targets: Sequence[str]) -> Iterator[Fault]:
    """Yield what is wrong with the names in ``data.targets`` for the data source ``data``."""
    if not targets:
        return
    given, known = f"[{','.join(targets)}]", TARGETS.get(data, {})
    if data != "csv" and not known:
        problem = f"is for data=csv, whose columns are targets, and for {' and '.join(TARGETS)}, not for data={data}"
        yield Fault("data.targets", given, problem, "data.targets=[]")
    elif len(set(targets)) < len(targets):
        yield Fault("data.targets", given, "names a target twice")
    elif data == "csv" and (other := next((name for name in targets if name in OTHER_COLUMNS), "")):
        yield Fault("data.targets", given, f"{other} is not a target: that column is the {OTHER_COLUMNS[other]}")
    elif known and (unknown := [name for name in targets if name not in known]):
        problem = f"{unknown[0]} is not one of the targets of data={data}: {', '.join(known)}"
        yield Fault("data.targets", given, problem, nearest(unknown[0], known))
