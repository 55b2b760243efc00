"""Knowledge distillation: a trained run teaches the model (arXiv:1503.02531; DeiT, arXiv:2012.12877, section 4).

In each training step the teacher sees the same images as the model, augmented and mixed (arXiv:2106.05237), at its own
size and with its own normalisation.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.config import TrainConfig
from vitrine.config.distill import DistillConfig
from vitrine.config.distill_faults import missing_teacher
from vitrine.config.parts import names_of
from vitrine.config.schema import DataConfig
from vitrine.config.serialize import from_plain
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.image_dataset import ImageDataset
from vitrine.data.preparation import normalised
from vitrine.errors import ConfigError, Fault, RunError
from vitrine.runs import RunRecord
from vitrine.runs.user_code import refuse_edited_model
from vitrine.text import listed, nfc, plural
from vitrine.training.pretrained import leakage
from vitrine.training.weights import trained_model

MOST_NAMES = 3  # of classes, in a message


class Teacher(nn.Module):
    """A trained model that takes another model's images and answers in the order of its classes.

    Args:
        model: maps normalised images to logits.
        data: what it was trained on.
        outputs: the output of each class of the other model.
    """

    mean: Tensor
    std: Tensor
    outputs: Tensor

    def __init__(self, model: nn.Module, data: DataConfig, outputs: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        self.image_hw = data.image_hw
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(data, name)).reshape(1, -1, 1, 1))
        self.register_buffer("outputs", torch.tensor(outputs))
        self.eval()

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) in [0, 255], uint8 or float -> logits (B, classes)."""
        images = normalised(images, self.mean, self.std)
        if images.shape[2:] != self.image_hw:
            images = F.interpolate(images, size=self.image_hw, mode="bilinear", antialias=True)
        logits: Tensor = self.model(images)
        return logits[:, self.outputs]


@dataclass(frozen=True)
class Distillation:
    """A teacher, and the loss of what the model learns of it.

    Not a module: the teacher is not in the model's state dict, is not trained, and is not averaged.

    Attributes:
        config: how the teacher's answers are learned.
        teacher: the trained model.
        trained: its configuration.
        record: the run that it is of.
        sha256: of its checkpoint.
    """

    config: DistillConfig
    teacher: Teacher
    trained: TrainConfig
    record: RunRecord
    sha256: str

    @classmethod
    def prepare(
        cls,
        config: TrainConfig,
        dataset: ImageDataset,
        trust: Collection[str] = (),
        *,
        allow_changed_code: bool = False,
    ) -> "Distillation | None":
        """Read the teacher of a run; ``None`` if it has none.

        Args:
            config: of the run that is taught.
            dataset: its images and classes.
            trust: prefixes of the dotted names that the teacher may import, beside those of ``config``.
            allow_changed_code: take the teacher even if the code of its parts was edited.

        Raises:
            RunError: the teacher can't be read, or names code that is not trusted or was edited.
            ConfigError: it takes other images, answers something else, or is still training.
        """
        if not config.distill.is_on:
            return None
        record = RunRecord.open(str(config.distill.teacher))
        trust = [*trust, *names_of(config)]
        stored = from_plain(TrainConfig, record.config, trust=trust, source=record.path)
        if not allow_changed_code:
            way = "resume=RUN, of one that it taught, uses it as it is now with allow_changed_code=true"
            refuse_edited_model(
                record, stored.model, way=f"{record.path} teaches with the code it was trained with; {way}"
            )
        model = trained_model(record, record.best, stored, trust=trust, allow_changed_code=allow_changed_code)
        theirs, ours = list(map(nfc, record.facts.get("classes") or ())), list(map(nfc, dataset.classes))
        problems = [*_differences(stored.data, config.data), *_other_classes(theirs, ours, stored.data.num_classes)]
        if problems:
            problem = f"is a run that cannot teach this one: {listed(problems, separator='; ')}"
            raise ConfigError([Fault("distill.teacher", str(record.path), problem)])
        teacher = Teacher(model, stored.data, [theirs.index(name) for name in ours])
        with record.best.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if record.status == "running":  # asked last: a run that began meanwhile may have replaced what was read
            problem = "is still training, so its best epoch may change: wait for it, or stop it"
            raise ConfigError([Fault("distill.teacher", str(record.path), problem)])
        return cls(config.distill, teacher, stored, record, sha256)

    @property
    def facts(self) -> dict[str, Any]:
        """What run.json keeps as ``teacher``; ``parts`` are the dotted names that it imports."""
        parts = list(names_of(self.trained))
        return {"run": str(self.record.path.absolute()), "sha256": self.sha256} | ({"parts": parts} if parts else {})

    def notes(self, data: ImageDataModule) -> list[str]:
        """Return warnings: it is unfinished, had images resized otherwise, or perhaps those of validation."""
        name, status = f"distill.teacher={self.record.path}", self.record.status
        found = [leakage(name, self.record, data)]
        if status != "finished":
            found.append(f"{name} is {status}, not finished: its best epoch so far teaches")
        both = self.trained.data, data.config.data
        has_crops = any(config.train_size is not None for config in both)  # then crop_pct is of evaluation
        for key in ("resize",) if has_crops else ("resize", "crop_pct"):
            theirs, ours = (getattr(config, key) for config in both)
            if theirs != ours:
                found.append(f"{name} was trained with data.{key}={theirs}, not {ours}")
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> "Distillation":
        """Return this one: copies of the model learn from the same teacher."""
        return self

    def loss(self, loss: Tensor, logits: Tensor, images: Tensor) -> Tensor:
        """Return the training loss, a scalar.

        Args:
            loss: that of the labels.
            logits: of the model, (B, classes).
            images: (B, C, H, W) in [0, 255], uint8 or float.
        """
        taught = distillation_loss(logits, self.teacher(images).to(logits.dtype), self.config.temperature)
        return (1 - self.config.weight) * loss + self.config.weight * taught


