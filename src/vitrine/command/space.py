"""What is to vary in a multirun: from what is typed with several values, and what ``sweep.space`` adds to it."""

from collections.abc import Callable, Mapping
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import IntervalSweep, Override

from vitrine.command.overrides import check_overrides, quote
from vitrine.config.keys import kind
from vitrine.config.space import Interval, Space, Values, read_space, search_faults
from vitrine.config.sweep import SweepConfig, TrainCommand, facts_of
from vitrine.errors import ConfigError, Fault

Check = Callable[[Mapping[str, str]], Any]


def space_of(
    sweep: SweepConfig, overrides: list[Override], loader: ConfigLoader
) -> tuple[dict[str, Values], list[Fault]]:
    """All that is to vary, and what is wrong with it by itself. What is typed comes before what is written."""
    typed = {one.key_or_group for one in overrides}
    written = {str(key): values for key, values in sweep.space.items() if str(key) not in typed}
    space, found = read_space(written, _kind)
    if sweep.sampler is None:
        endless = [key for key, values in space.items() if isinstance(values, Interval)]
        problem = "is an interval, which a search takes (sweep.sampler=tpe); all combinations need a list of values"
        found += [Fault(f"sweep.space.{key}", "", problem) for key in endless]
    shared = [key for key in space if facts_of(key).shared_by_trials]
    found += [Fault(f"sweep.space.{key}", "", "is the same for all trials; it takes one value") for key in shared]
    words = [f"{key}=" + ",".join(_some(values)) for key, values in space.items()]
    found += check_overrides(quote(words, loader), TrainCommand, loader)[1]
    for one in overrides:
        value = one.value()
        if isinstance(value, IntervalSweep):
            read, faulty = read_space({one.key_or_group: _interval(value)}, _kind)
            space |= read
            found += faulty
        elif one.is_discrete_sweep():
            space[one.key_or_group] = tuple(value.strip("'") for value in one.sweep_string_iterator())
    return space, found or search_faults(sweep, space)


def with_commas(space: Space, overrides: list[Override]) -> list[str]:
    """What is not typed of a space of lists, as it would be."""
    typed = {one.key_or_group for one in overrides}
    return [f"{key}=" + ",".join(_some(values)) for key, values in space.items() if key not in typed]


def first_that_works(space: Space, checked: Check, out_of_limits: Callable[[Mapping[str, str], Fault], bool]) -> Any:
    """The configuration of a point of the space: of its first values, or else of these with another one of them.

    Args:
        space: lists and intervals.
        checked: gives the configuration for values of all keys, or a ConfigError.
        out_of_limits: whether a fault of such values says that one is never right, whatever the others are.

    Raises:
        ConfigError: there is none; or a value, or an end of an interval, is never right.
    """
    first = {key: _some(values)[0] for key, values in space.items()}
    others = [{**first, key: value} for key, values in space.items() for value in _some(values)[1:]]
    sound, refused, never = [], [], []
    for chosen in [first, *others]:
        config = checked(chosen)
        if isinstance(config, ConfigError):
            refused.append(config)
            never += [one for one in config.faults if one.key in chosen and out_of_limits(chosen, one)]
        else:
            sound.append(config)
    if never:
        raise ConfigError(never)
    if not sound:
        raise refused[0]
    return sound[0]


def _some(values: Values) -> tuple[str, ...]:
    """Choices, or the ends of an interval: if these can be typed, all between them can."""
    return values.ends if isinstance(values, Interval) else values


def _interval(typed: IntervalSweep) -> dict[str, Any]:
    """``interval(1,9)`` or ``tag(log,interval(1,9))`` as it would stand in YAML."""
    return {"low": typed.start, "high": typed.end, "log": "log" in typed.tags}


def _kind(key: str) -> Any:
    return kind(TrainCommand, key)
