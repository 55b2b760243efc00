"""The values that vary in a multirun: lists of values, and in a search also intervals.

In YAML, under the key ``sweep``::

    space:
      position: [learned, sincos2d, rope]
      model.depth: {low: 2, high: 8, step: 2}
      optimizer.lr: {low: 1e-4, high: 1e-2, log: true}

On the command line: ``position=learned,sincos2d,rope`` and ``'optimizer.lr=tag(log,interval(1e-4,1e-2))'``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import IntervalSweep, Override

from vitrine.command.overrides import check_overrides, quote
from vitrine.command.spelling import spelled_value, spelled_values
from vitrine.config.fields import faults
from vitrine.config.keys import kind
from vitrine.config.metrics import difference_problem
from vitrine.config.sweep import DATA_KEYS, DECISION_KEYS, OBJECTIVES, SweepConfig, TrainCommand, facts_of, one_spelling
from vitrine.errors import Fault
from vitrine.text import listed, nearest

# Keys and groups whose values are validated on other images.
IMAGE_KEYS = ("data", *DATA_KEYS, "data.fold", "data.folds", "data.val_fraction", "data.val_seed")


@dataclass(frozen=True)
class Interval:
    """Numbers from ``low`` to ``high``, both included.

    Attributes:
        low, high: the ends.
        log: whether numbers are drawn uniformly in their logarithm.
        step: distance between neighbours, counted from ``low``; ``None`` is 1 for integers, and any for others.
        whole: whether the numbers are integers.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False

    def text(self, value: float) -> str:
        """Return a number of the interval as it is typed, rounded to six digits."""
        return str(round(value)) if self.whole else f"{min(max(float(f'{value:.6g}'), self.low), self.high)!r}"

    @property
    def plain(self) -> dict[str, Any]:
        """The interval as written in YAML."""
        log, step = {"log": True} if self.log else {}, {"step": self.step} if self.step else {}
        return {"low": self.low, "high": self.high} | log | step

    @property
    def ends(self) -> tuple[str, ...]:
        """Both ends as they are typed."""
        return tuple(dict.fromkeys((self.text(self.low), self.text(self.high))))

    @property
    def numbers(self) -> tuple[float, ...]:
        """All numbers of the interval; empty if it is continuous."""
        step = self.step or (1 if self.whole else None)
        if step is None:
            return ()
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        return tuple(round(self.low + step * number, 12) for number in range(count))


Values = tuple[str, ...] | Interval
Space = Mapping[str, Values]


def includes(values: Values, text: object) -> bool:
    """Whether ``text`` is one of the values as it is typed, or a number in the interval."""
    if not isinstance(values, Interval):
        return text in values
    try:
        return isinstance(text, str) and values.low <= float(text) <= values.high
    except ValueError:
        return False


def space_of(
    sweep: SweepConfig, overrides: Sequence[Override], loader: ConfigLoader
) -> tuple[dict[str, Values], list[Fault]]:
    """Return everything that varies, and the faults in it. Overrides replace entries of ``sweep.space``."""
    typed = {override.key_or_group for override in overrides}
    written = {str(key): values for key, values in sweep.space.items() if str(key) not in typed}
    space, found = read_space(written)
    if sweep.sampler is None:
        problem = "is an interval, which needs a search (sweep.sampler=tpe); otherwise give a list of values"
        found += [Fault(f"sweep.space.{key}", "", problem) for key in space if isinstance(space[key], Interval)]
    found += [Fault(f"sweep.space.{key}", "", problem) for key in space if (problem := unvaried(key))]
    found += check_overrides(quote(as_overrides(space, ())), TrainCommand, loader)[1]
    for override in overrides:
        value = override.value()
        if isinstance(value, IntervalSweep):
            interval = {"low": value.start, "high": value.end, "log": "log" in value.tags}
            read, faulty = read_space({override.key_or_group: interval})
            space |= read
            found += faulty
        elif override.is_discrete_sweep():
            space[override.key_or_group] = tuple(dict.fromkeys(text.strip("'") for text in spelled_values(override)))
    return space, found or search_faults(sweep, space)