def distillation_loss(logits: Tensor, taught: Tensor, temperature: float | None) -> Tensor:
    """Return the mean loss over images of what a teacher answers, a scalar.

    Args:
        logits: of the model, (B, classes).
        taught: of the teacher, likewise.
        temperature: T in T^2 KL(softmax(taught / T) || softmax(logits / T)), whose gradient hardly depends on it
            (arXiv:1503.02531, section 2.1); ``None`` for cross-entropy with the teacher's likeliest class.
    """
    if temperature is None:
        return F.cross_entropy(logits, taught.argmax(dim=1))
    log_p, log_q = ((values / temperature).log_softmax(dim=1) for values in (taught, logits))
    return temperature**2 * F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)


def teacher_of(record: RunRecord, config: DistillConfig) -> str | None:
    """Return the folder of the teacher that a run is resumed with: if ``config`` has none from here, run.json's.

    Raises:
        ConfigError: neither is a run.
    """
    known = (record.facts.get("teacher") or {}).get("run")
    if not config.is_on or not (problem := missing_teacher(str(config.teacher))):
        return config.teacher
    if known and not missing_teacher(known):
        return str(known)
    problem = f"is read again, and if it has moved, distill.teacher=FOLDER names it: {problem}"
    raise ConfigError([Fault("distill.teacher", str(config.teacher), problem)])


def refuse_other_teacher(record: RunRecord, distillation: Distillation | None) -> None:
    """Raise RunError where a run would be resumed with a teacher that has other weights, with a new one, or without."""
    known, now = (record.facts.get("teacher") or {}).get("sha256"), distillation and distillation.sha256
    if known != now:
        began, given = (f"a teacher with sha256 {one[:16]}" if one else "no teacher" for one in (known, now))
        named = "name the folder where its teacher's weights are: distill.teacher=RUN"
        hint = named if known else "leave distill.teacher out"
        raise RunError(f"{record.path} began with {began}, and has {given} now; {hint}")


def _differences(theirs: DataConfig, ours: DataConfig) -> list[str]:
    """Return how a teacher's images and labels differ from the model's."""
    problems = []
    if theirs.in_channels != ours.in_channels:
        problems.append(f"its images have {plural(theirs.in_channels, 'channel')}, not {ours.in_channels}")
    if theirs.levels != ours.levels:
        levels = [f"data.levels=[{','.join(map(str, one.levels))}]" for one in (theirs, ours)]
        problems.append(f"its images have {levels[0]}, not {levels[1]}")
    if theirs.multi_label:
        problems.append("its images have several labels")
    if theirs.targets != ours.targets:
        named = [f"data.targets=[{','.join(one.targets)}]" for one in (theirs, ours)]
        problems.append(f"it answers {named[0]}, not {named[1]}")
    return problems


def _other_classes(theirs: Sequence[str], ours: Sequence[str], count: int) -> list[str]:
    """Return how a teacher's ``count`` classes differ from the model's; their order may."""
    if not len(theirs) == len(set(theirs)) == count:
        return [f"its run.json does not name each of its {count} classes once"]
    sides = (("lack", ours, theirs), ("have", theirs, ours))
    found = {verb: [name for name in of if name not in others] for verb, of, others in sides}
    return [f"its classes {verb} {listed(names, MOST_NAMES)}" for verb, names in found.items() if names]
