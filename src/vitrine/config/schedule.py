"""The learning-rate schedule: its keys, and which schedule needs which."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vitrine.config.fields import number, part, part_options
from vitrine.config.parts import Interface
from vitrine.errors import Fault
from vitrine.text import listed

SCHEDULES = ("cosine", "constant", "linear", "onecycle", "step", "multistep", "restarts", "wsd")
KEYS_OF_SCHEDULES = {  # and the schedules that they belong to
    "gamma": ("step", "multistep"),
    "every": ("step",),
    "milestones": ("multistep",),
    "cycles": ("restarts",),
    "growth": ("restarts",),
    "decay": ("wsd",),
}
SHARE = ": it is a share of all steps, 5 epochs are 5 / trainer.max_epochs"
FALLING = ("cosine", "linear", "restarts", "wsd")  # to schedule.end


@dataclass
class ScheduleConfig:
    """The learning rate schedule, per step: a linear warm-up, then what ``name`` says.

    Lengths are fractions of all steps. Keys that do not belong to the schedule are null.

    Attributes:
        name: ``cosine`` and ``linear`` fall, ``restarts`` is several cosines, ``wsd`` falls in a last part only,
            ``step`` and ``multistep`` drop, ``onecycle`` rises and falls along cosines (training/schedules.py).
        warmup: fraction that warms up; of ``onecycle``, that rises.
        end: what ``cosine``, ``linear``, ``restarts`` and ``wsd`` fall to, as a share of the highest learning rate.
        gamma: factor of each drop of ``step`` and ``multistep``.
        every: length between drops of ``step``.
        milestones: places of the drops of ``multistep``.
        cycles: number of cosines of ``restarts``.
        growth: length of each of them, as a multiple of the one before.
        decay: length of the last part of ``wsd`` (arXiv:2405.18392).
    """

    name: str = part(SCHEDULES, "cosine", interface=Interface(("step", "total"), function=True))
    options: dict[str, Any] = part_options()
    warmup: float = number(0.1, ge=0, lt=1, meaning=SHARE)
    end: float = number(0.0, ge=0, lt=1)
    gamma: float | None = number(None, gt=0, lt=1)
    every: float | None = number(None, gt=0, lt=1, meaning=SHARE)
    milestones: list[float] | None = number(None, gt=0, lt=1, meaning=SHARE)
    cycles: int | None = number(None, ge=1, le=1000)
    growth: float | None = number(None, ge=1, le=100)
    decay: float | None = number(None, gt=0, le=1, meaning=SHARE)


def schedule_faults(schedule: ScheduleConfig) -> Iterator[Fault]:
    """Yield the keys that a schedule needs or does not know, and values that exclude each other."""
    for key, users in KEYS_OF_SCHEDULES.items():
        value = getattr(schedule, key)
        if schedule.name in users and value is None:
            yield Fault(f"schedule.{key}", "null", f"is required by schedule={schedule.name}")
        if schedule.name not in users and value is not None:
            problem = f"belongs to {listed(users)}, not to schedule={schedule.name}"
            yield Fault(f"schedule.{key}", str(value), problem, f"schedule={users[0]}")
    if schedule.end and schedule.name not in FALLING:
        problem = f"is what {listed(FALLING)} fall to, not schedule={schedule.name}"
        yield Fault("schedule.end", f"{schedule.end:g}", problem, "schedule.end=0.0")
    if schedule.milestones and schedule.milestones != sorted(set(schedule.milestones)):
        rising = f"schedule.milestones=[{','.join(map(str, sorted(set(schedule.milestones))))}]"
        yield Fault("schedule.milestones", str(schedule.milestones), "must rise", rising)
    if (schedule.decay or 0) + schedule.warmup > 1:
        problem = f"leaves less than schedule.warmup={schedule.warmup} before it; both together must be <= 1"
        yield Fault("schedule.decay", str(schedule.decay), problem)
    cycles, growth = schedule.cycles or 0, schedule.growth or 0
    if growth > 1 and cycles * math.log10(growth) > 290:  # a float ends at 1e308; the rest is for the steps
        yield Fault("schedule.growth", str(growth), f"to the power of schedule.cycles={cycles} must be <= 1e290")