def unvaried(key: str) -> str:
    """Return why a key or group cannot vary between trials; empty if it can."""
    facts = facts_of(key)
    if facts.shared_by_trials:
        return "is shared by all trials: give one value"
    makes_no_trial = facts.affects_result is False and key != "like"
    problem = "cannot vary: it does not change the result, so its values would be one trial; give one value"
    return problem if makes_no_trial else ""


def examples(values: Values) -> tuple[str, ...]:
    """Return all values of a list, or the ends of an interval: if both are allowed, so are all numbers between them."""
    return values.ends if isinstance(values, Interval) else values


def as_overrides(space: Space, typed: Sequence[Override]) -> list[str]:
    """Return the entries of ``space`` that are not typed, as overrides with several values."""
    known = {override.key_or_group for override in typed}
    return [f"{key}=" + ",".join(examples(values)) for key, values in space.items() if key not in known]


def read_space(raw: Mapping[str, Any]) -> tuple[dict[str, Values], list[Fault]]:
    """Return the space written in YAML, and the faults of entries that cannot be read."""
    space: dict[str, Values] = {}
    found: list[Fault] = []
    for key, values in raw.items():
        name = f"sweep.space.{key}"
        if isinstance(values, list) and values:
            texts = (value if isinstance(value, str) else spelled_value(value) for value in values)
            space[key] = tuple(dict.fromkeys(one_spelling(key, text) for text in texts))
        elif isinstance(values, dict):
            type_ = kind(TrainCommand, key)
            problems = _interval_faults(name, values, type_)
            found += problems
            if not problems:  # YAML has 0 where Hydra has 0.0: the key's type makes them one search
                given = values.items()
                numbers = {part: type_(value) for part, value in given if part != "log" and value is not None}
                space[key] = Interval(**values | numbers, whole=type_ is int)
        else:
            problem = "needs a list of values, [1, 2, 3], or an interval, {low: 1, high: 9}"
            found.append(Fault(name, str(values), problem))
    return space, found


def search_faults(sweep: SweepConfig, space: Space) -> list[Fault]:
    """Return the faults in the settings of a search, whatever its values are."""
    found = [*faults(sweep, "sweep."), *_idle_keys(sweep)]
    if sweep.difference is not None and (problem := difference_problem(sweep.metric, sweep.difference)):
        found.append(Fault("sweep.difference", f"{sweep.difference:g}", problem))
    if sweep.sampler is None:
        return found
    found += _metric_faults(sweep)
    intervals = {key: values for key, values in space.items() if isinstance(values, Interval)}
    if not space:
        found.append(Fault("sweep.space", "", "is empty: name what to search, such as optimizer.lr=1e-4,1e-3"))
    if "seed" in space:
        problem = "cannot be searched; sweep.repeats=3 ranks each trial by the mean over three seeds"
        found.append(Fault("seed", "", problem))
    problem = "chooses the validation images or labels, and a search would find the easiest: give one value in each"
    for key in [key for key in IMAGE_KEYS if key in space]:
        only = examples(space[key]) if len(examples(space[key])) == 1 else ()
        found.append(Fault(key, "", problem, f"{key}={only[0]}" if only else ""))
    if sweep.sampler == "grid":
        continuous = [key for key, values in intervals.items() if not values.numbers]
        problem = "needs a step, or a list of values, for sweep.sampler=grid"
        found += [Fault(f"sweep.space.{key}", "", problem) for key in continuous]
    elif sweep.n_trials is None:
        found.append(Fault("sweep.n_trials", "", "is required for a search: sweep.n_trials=50"))
    if sweep.sampler == "cmaes" and len(intervals) < 2:
        problem = f"needs at least two intervals, the space has {len(intervals)}; tpe takes any space"
        found.append(Fault("sweep.sampler", "cmaes", problem))
    if sweep.sampler == "cmaes" and len(sweep.metrics) > 1:
        problem = "takes a single metric; tpe, nsga2, random and grid take several"
        found.append(Fault("sweep.sampler", "cmaes", problem))
    return found


