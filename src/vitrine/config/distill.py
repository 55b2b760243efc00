"""Knowledge distillation: its configuration, and the checks that need no data and no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrine.config.fields import choice, number, setting
from vitrine.config.model import missing_weights
from vitrine.errors import Fault

KINDS = ("soft", "hard")


@dataclass
class DistillConfig:
    """Distillation from a trained run, the teacher, whose answers the model learns beside the labels.

    The training loss is (1 - weight) * loss + weight * distillation loss (training/distill.py).

    Attributes:
        name: what is learned of the teacher's answers: their probabilities (``soft``), or the likeliest class
            (``hard``).
        teacher: folder of the run that teaches, by the model of its best epoch; null is none.
        weight: of the distillation loss; the loss of the labels has the rest.
        temperature: of ``soft``, what both models' logits are divided by.
    """

    name: str = choice(KINDS, "soft")
    teacher: str | None = setting(None, may_change_on_resume=True, path=True)
    weight: float = number(0.1, ge=0, le=1)
    temperature: float | None = number(3.0, gt=0, le=100)

    @property
    def is_on(self) -> bool:
        """Whether there is a teacher with any weight."""
        return self.teacher is not None and self.weight > 0


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


def distill_faults(
    config: DistillConfig,
    *,
    multi_label: bool,
    targets: Sequence[str],
    classes: int,
    outputs: int,
    finetune: str,
    resumes: bool = False,
) -> Iterator[Fault]:
    """Yield combinations that exclude each other.

    Args:
        config: how the model is taught.
        multi_label: ``data.multi_label``.
        targets: ``data.targets``.
        classes: ``data.num_classes``.
        outputs: ``model.num_classes``.
        finetune: ``finetune.name``.
        resumes: whether a run is resumed, whose teacher is looked for once it is known to train on.
    """
    if config.name == "soft" and config.temperature is None:
        yield Fault("distill.temperature", "null", "is required by distill=soft", "distill.temperature=3.0")
    if config.name == "hard" and config.temperature is not None:
        problem = "belongs to soft, not to distill=hard"
        yield Fault("distill.temperature", f"{config.temperature:g}", problem, "distill=soft")
    if not config.is_on:
        return
    source = str(config.teacher)
    if not resumes and (problem := missing_teacher(source)):
        yield Fault("distill.teacher", source, problem)
    if multi_label:
        problem = "teaches one class per image, and data.multi_label=true has several"
        yield Fault("distill.teacher", source, problem, "distill.teacher=null")
    elif len(targets) > 1:
        problem = f"teaches one target, and data.targets=[{','.join(targets)}] are several"
        yield Fault("distill.teacher", source, problem, "distill.teacher=null")
    elif outputs != classes:
        problem = f"must be {classes}, the number of classes, with distill.teacher"
        yield Fault("model.num_classes", str(outputs), problem)
    if finetune == "linear_probe":
        problem = "trains on features, which may be computed once, and a teacher needs the images"
        yield Fault("finetune", finetune, f"{problem} of each step", "finetune=last_blocks")
