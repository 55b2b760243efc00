"""Checks of distillation: whether its teacher can teach, and keys that exclude each other."""

from collections.abc import Iterator
from pathlib import Path

from vitrine.config.model import missing_weights
from vitrine.config.schema import TrainConfig
from vitrine.errors import Fault


def missing_teacher(source: str) -> str:
    """Return why no run at ``source`` can teach, as far as can be checked without reading it; "" if one can."""
    path = Path(source)
    try:
        if (path / "run.json").is_file() or (path.name != source and not path.exists()):
            return missing_weights(source)
        if not path.exists():
            return "there is no such folder: only runs teach"
    except OSError as error:  # a folder that may not be entered, or a name that is too long
        return f"cannot be read: {error.strerror}"
    return "is not the folder of a run: only runs teach"


def distill_faults(config: TrainConfig) -> Iterator[Fault]:
    """Yield combinations that exclude each other.

    The teacher of a run that is resumed is looked for once it is known to train on.
    """
    given, data = config.distill, config.data
    if given.name == "soft" and given.temperature is None:
        yield Fault("distill.temperature", "null", "is required by distill=soft", "distill.temperature=3.0")
    if given.name == "hard" and given.temperature is not None:
        problem = "belongs to soft, not to distill=hard"
        yield Fault("distill.temperature", f"{given.temperature:g}", problem, "distill=soft")
    if not given.is_on:
        return
    source = str(given.teacher)
    if config.resume is None and (problem := missing_teacher(source)):
        yield Fault("distill.teacher", source, problem)
    if data.multi_label:
        problem = "teaches one class per image, and data.multi_label=true has several"
        yield Fault("distill.teacher", source, problem, "distill.teacher=null")
    elif len(data.targets) > 1:
        problem = f"teaches one target, and data.targets=[{','.join(data.targets)}] are several"
        yield Fault("distill.teacher", source, problem, "distill.teacher=null")
    elif config.model.num_classes != data.num_classes:
        problem = f"must be {data.num_classes}, the number of classes, with distill.teacher"
        yield Fault("model.num_classes", str(config.model.num_classes), problem)
    if config.finetune.name == "linear_probe":
        problem = "trains on features, which may be computed once, and a teacher needs the images"
        yield Fault("finetune", "linear_probe", f"{problem} of each step", "finetune=last_blocks")
