"""Knowledge distillation: its configuration."""

from dataclasses import dataclass

from vitrine.config.fields import choice, number, setting

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
