import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from vitrine.config.fields import choice, faults, number, number_or
from vitrine.errors import ConfigError, Fault


@dataclass
class Inner:
    rate: float = number(0.5, ge=0, lt=1)


@dataclass
class Outer:
    count: int = number(3, ge=1, le=10)
    scale: float = number(1.0, gt=0)
    anything: float = number(0.0)
    large: int = number(0, ge=0, le=2**32 - 1)
    several: list[float] = number(None, ge=0, lt=1)
    counts: list[int] | None = number(None, ge=1)
    lr: Any = number_or("auto", "auto", gt=0, le=1)
    colour: str = choice(["red", "green", "blue"], "red")
    free: str = "whatever"
    inner: Inner = field(default_factory=Inner)


def test_values_at_their_limits_pass():
    assert faults(Outer()) == []
    assert faults(Outer(count=1, scale=1e-30, several=[0, 0.999], counts=[1], colour="blue", inner=Inner(0))) == []
    assert faults(Outer(lr=1)) == []
    assert faults(Outer(count=10, large=2**32 - 1, several=[])) == []


@pytest.mark.parametrize(
    ("changes", "key", "given", "problem"),
    [
        ({"count": 0}, "count", "0", "must be >= 1 and <= 10"),
        ({"count": 11}, "count", "11", "must be >= 1 and <= 10"),
        ({"scale": 0.0}, "scale", "0.0", "must be > 0"),
        ({"large": 2**32}, "large", "4294967296", "must be >= 0 and <= 4294967295"),
        ({"several": [0.5, 1.0]}, "several", "[0.5, 1.0]", "must be >= 0 and < 1"),
        ({"several": (-1, -2)}, "several", "(-1, -2)", "must be >= 0 and < 1"),
        ({"count": 3.0}, "count", "3.0", "must be a whole number"),
        ({"count": True}, "count", "True", "must be a whole number"),
        ({"count": "3"}, "count", "3", "must be a whole number"),
        ({"counts": [1, 2.5]}, "counts", "[1, 2.5]", "must be a whole number"),
        ({"scale": "large"}, "scale", "large", "must be a number"),
        ({"scale": False}, "scale", "False", "must be a number"),
        ({"lr": ""}, "lr", "", "must be a number, or auto"),
        ({"lr": True}, "lr", "True", "must be a number, or auto"),
        ({"lr": 0}, "lr", "0", "must be > 0 and <= 1"),
        ({"inner": Inner(1.0)}, "inner.rate", "1.0", "must be >= 0 and < 1"),
        ({"colour": "black"}, "colour", "black", "is not one of red, green, blue"),
    ],
)
def test_a_value_outside_its_limits_is_reported_with_what_is_allowed(changes, key, given, problem):
    assert faults(Outer(**changes)) == [Fault(key, given, problem)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("anything", "must be finite"),
        ("scale", "must be finite and > 0"),
        ("count", "must be a whole number"),
    ],
)
def test_what_is_no_finite_number_is_refused_even_where_there_are_no_limits(key, problem, value):
    assert faults(Outer(**{key: value})) == [Fault(key, str(value), problem)]
    assert len(faults(Outer(several=[0.5, value]))) == 1


def test_a_misspelt_choice_comes_with_the_nearest_one():
    assert faults(Outer(colour="gren")) == [Fault("colour", "gren", "is not one of red, green, blue", "green")]


def test_all_faults_are_found_under_the_prefix_given():
    found = faults(Outer(count=0, colour="black", inner=Inner(2)), "outer.")
    assert [fault.key for fault in found] == ["outer.count", "outer.colour", "outer.inner.rate"]


def test_an_error_shows_every_fault_once_with_key_value_problem_and_hint():
    first = Fault("model.dim", "5", "must be even", "model.dim=6")
    second = Fault("lr", "", "there is no such key")
    error = ConfigError([first, second, first])
    assert error.faults == [first, second]
    assert str(error) == (
        "invalid configuration, 2 faults:\n"
        "  model.dim=5\n      must be even\n      did you mean model.dim=6?\n"
        "  lr\n      there is no such key"
    )
    assert str(ConfigError([second])).startswith("invalid configuration:\n")
