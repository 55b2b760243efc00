"""Learning-rate schedules: the factor of the learning rate at each optimiser step.

``SCHEDULES`` maps ``schedule.name`` to functions of the steps after warm-up, which fall to 0, before ``schedule.end``
is added; ``onecycle``, which has no warm-up, is ``one_cycle``. Lengths are fractions of all steps, so that a schedule
fits any number of epochs.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from vitrine.config.parts import PartError, as_part_error, function, part_at
from vitrine.config.schedule import ScheduleConfig

ONE_CYCLE_START = 1 / 25  # and the end is 1/10,000 of that, as torch.optim.lr_scheduler.OneCycleLR's defaults
ONE_CYCLE_END = ONE_CYCLE_START / 10_000


def build_schedule(config: ScheduleConfig, optimizer: Optimizer, steps: int) -> LambdaLR:
    """Build the schedule over ``steps`` optimiser steps; call its ``step()`` after each.

    A parameter group with an entry ``warmup`` warms up over that fraction of the steps.
    """
    if (own := part_at(config, "name")) is not None:
        return LambdaLR(optimizer, partial(user_factor, name=own.name, schedule=function(own), steps=steps))
    warmups = [group.get("warmup", config.warmup) for group in optimizer.param_groups]
    return LambdaLR(
        optimizer, [partial(learning_rate_factor, config=config, steps=steps, warmup=warmup) for warmup in warmups]
    )


def epochs_in(checkpoint: Mapping[str, Any]) -> int:
    """Return how many epochs are trained whole in a checkpoint, as Lightning writes it."""
    done: int = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    return done


def total_steps(checkpoint: Mapping[str, Any], epochs: int, steps_per_epoch: int) -> int:
    """Return the optimiser steps of a training that resumes from ``checkpoint``: those done and those to come.

    An epoch of which as many steps are done as it has now, since its data has changed, begins again.

    Args:
        checkpoint: as Lightning writes it.
        epochs: of the whole training.
        steps_per_epoch: in the epochs to come.
    """
    loops = checkpoint["loops"]["fit_loop"]
    progress, inside = loops["epoch_progress"]["current"], loops["epoch_loop.batch_progress"]["current"]["processed"]
    if progress["started"] == progress["processed"] or inside >= steps_per_epoch:
        inside = 0
    done: int = checkpoint["global_step"]
    return done + (epochs - progress["processed"]) * steps_per_epoch - inside


def user_factor(step: int, *, name: str, schedule: Callable[[int, int], float], steps: int) -> float:
    """Factor of the learning rate at ``step`` (0-based) of ``steps`` by the user's schedule ``name``."""
    with as_part_error(name, f"failed at step {step} of {steps}"):
        factor = float(schedule(min(step, steps - 1), steps))
    if not 0 <= factor < math.inf:
        raise PartError(name, f"must return a factor >= 0 at step {step} of {steps}, not {factor:g}")
    return factor


def learning_rate_factor(step: int, config: ScheduleConfig, steps: int, warmup: float | None = None) -> float:
    """Return the factor of the learning rate at ``step``, counted from 0, of ``steps``.

    Rises linearly to 1 over the first steps; then the schedule decides, between 1 and ``config.end``.

    Args:
        step: may be ``steps`` or larger, as after the last step.
        config: of a built-in schedule.
        steps: of the whole training.
        warmup: fraction of the steps that warm up, in [0, 1]; ``None`` is ``config.warmup``.
    """
    share = config.warmup if warmup is None else warmup
    if config.name == "onecycle":
        return one_cycle(step, steps, share)
    first = round(share * steps)
    if step < first:
        return (step + 1) / first
    return config.end + (1 - config.end) * SCHEDULES[config.name](step, first, steps, config)


def constant(step: int, first: int, steps: int, config: ScheduleConfig) -> float:
    """Stay at 1."""
    return 1.0


def cosine(step: int, first: int, steps: int, config: ScheduleConfig) -> float:
    """Half a cosine from 1 to 0 just after the last step (arXiv:1608.03983, without restarts)."""
    return half_cosine(progress(step, first, steps))


def linear(step: int, first: int, steps: int, config: ScheduleConfig) -> float:
    """A line from 1 to 0 just after the last step."""
    return 1 - progress(step, first, steps)


def restarts(step: int, first: int, steps: int, config: ScheduleConfig) -> float:
    """Half cosines from 1 to 0, each as long as the one before times ``config.growth`` (arXiv:1608.03983)."""
    assert config.cycles is not None  # the configuration is validated
    assert config.growth is not None
    lengths = [config.growth**cycle for cycle in range(config.cycles)]
    total = sum(lengths)
    ends = [first + round((steps - first) * end / total) for end in accumulate(lengths)]
    begin, end = next(((a, b) for a, b in zip([first, *ends], ends, strict=False) if step < b), (first, step))
    return half_cosine(progress(step, begin, end))


def step_down(step: int, first: int, steps: int, config: ScheduleConfig) -> float:
    """Multiply by ``config.gamma`` after each ``config.every`` of all steps, as PyTorch's StepLR.

    Each drop is rounded to a step by itself, so that rounding does not accumulate.
    """
    assert config.every is not None
    assert config.gamma is not None
    return config.gamma ** math.floor((step + 0.5) / (config.every * steps))


def multistep(step: int, first: int, steps: int, config: ScheduleConfig) -> float:
    """Multiply by ``config.gamma`` at each of ``config.milestones``, as PyTorch's MultiStepLR."""
    assert config.milestones is not None
    assert config.gamma is not None
    return config.gamma ** sum(step >= round(milestone * steps) for milestone in config.milestones)


def warmup_stable_decay(step: int, first: int, steps: int, config: ScheduleConfig) -> float:
    """Stay at 1, then fall to 0 just after the last step: by 1 - sqrt, the best form of arXiv:2405.18392, section 3."""
    assert config.decay is not None
    return 1 - math.sqrt(progress(step, max(first, steps - round(config.decay * steps)), steps))


def one_cycle(step: int, steps: int, rising: float) -> float:
    """Rise along half a cosine, then fall along another to almost 0 (arXiv:1708.07120), as PyTorch's OneCycleLR.

    Only the learning rate: momentum stays as it is.
    """
    top = max(0.0, rising * steps - 1)
    if step < top:
        return 1 - (1 - ONE_CYCLE_START) * half_cosine(step / top)
    return ONE_CYCLE_END + (1 - ONE_CYCLE_END) * half_cosine(progress(step, top, steps - 1))


def half_cosine(done: float) -> float:
    """Fall from 1 to 0 while ``done`` rises from 0 to 1."""
    return 0.5 * (1 + math.cos(math.pi * done))


def progress(step: int, begin: float, end: float) -> float:
    """Return the share of the steps from ``begin`` to ``end`` that is done at ``step``, in [0, 1]."""
    return min(1.0, max(0.0, (step - begin) / (end - begin))) if end > begin else float(step > begin)


# By schedule.name: the factor at a step from the first one after warm-up on.
SCHEDULES: dict[str, Callable[[int, int, int, ScheduleConfig], float]] = {
    "cosine": cosine,
    "constant": constant,
    "linear": linear,
    "step": step_down,
    "multistep": multistep,
    "restarts": restarts,
    "wsd": warmup_stable_decay,
}
