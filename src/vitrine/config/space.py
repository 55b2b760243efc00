"""The space of a search: what each key or group may be, and what is wrong with what was asked for.

In YAML a key has a list of choices, or an interval::

    space:
      position: [learned, sincos2d, rope]
      model.depth: {low: 2, high: 8, step: 2}
      optimizer.lr: {low: 1e-4, high: 1e-2, log: true}

On the command line these are ``position=learned,sincos2d,rope`` and ``'optimizer.lr=tag(log,interval(1e-4,1e-2))'``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from vitrine.config.fields import faults
from vitrine.config.sweep import OBJECTIVES, SweepConfig
from vitrine.errors import Fault
from vitrine.text import nearest


@dataclass(frozen=True)
class Interval:
    """Numbers from ``low`` to ``high``, both included.

    Attributes:
        low, high: the ends.
        log: drawn evenly by their logarithm.
        step: distance between neighbours, from ``low`` on; ``None`` is 1 for whole numbers, and any for others.
        whole: of whole numbers only.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False

    def word(self, value: float) -> str:
        """A number of the interval as it is typed: six digits are enough to search by."""
        return str(round(value)) if self.whole else f"{min(max(float(f'{value:.6g}'), self.low), self.high)!r}"

    @property
    def plain(self) -> dict[str, Any]:
        """As it stands in YAML."""
        log, step = {"log": True} if self.log else {}, {"step": self.step} if self.step else {}
        return {"low": self.low, "high": self.high} | log | step

    @property
    def ends(self) -> tuple[str, ...]:
        """Its ends as they are typed."""
        return tuple(dict.fromkeys((self.word(self.low), self.word(self.high))))

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of its numbers; none where they are without end."""
        step = self.step or (1 if self.whole else None)
        if step is None:
            return ()
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        return tuple(round(self.low + step * number, 12) for number in range(count))


Values = tuple[str, ...] | Interval
Space = Mapping[str, Values]


def read_space(raw: Mapping[str, Any], kind: Callable[[str], Any]) -> tuple[dict[str, Values], list[Fault]]:
    """The space that stands in YAML, and what cannot be read of it.

    Args:
        raw: keys or groups with a list of values or the parts of an interval.
        kind: gives the type of a key's value; ``None`` for a group.
    """
    space: dict[str, Values] = {}
    found: list[Fault] = []
    for key, values in raw.items():
        name = f"sweep.space.{key}"
        if isinstance(values, list) and values:
            space[key] = tuple(dict.fromkeys("null" if value is None else str(value) for value in values))
        elif isinstance(values, dict):
            problems = _interval_faults(name, values, kind(key))
            found += problems
            if not problems:
                space[key] = Interval(**values, whole=kind(key) is int)
        else:
            problem = "needs a list of values, [1, 2, 3], or an interval, {low: 1, high: 9}"
            found.append(Fault(name, str(values), problem))
    return space, found


def search_faults(sweep: SweepConfig, space: Space) -> list[Fault]:
    """What of a search cannot work together, whatever its values are."""
    found = faults(sweep, "sweep.")
    if sweep.sampler is None:
        return found + _belongs_to_a_search(sweep)
    found += _metric_faults(sweep)
    intervals = {key: one for key, one in space.items() if isinstance(one, Interval)}
    if not space:
        found.append(Fault("sweep.space", "", "is empty: name what is searched, such as optimizer.lr=1e-4,1e-3"))
    if "seed" in space:
        problem = "is no part of a model; sweep.repeats=3 judges each trial by the mean of three seeds"
        found.append(Fault("seed", "", problem))
    if sweep.sampler == "grid":
        endless = [key for key, one in intervals.items() if not one.numbers]
        problem = "needs a step, or a list of values, for sweep.sampler=grid"
        found += [Fault(f"sweep.space.{key}", "", problem) for key in endless]
    elif sweep.n_trials is None:
        found.append(Fault("sweep.n_trials", "", "is needed by a search: sweep.n_trials=50"))
    if sweep.sampler == "cmaes" and len(intervals) < 2:
        problem = f"needs at least two intervals, the space has {len(intervals)}; tpe takes any space"
        found.append(Fault("sweep.sampler", "cmaes", problem))
    if sweep.sampler == "cmaes" and len(sweep.metrics) > 1:
        problem = "goes by one metric; tpe, nsga2, random and grid take several"
        found.append(Fault("sweep.sampler", "cmaes", problem))
    return found


def _belongs_to_a_search(sweep: SweepConfig) -> list[Fault]:
    found = []
    for one in fields(SweepConfig):
        value, default = getattr(sweep, one.name), getattr(SweepConfig(), one.name)
        if one.name not in ("name", "space", "sampler") and value != default:
            problem = "belongs to a search: sweep=optuna/lr_wd, or sweep.sampler=tpe"
            found.append(Fault(f"sweep.{one.name}", str(value).replace("'", ""), problem))
    return found


def _metric_faults(sweep: SweepConfig) -> list[Fault]:
    found = []
    for metric in sweep.metrics:
        if metric.startswith("test/"):
            problem = "chooses nothing: a model is chosen on validation, and tested once it is chosen"
            found.append(Fault("sweep.metrics", metric, problem, metric.replace("test/", "val/")))
        elif metric not in OBJECTIVES:
            problem = f"is never logged; a search goes by {', '.join(OBJECTIVES)}"
            found.append(Fault("sweep.metrics", metric, problem, nearest(metric, OBJECTIVES)))
    if not sweep.metrics or len(set(sweep.metrics)) < len(sweep.metrics):
        given = "[" + ",".join(sweep.metrics) + "]"
        found.append(Fault("sweep.metrics", given, "must be one metric, or several different ones"))
    if sweep.pruner != "none" and (len(sweep.metrics) > 1 or not sweep.metrics[0].startswith("val/")):
        problem = "goes by one metric that is measured after each epoch: val/acc or val/loss"
        found.append(Fault("sweep.pruner", sweep.pruner, problem))
    return found


def _interval_faults(name: str, values: Mapping[str, Any], kind: Any) -> list[Fault]:
    parts = [one.name for one in fields(Interval) if one.name != "whole"]
    given = "{" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"
    found = [
        Fault(f"{name}.{key}", "", f"is no part of an interval; these are {', '.join(parts)}", nearest(str(key), parts))
        for key in values
        if key not in parts
    ]
    found += [Fault(name, given, f"needs {key}") for key in ("low", "high") if key not in values]
    if kind not in (int, float):
        found.append(Fault(name, given, "is an interval, but this is no number; give a list of values"))
    if found:
        return found
    low, high, step, log = values["low"], values["high"], values.get("step"), values.get("log", False)
    numbers = {"low": low, "high": high} | ({} if step is None else {"step": step})
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            found.append(Fault(f"{name}.{key}", str(value), "must be a number"))
        elif kind is int and value != int(value):
            found.append(Fault(f"{name}.{key}", str(value), "must be a whole number, as the key's values are"))
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
