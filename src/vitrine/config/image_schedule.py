"""The schedule of image sizes, ``trainer.image_schedule``: smaller images in the first epochs, to compute less."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vitrine.config.model import INTERPOLATED, ViTConfig
from vitrine.config.model_faults import vit_faults
from vitrine.config.parts import parts_of
from vitrine.config.schema import TrainConfig
from vitrine.config.size import size_override
from vitrine.errors import Fault
from vitrine.text import as_override

KEY = "trainer.image_schedule"


def image_side(schedule: Sequence[float] | None, epoch: int, epochs: int) -> int | None:
    """Return the side of the images in an epoch; ``None`` for the model's own size, which the last epoch always has.

    Args:
        schedule: pairs of a side and the share of the epochs that are trained by its end, one after the other. An epoch
            that a share divides has the next size.
        epoch: from 0.
        epochs: of the whole training.
    """
    for side, until in _phases(schedule or ()):
        if epoch + 1 <= round(until * epochs, 6):  # 0.29 of 100 is 29, and in floating point a little less
            return int(side)
    return None


def image_sides(schedule: Sequence[float] | None, epochs: int) -> list[int | None]:
    """Return :func:`image_side` of each of so many epochs."""
    return [image_side(schedule, epoch, epochs) for epoch in range(epochs)]


def image_schedule_faults(config: TrainConfig) -> Iterator[Fault]:
    """Yield what is wrong with a schedule, or excludes one."""
    schedule, model = config.trainer.image_schedule, config.model
    if schedule is None:
        return
    shown, off = as_override(schedule), f"{KEY}=null"
    if problem := _excluded(config):
        yield Fault(KEY, shown, problem, off)
        return
    phases = _phases(schedule)
    shares = [until for _, until in phases]
    if len(schedule) % 2 or not schedule or any(side != int(side) for side, _ in phases):
        example = f"{KEY}=[{max(1, model.image_hw[0] // 2)},0.5]"
        yield Fault(KEY, shown, "must be pairs of a size in pixels and the share of the epochs that ends it", example)
    elif shares != sorted(set(shares)) or shares[-1] >= 1:
        yield Fault(KEY, shown, "must have shares that rise and are < 1: the last epochs have the images' own size")
    else:
        for side, _ in phases:
            yield from _faults_at(int(side), shown, model)


def unused_sizes(schedule: Sequence[float] | None, epochs: int) -> Iterator[Fault]:
    """Yield a fault for each size of a sound schedule that so few epochs leave out."""
    used = set(image_sides(schedule, epochs))
    for side, _ in _phases(schedule or ()):
        if side not in used:
            problem = f"has a size, {int(side)}, that is in no epoch of trainer.max_epochs={epochs}"
            yield Fault(KEY, as_override(schedule), problem)


def _phases(schedule: Sequence[float]) -> list[tuple[float, float]]:
    return list(zip(schedule[::2], schedule[1::2], strict=False))


def _excluded(config: TrainConfig) -> str:
    """Return why no schedule goes with what else is configured; "" if one does."""
    model = config.model
    if own := [part.name for part in parts_of(model) if part.key != "init"]:  # it adds nothing to resize
        return f"needs a model that can be resized, and {own[0]} is a part of your own"
    if config.finetune.name != "full":
        return f"trains positions at several sizes, which finetune={config.finetune.name} freezes"
    if model.image_hw[0] != model.image_hw[1]:
        return f"is for square images, not data.image_size={size_override(model.image_size)}"
    if config.trainer.deterministic and model.position in INTERPOLATED:
        return f"interpolates model.position={model.position}, whose gradient trainer.deterministic=true cannot have"
    return ""


def _faults_at(side: int, shown: str, model: ViTConfig) -> Iterator[Fault]:
    if side >= model.image_hw[0]:
        problem = f"must have sizes smaller than that of the images, {size_override(model.image_size)}, not {side}"
        yield Fault(KEY, shown, problem)
        return
    for fault in vit_faults(replace(model, image_size=side), "model."):
        yield Fault(KEY, shown, f"does not fit the model at size {side}: {fault.key}={fault.given} {fault.problem}")
