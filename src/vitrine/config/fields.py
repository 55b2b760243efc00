"""Makers of configuration fields: each key's limits, choices and facts stand beside its type and default."""

import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence
from functools import cache
from numbers import Integral, Real
from typing import Any

from vitrine.config.parts import Interface, is_dotted
from vitrine.config.size import SIZE_TYPE, is_size, plain_size, size_override
from vitrine.errors import Fault
from vitrine.text import as_override, nearest


@dataclasses.dataclass(frozen=True)
class KeyFacts:
    """What is true of a configuration key whatever its value. A section's facts hold for the keys inside it.

    Attributes:
        affects_result: whether another value makes another trial, since it can change the weights or what is recorded;
            or the data sources (``data.name``) with which it does.
        in_comparisons: whether comparisons of runs show the key where values differ. Keys without effect never are.
        may_change_on_resume: whether a run can be resumed with another value.
        shared_by_trials: whether all trials of a multirun have the same value.
        describes_run: whether the value is part of what the run is; otherwise it only says how the run was started,
            and ``like=`` and diffs of runs leave it out.
        path: whether the value can be a path.
        of_weights: of a model's key, whether weights fit no other value. They are adapted to sizes, and to keys that
            act in training alone any value fits.
    """

    affects_result: bool | tuple[str, ...] = True
    in_comparisons: bool = True
    may_change_on_resume: bool = False
    shared_by_trials: bool = False
    describes_run: bool = True
    path: bool = False
    of_weights: bool = True

    def affects(self, data: str) -> bool:
        """Whether the key can change the result of a run on the data source ``data``."""
        return data in self.affects_result if isinstance(self.affects_result, tuple) else self.affects_result


def setting(default: Any = dataclasses.MISSING, **facts: Any) -> Any:
    """Return a field with ``facts``, by the names of :class:`KeyFacts`, that differ from the section's.

    A list or dict as ``default`` is copied for each object; a dataclass is made without arguments.
    """
    return _field(default, facts, {})


def number(
    default: Any = dataclasses.MISSING,
    *,
    ge: float = -math.inf,
    gt: float = -math.inf,
    le: float = math.inf,
    lt: float = math.inf,
    meaning: str = "",
    **facts: Any,
) -> Any:
    """Return a field for finite numbers, or lists of them: ``ge`` <= value <= ``le`` and ``gt`` < value < ``lt``.

    They must be whole where the field's type has ``int``. ``None`` passes where the field's type allows it. ``meaning``
    says what the number is where it is refused.
    """
    return _field(default, facts, {"bounds": (ge, gt, le, lt), "meaning": meaning})


def size(default: Any = dataclasses.MISSING, **facts: Any) -> Any:
    """Return a field for a size in pixels, annotated as ``Size``: ``8``, or ``[8, 16]`` for height and width."""
    return _field(default, facts, {"bounds": (1, -math.inf, 4096, math.inf), "size": True})


def store_sizes(config: Any) -> None:
    """Set the sizes of a section to what :func:`plain_size` makes of them: an int where they are square."""
    for field in dataclasses.fields(config):
        if "size" in field.metadata:
            setattr(config, field.name, plain_size(getattr(config, field.name)))


def number_faults(config: Any) -> list[Fault]:
    """Return every number and size of a dataclass, and of the dataclasses in it, that is outside its limits."""
    return [
        fault
        for field, key, value in _values(config, "")
        if "bounds" in field.metadata
        for fault in _field_faults(field, key, value)
    ]


def not_a_size(key: str, value: Any) -> Fault:
    """Return the fault of a key whose value is not a size."""
    return Fault(key, as_override(value).replace(" ", "").replace("'", ""), f"must be {SIZE_TYPE}")


def number_or(word: str, default: Any, *, gt: float, le: float) -> Any:
    """Return a field of type ``Any`` for a number, as of :func:`number`, or ``word``."""
    return _field(default, {}, {"bounds": (-math.inf, gt, le, math.inf), "word": word})


def is_number_or(word: str, value: Any) -> bool:
    """Whether a value is a number or ``word``."""
    return value == word if isinstance(value, str) else isinstance(value, (int, float)) and not isinstance(value, bool)


def not_a_number(key: str, value: Any, word: str) -> Fault:
    """Return the fault of a key whose value is neither a number nor ``word``."""
    return Fault(key, str(value), f"must be a number, or {word}", nearest(str(value), (word,)))


def as_float(value: Any) -> Any:
    """Return a whole number, or a text that is a number, as float, as OmegaConf converts them; others as they are."""
    try:
        return value if isinstance(value, bool) or not isinstance(value, (int, str)) else float(value)
    except ValueError:
        return value


def choice(options: Sequence[str], default: Any = dataclasses.MISSING, *, others: str = "", **facts: Any) -> Any:
    """Return a field for one of ``options``; ``None`` passes where the field's type allows it.

    ``others`` describes further values that depend on other keys: what the field has is then checked with those.
    """
    return _field(default, facts, {"options": tuple(options)} | ({"others": others} if others else {}))


