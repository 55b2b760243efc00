"""Typed configuration fields that know the values they allow, so that a limit stands once, beside its field."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from vitrine.errors import Fault
from vitrine.text import nearest


def number(
    default: Any = dataclasses.MISSING,
    *,
    ge: float = -math.inf,
    gt: float = -math.inf,
    le: float = math.inf,
    lt: float = math.inf,
) -> Any:
    """A number with ``ge`` <= value <= ``le`` and ``gt`` < value < ``lt``; ``None`` passes where the type allows it."""
    return dataclasses.field(default=default, metadata={"bounds": (ge, gt, le, lt)})


def choice(options: Sequence[str], default: Any = dataclasses.MISSING) -> Any:
    """One of a few words."""
    return dataclasses.field(default=default, metadata={"options": tuple(options)})


def fault_of(schema: type, name: str, value: Any) -> list[Fault]:
    """What is wrong with a number as the value of a field with bounds, looked at for itself."""
    (field,) = (one for one in dataclasses.fields(schema) if one.name == name)
    return _out_of_bounds(name, value, *field.metadata["bounds"])


def faults(config: Any, prefix: str = "") -> list[Fault]:
    """Every value in a dataclass, and in the dataclasses inside it, that lies outside what its field allows."""
    found: list[Fault] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        key = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            found += faults(value, f"{key}.")
        elif value is not None and "bounds" in field.metadata:
            found += _out_of_bounds(key, value, *field.metadata["bounds"])
        elif value is not None and "options" in field.metadata:
            options = field.metadata["options"]
            if value not in options:
                problem = f"is not one of {', '.join(options)}"
                found.append(Fault(key, str(value), problem, nearest(str(value), options)))
    return found


def _out_of_bounds(key: str, value: Any, ge: float, gt: float, le: float, lt: float) -> list[Fault]:
    for one in value if isinstance(value, (list, tuple)) else [value]:
        if not (ge <= one <= le and gt < one < lt and math.isfinite(one)):
            bounds = [
                f"{sign} {bound:g}" if bound < 1e6 else f"{sign} {bound:.0f}"
                for sign, bound in ((">=", ge), (">", gt), ("<=", le), ("<", lt))
                if math.isfinite(bound)
            ]
            if not math.isfinite(one):
                bounds.insert(0, "finite")
            return [Fault(key, str(value), f"must be {' and '.join(bounds)}")]
    return []
