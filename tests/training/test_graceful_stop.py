"""Whether there is time to go on, and when ranks agree on it, on a clock that the test moves."""

from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from vitrine.data.decode import Undecodable
from vitrine.errors import DataError
from vitrine.training import graceful_stop as stopping
from vitrine.training.graceful_stop import GracefulStop, TimeLimit
from vitrine.training.lit_module import Classifier

MARGIN = TimeLimit.MARGIN
SIZES = {"train": 1000, "val": 100, "test": 300}


class Clock:
    def __init__(self):
        self.now = 1000.0
        self.asleep = 0.0  # of the time until now

    def time(self):
        return self.now

    def monotonic(self):
        return self.now - self.asleep


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(stopping, "time", clock)
    return clock


def left(clock, seconds):
    """A limit that leaves so many seconds from now, the margin not counted."""
    return TimeLimit(clock.now + seconds + MARGIN, SIZES)


def steps(limit, clock, *seconds, images=10):
    limit.begin()
    for one in seconds:
        clock.now += one
        limit.step_done(images)


def test_the_limit_is_reached_a_margin_early(clock):
    limit = left(clock, 10)
    clock.now += 9.9
    assert not limit.over()
    clock.now += 0.1
    assert limit.over()


def test_the_first_step_of_a_session_is_not_measured(clock):
    limit = left(clock, 100)
    steps(limit, clock, 90)
    assert not limit.over()


def test_there_must_be_time_for_the_longest_step_and_the_end_of_an_epoch(clock):
    limit = left(clock, 100)
    steps(limit, clock, 0, 1, 3, 1)  # 95 s are left
    clock.now += 7
    limit.epoch_done()  # 88 s
    limit.begin()
    clock.now += 77  # 11 s
    assert not limit.over()
    clock.now += 1  # 10 s: a step of 3 and an end of 7
    assert limit.over()


def test_the_first_epoch_end_is_estimated_from_training_speed(clock):
    limit = left(clock, 100)
    steps(limit, clock, 0, 2, 2)  # 0.2 s an image, 100 to validate; 96 s are left
    clock.now += 73.9
    assert not limit.over()
    clock.now += 0.1  # 22 s: a step of 2 and an end of 20
    assert limit.over()


def test_a_step_in_which_the_computer_sleeps_is_not_a_long_one(clock):
    limit = left(clock, 7200)
    steps(limit, clock, 0, 1)
    clock.now, clock.asleep = clock.now + 3601, 3600.0
    limit.step_done(10)
    assert not limit.over()  # 3598 s are left


def test_time_between_epochs_is_not_a_step(clock):
    limit = left(clock, 100)
    steps(limit, clock, 0, 1)
    clock.now += 50
    steps(limit, clock, 0, 1)
    clock.now += 30  # 18 s are left: a step of 1 and an end of 10
    assert not limit.over()


def test_once_all_epochs_are_trained_there_must_be_time_for_the_test(clock):
    limit = left(clock, 100)
    steps(limit, clock, 0, 20)
    clock.now += 10
    limit.epoch_done()  # 70 s are left, and three times as many test images as validation images
    clock.now += 39
    assert not limit.over(trained=True)
    clock.now += 1
    assert limit.over(trained=True)


def test_several_ranks_agree_about_once_a_second_within_the_first_epoch_too(clock):
    agreed = []
    strategy = SimpleNamespace(broadcast=lambda pace: pace)
    strategy.reduce_boolean_decision = lambda decision, all: agreed.append(clock.now) or decision
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=SimpleNamespace(is_last_batch=False)))
    trainer = SimpleNamespace(world_size=2, global_step=1000, strategy=strategy, fit_loop=loop)  # of a resumed run
    stop, module = GracefulStop(None, left(clock, 1000)), Mock(Classifier, images_per_step=10)

    def gaps(seconds):
        agreed.clear()
        for each in seconds:
            clock.now += each
            trainer.global_step += 1
            stop.on_train_batch_end(trainer, module)
        return [later - earlier for earlier, later in pairwise(agreed)]

    assert len(gaps([60, 0.001, 0.001] + 1000 * [0.01])) < 20
    assert gaps(1000 * [0.01]) == pytest.approx([1] * 9, abs=0.1)
    slower = gaps(310 * [0.1])[1:]
    assert len(slower) > 20
    assert slower == pytest.approx([1] * len(slower), abs=0.1)


@pytest.mark.parametrize(
    ("error", "group", "saved"),
    [
        (Undecodable({"a": "a is damaged"}), None, "; once the data can be read, resume=run accept_changed_data=true"),
        (DataError("a worker was killed"), None, "; resume=run"),
        (DataError("a worker was killed"), "sweep", ""),
        (Undecodable({"a": "a is damaged"}), "sweep", None),
    ],
    ids=["damaged", "killed", "killed-trial", "damaged-trial"],
)
def test_what_is_saved_before_a_batch_that_cannot_be_read(clock, capsys, error, group, saved):
    stop = GracefulStop(Mock(record=Mock(path="run", facts={"group": group})), left(clock, 1000))
    trainer = SimpleNamespace(world_size=1, global_step=3)
    stop.on_train_batch_start(trainer, None)
    stop.on_exception(trainer, None, error)
    how = f"{saved} continues after it" if saved else ""
    assert capsys.readouterr().err == ("" if saved is None else f"vitrine: step 3 is saved{how}\n")
    assert stop.checkpoints.save.called == (saved is not None)
