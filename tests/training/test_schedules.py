"""The learning rate moves as the schedule says: as PyTorch's own schedulers do, step by step."""

import math

import pytest
import torch
from torch.optim import lr_scheduler

from vitrine import compose
from vitrine.config.parts import PartError
from vitrine.config.schedule import FALLING, ScheduleConfig
from vitrine.config.schedule import SCHEDULES as CHOICES
from vitrine.models import VisionTransformer
from vitrine.training.optim import build_optimizer
from vitrine.training.schedules import SCHEDULES, build_schedule, learning_rate_factor, total_steps, user_factor


def cosine(step: int, *, steps: int = 100, warmup: float = 0.1) -> float:
    return learning_rate_factor(step, ScheduleConfig("cosine", warmup=warmup), steps)


def factors_of(name: str, steps: int, count: int | None = None, **settings) -> list[float]:
    config = ScheduleConfig(name, **{"warmup": 0.0} | settings)
    return [learning_rate_factor(step, config, steps) for step in range(count or steps)]


def pytorchs(make, steps: int) -> list[float]:
    """The learning rates of a scheduler of PyTorch, from 1 on."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, rates = make(optimizer), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_every_choice_has_its_function():
    assert {*SCHEDULES, "onecycle"} == set(CHOICES)


@pytest.mark.parametrize("steps", [20, 90, 137])
@pytest.mark.parametrize(
    ("name", "settings", "make"),
    [
        ("linear", {}, lambda one, steps: lr_scheduler.LinearLR(one, 1.0, 0.0, steps)),
        ("linear", {"end": 0.1}, lambda one, steps: lr_scheduler.LinearLR(one, 1.0, 0.1, steps)),
        ("cosine", {"end": 0.01}, lambda one, steps: lr_scheduler.CosineAnnealingLR(one, steps, 0.01)),
        (
            "step",
            {"every": 0.33333333, "gamma": 0.1},
            lambda one, steps: lr_scheduler.MultiStepLR(one, [round(steps / 3), round(2 * steps / 3)], 0.1),
        ),
        (
            "multistep",
            {"milestones": [0.5, 0.75], "gamma": 0.2},
            lambda one, steps: lr_scheduler.MultiStepLR(one, [round(0.5 * steps), round(0.75 * steps)], 0.2),
        ),
        (
            "onecycle",
            {"warmup": 0.3},
            lambda one, steps: lr_scheduler.OneCycleLR(one, 1.0, steps, pct_start=0.3, cycle_momentum=False),
        ),
    ],
)
def test_schedules_are_those_of_pytorch_step_by_step(name, settings, make, steps):
    expected = pytorchs(lambda optimizer: make(optimizer, steps), steps)
    assert factors_of(name, steps, **settings) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("every", [1 / 3, 0.33333333])
def test_drops_at_whole_steps_are_those_of_pytorchs_step_lr(every):
    expected = pytorchs(lambda optimizer: lr_scheduler.StepLR(optimizer, 30, 0.1), 90)
    assert factors_of("step", 90, every=every, gamma=0.1) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("parts", [3, 7, 30])
def test_the_last_part_of_a_step_schedule_is_as_long_as_the_others(parts):
    """Rounding the length of a part accumulated: a hundred steps had a fourth third, of one step."""
    for steps in range(2 * parts, 200):
        factors = factors_of("step", steps, every=1 / parts, gamma=0.5)
        lengths = [factors.count(0.5**drops) for drops in range(parts)]
        assert sum(lengths) == steps
        assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(("growth", "first", "cycles"), [(1, 20, 4), (2, 10, 3), (3, 5, 3)])
def test_restarts_are_those_of_pytorch(growth, first, cycles):
    steps = first * sum(growth**cycle for cycle in range(cycles))
    expected = pytorchs(lambda one: lr_scheduler.CosineAnnealingWarmRestarts(one, first, growth), steps)
    found = factors_of("restarts", steps, cycles=cycles, growth=float(growth))
    assert found == pytest.approx(expected, abs=1e-9)
    assert sum(factor == 1 for factor in found) == cycles
    assert factors_of("restarts", steps, steps + 3, cycles=cycles, growth=float(growth))[steps:] == [0, 0, 0]


def test_the_lengths_of_restarts_are_added_up_once_and_the_longest_allowed_are_finite(monkeypatch):
    added = []
    monkeypatch.setattr("vitrine.training.schedules.sum", lambda values: added.append(1) or sum(values), raising=False)
    assert 0 <= learning_rate_factor(5, ScheduleConfig("restarts", warmup=0.0, cycles=1000, growth=1.94), 10**9) <= 1
    assert len(added) == 1


def test_warmup_stable_decay_is_constant_until_its_last_part():
    found = factors_of("wsd", 100, 102, warmup=0.1, decay=0.2)
    assert found[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert found[10:81] == [1.0] * 71
    assert found[81:100] == pytest.approx([1 - math.sqrt(step / 20) for step in range(1, 20)])
    assert found[100:] == [0.0, 0.0]
    longer = factors_of("wsd", 1000, 100, warmup=0.01, decay=0.2)
    assert longer[:80] == found[:80], "going on would change nothing so far"


@pytest.mark.parametrize("name", CHOICES)
def test_every_schedule_that_would_end_at_0_has_an_end_or_refuses_it(refusal, name):
    if name in FALLING:
        config = compose([f"schedule={name}", "schedule.end=0.2"]).schedule
        factors = [learning_rate_factor(step, config, 100) for step in range(10, 103)]
        assert (min(factors), max(factors)) == (pytest.approx(0.2), 1.0)
        assert factors[-3:] == pytest.approx([0.2] * 3)
    else:
        (fault,) = refusal(f"schedule={name}", "schedule.end=0.2")
        assert fault.key == "schedule.end"


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_every_schedule_has_a_rate_at_each_of_a_few_steps(name, steps):
    config = compose([f"schedule={name}"]).schedule
    factors = [learning_rate_factor(step, config, steps) for step in range(steps + 2)]
    assert all(0 < factor <= 1 for factor in factors[:steps])
    assert all(0 <= factor <= 1 for factor in factors)


def test_the_first_step_trains():
    assert cosine(0) == pytest.approx(0.1)


def test_the_last_warm_up_step_and_the_one_after_it_have_the_full_rate():
    assert cosine(8) == pytest.approx(0.9)
    assert cosine(9) == 1.0
    assert cosine(10) == 1.0
    assert cosine(11) < 1.0


@pytest.mark.parametrize(
    ("done", "epoch", "inside", "total"),
    [
        (0, (0, 0), 0, 30),
        (20, (2, 2), 10, 30),  # between two epochs, `inside` is still that of the last one
        (24, (3, 2), 4, 30),
        (29, (3, 2), 9, 30),
        (30, (3, 2), 10, 40),  # of data that has changed: the epoch begins again
        (32, (3, 2), 12, 42),
    ],
)
def test_the_steps_of_a_resumed_training_are_those_done_and_those_to_come(done, epoch, inside, total):
    started, processed = epoch
    loops = {
        "epoch_progress": {"current": {"started": started, "processed": processed}},
        "epoch_loop.batch_progress": {"current": {"processed": inside}},
    }
    assert total_steps({"global_step": done, "loops": {"fit_loop": loops}}, epochs=3, steps_per_epoch=10) == total


def test_a_schedule_of_the_users_that_fails_is_one_line():
    with pytest.raises(PartError, match=r"my_lab.rates.broken failed at step 3 of 9: ZeroDivisionError: .*line \d+\)$"):
        user_factor(3, name="my_lab.rates.broken", schedule=lambda step, total: 1 / 0, steps=9)


@pytest.mark.parametrize("factor", [-1.0, math.nan, math.inf])
def test_a_schedule_of_the_users_that_returns_no_factor_is_one_line(factor):
    with pytest.raises(PartError, match=f"^my_lab.rates must return a factor >= 0 at step 3 of 9, not {factor:g}$"):
        user_factor(3, name="my_lab.rates", schedule=lambda step, total: factor, steps=9)


def test_half_way_down_is_half_the_rate():
    assert cosine(55) == pytest.approx(0.5)


def test_the_last_step_still_trains_and_the_one_after_it_would_not():
    assert cosine(99) == pytest.approx(0.5 * (1 + math.cos(math.pi * 89 / 90)))
    assert cosine(99) > 0
    assert cosine(100) == 0.0
    assert cosine(150) == 0.0


def test_the_rate_rises_then_falls_and_stays_within_0_and_1():
    factors = [cosine(step) for step in range(101)]
    assert factors[:10] == sorted(factors[:10])
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert min(factors) == 0.0
    assert max(factors) == 1.0


def test_constant_stays_after_its_warm_up():
    factors = factors_of("constant", 100, 120, warmup=0.05)
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8] + [1.0] * 116)


def test_without_warm_up_the_first_step_has_the_full_rate():
    assert cosine(0, warmup=0.0) == 1.0
    assert cosine(50, warmup=0.0) == pytest.approx(0.5)


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_trainings_of_a_few_steps_have_a_rate_at_each(steps, warmup):
    factors = [cosine(step, steps=steps, warmup=warmup) for step in range(steps)]
    assert all(0 < factor <= 1 for factor in factors)


@pytest.mark.parametrize(("steps", "warmup"), [(100, 0.1), (37, 0.3), (11, 0.2), (50, 0.02)])
def test_the_schedule_is_that_of_pytorch_step_by_step(steps, warmup):
    rising = round(steps * warmup)
    ours = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    theirs = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule = build_schedule(ScheduleConfig("cosine", warmup=warmup), ours, steps)
    reference = torch.optim.lr_scheduler.SequentialLR(
        theirs,
        [
            torch.optim.lr_scheduler.LinearLR(theirs, start_factor=1 / rising, total_iters=max(1, rising - 1)),
            torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=steps - rising),
        ],
        milestones=[rising],
    )
    for _ in range(steps):
        assert ours.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"], abs=1e-12)
        for optimizer, one in ((ours, schedule), (theirs, reference)):
            optimizer.step()
            one.step()
    assert ours.param_groups[0]["lr"] == 0.0


def test_the_schedule_moves_every_group():
    config = compose(["model=vit_nano", "depth=1", "schedule.warmup=0.5"])
    optimizer = build_optimizer(config.optimizer, VisionTransformer(config.model))
    schedule = build_schedule(config.schedule, optimizer, steps=8)
    assert [group["lr"] for group in optimizer.param_groups] == [config.optimizer.lr / 4] * 2
    optimizer.step()
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [config.optimizer.lr / 2] * 2