def choice_list(options: Sequence[str], **facts: Any) -> Any:
    """Return a field for a list of ``options``, which run folders leave out where it is empty."""
    return _field([], facts, {"options": tuple(options), "several": True, "stored_unless": []})


def part(
    options: Sequence[str],
    default: Any = dataclasses.MISSING,
    *,
    interface: Interface,
    rare: bool = False,
    **facts: Any,
) -> Any:
    """Return a field for one of ``options``, or for the dotted name of a user's part (config/parts.py).

    A ``rare`` field is left out of run folders where it has its default.
    """
    limits: dict[str, Any] = {"options": tuple(options), "part": interface}
    return _field(default, facts, {**limits, "stored_unless": default} if rare else limits)


def part_list(interface: Interface) -> Any:
    """Return a field for a list of dotted names of a user's parts, which run folders leave out where it is empty."""
    return _field([], {}, {"part": interface, "stored_unless": []})


def part_options(**facts: Any) -> Any:
    """Return a field for a part's options, or for those of a list of parts by class name; left out where empty."""
    return _field({}, facts, {"stored_unless": {}})


def faults(config: Any, prefix: str = "") -> list[Fault]:
    """Return every value of a dataclass, and of the dataclasses in it, that its field does not allow."""
    return [fault for field, key, value in _values(config, prefix) for fault in _field_faults(field, key, value)]


def _values(config: Any, prefix: str) -> Iterator[tuple["dataclasses.Field[Any]", str, Any]]:
    """Yield field, key and value of all with limits in a dataclass, and in the dataclasses in it."""
    for field, has_limits in _fields(type(config)):  # type: ignore[arg-type]
        value, key = getattr(config, field.name), f"{prefix}{field.name}"
        if has_limits:
            yield field, key, value
        elif dataclasses.is_dataclass(value):
            yield from _values(value, f"{key}.")


@cache
def _fields(schema: type) -> list[tuple["dataclasses.Field[Any]", bool]]:
    """The fields of a dataclass, and whether each has limits."""
    return [
        (field, field.type is bool or "bounds" in field.metadata or "options" in field.metadata)
        for field in dataclasses.fields(schema)
    ]


def _field(default: Any, facts: dict[str, Any], limits: dict[str, Any]) -> Any:
    KeyFacts(**facts)  # raises TypeError for a fact that does not exist
    metadata = {"facts": facts, **limits}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def _field_faults(field: "dataclasses.Field[Any]", key: str, value: Any) -> Iterator[Fault]:
    limits = field.metadata
    if value is None:
        if field.default is not None and "None" not in str(field.type):
            yield Fault(key, "null", "must have a value")
    elif field.type is bool:
        if not isinstance(value, bool):
            yield Fault(key, str(value), "must be true or false")
    elif "size" in limits and not is_size(value):
        yield not_a_size(key, value)
    elif "word" in limits and (isinstance(value, bool) or not isinstance(value, (int, float))):
        if not is_number_or(limits["word"], value):
            yield not_a_number(key, value, limits["word"])
    elif "bounds" in limits:
        if "size" in limits or type(value) in (int, field.type) or _holds_its_numbers(field, value):
            text = size_override(value) if "size" in limits else str(value)
            yield from _out_of_bounds(key, value, *limits["bounds"], text=text, meaning=limits.get("meaning", ""))
        else:
            yield Fault(key, str(value), "must be a whole number" if _is_whole(field) else "must be a number")
    elif "others" not in limits:  # those are checked with the whole configuration
        options, several = limits["options"], "several" in limits
        if several and not isinstance(value, list):
            yield Fault(key, str(value), f"must be a list of {', '.join(options)}", f"[{nearest(str(value), options)}]")
            return
        for one in value if several else [value]:
            if one not in options and not ("part" in limits and is_dotted(one)):  # a part is checked by part_faults
                yield Fault(key, str(one), f"is not one of {', '.join(options)}", nearest(str(one), options))


def _holds_its_numbers(field: "dataclasses.Field[Any]", value: Any) -> bool:
    """Whether a value is a number of the field's type, or a list of them."""
    kind = Integral if _is_whole(field) else Real
    given = value if isinstance(value, (list, tuple)) else [value]
    return all(isinstance(one, kind) and not isinstance(one, bool) for one in given)


def _is_whole(field: "dataclasses.Field[Any]") -> bool:
    return "int" in str(field.type)


def _out_of_bounds(
    key: str, value: Any, ge: float, gt: float, le: float, lt: float, *, text: str, meaning: str
) -> Iterator[Fault]:
    for number in value if isinstance(value, (list, tuple)) else [value]:
        if not (ge <= number <= le and gt < number < lt and math.isfinite(number)):
            bounds = [
                f"{sign} {bound:g}" if bound < 1e6 else f"{sign} {bound:.0f}"
                for sign, bound in ((">=", ge), (">", gt), ("<=", le), ("<", lt))
                if math.isfinite(bound)
            ]
            if not math.isfinite(number):
                bounds.insert(0, "finite")
            yield Fault(key, text, f"must be {' and '.join(bounds)}{meaning}")
            return