def _idle_keys(sweep: SweepConfig) -> Iterator[Fault]:
    """Yield a fault for each key that is set and that no such multirun reads."""
    for field in fields(SweepConfig):
        name, value = field.name, getattr(sweep, field.name)
        if value != getattr(SweepConfig(), name) and (problem := _idle(name, sweep)):
            is_objective = name == "metric" and sweep.sampler is not None and value in OBJECTIVES
            near = f"sweep.metrics=[{value}]" if is_objective else ""
            yield Fault(f"sweep.{name}", str(value).replace("'", ""), problem, near)


def _idle(name: str, sweep: SweepConfig) -> str:
    """Return why a key of ``sweep`` has no effect on such a multirun; empty if it has one."""
    is_search = sweep.sampler is not None
    if name in ("name", "space", "sampler", "method"):
        return ""
    if name in DECISION_KEYS:
        return "applies to decisions only: sweep=decide" if sweep.method is None else ""
    if name == "one_at_a_time":
        return "has no effect in a search: sweep.sampler chooses which values are combined" if is_search else ""
    return "" if is_search else "applies to searches only: sweep=optuna/lr_wd, or sweep.sampler=tpe"


def _metric_faults(sweep: SweepConfig) -> Iterator[Fault]:
    for metric in sweep.metrics:
        if metric.startswith("test/"):
            problem = "cannot be searched by: models are selected on the validation split"
            yield Fault("sweep.metrics", metric, problem, metric.replace("test/", "val/"))
    if not sweep.metrics or len(set(sweep.metrics)) < len(sweep.metrics):
        given = "[" + ",".join(sweep.metrics) + "]"
        yield Fault("sweep.metrics", given, "must be one or more different metrics")
    if sweep.pruner != "none" and (len(sweep.metrics) > 1 or not sweep.metrics[0].startswith("val/")):
        problem = "needs a single metric that is measured after each epoch, such as val/acc or val/loss"
        yield Fault("sweep.pruner", sweep.pruner, problem)


def _interval_faults(name: str, values: Mapping[str, Any], type_: Any) -> list[Fault]:
    parts = [field.name for field in fields(Interval) if field.name != "whole"]
    given = "{" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"
    problem = f"is not part of an interval, which has {listed(parts)}"
    found = [Fault(f"{name}.{key}", "", problem, nearest(str(key), parts)) for key in values if key not in parts]
    found += [Fault(name, given, f"needs {key}") for key in ("low", "high") if key not in values]
    if type_ not in (int, float):
        found.append(Fault(name, given, "cannot be an interval, since the key's value is not a number; list values"))
    if found:
        return found
    low, high, step, log = values["low"], values["high"], values.get("step"), values.get("log", False)
    numbers = {"low": low, "high": high} | ({} if step is None else {"step": step})
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            found.append(Fault(f"{name}.{key}", str(value), "must be a number"))
        elif type_ is int and value != int(value):
            found.append(Fault(f"{name}.{key}", str(value), "must be an integer, as the key's values are"))
    if not isinstance(log, bool):
        found.append(Fault(f"{name}.log", str(log), "must be true or false"))
    if found:
        return found
    if low > high:
        found.append(Fault(name, given, "low must be <= high"))
    if log and low <= 0:
        found.append(Fault(name, given, "low must be > 0 where log is true"))
    if log and step is not None:
        found.append(Fault(name, given, "takes log or step, not both"))
    if step is not None and not 0 < step <= max(high - low, 1e-12):
        found.append(Fault(name, given, "step must be > 0 and at most high - low"))
    return found
