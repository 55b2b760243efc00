"""Which parts of a user's own a stored configuration may import.

A configuration that a user types, or makes in Python, is trusted. One that is read from a run folder is data: its
names are imported only if the user allows their prefix.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from vitrine.config.parts import parts_of
from vitrine.errors import RunError, VitrineError

TRUST_ALL: Collection[str] = frozenset({"*"})  # for code that reads a configuration and builds nothing
PREFIX = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def check_trust(config: Any, trust: Collection[str], source: object) -> None:
    """Refuse a configuration that was read from ``source`` and names parts outside ``trust``. Imports nothing.

    The prefix ``my_lab`` in ``trust`` allows ``my_lab.fourier.Fourier``.

    Raises:
        RunError: with how to allow the parts.
    """
    refused: dict[str, str] = {}
    for part in parts_of(config):
        if not is_trusted(part.name, trust):
            refused[part.key] = ",".join(filter(None, [refused.get(part.key), part.name]))
    if refused:
        raise RunError(f"{source} {refusal(refused)}")


def refusal(refused: Mapping[str, str]) -> str:
    """Return why parts, by key, are not imported, and how to allow them; names of a list are joined by commas."""
    named = ", ".join(f"{key}={name}" for key, name in refused.items())
    names = list(dict.fromkeys(name for joined in refused.values() for name in joined.split(",")))
    allowed = ",".join(names)
    ways = f"trust=[{allowed}] on the command line, --trust {allowed} for scripts, trust={names} in Python"
    return f"names code outside vitrine, {named}, which is not imported unless you allow it: {ways}"


def is_trusted(name: str, trust: Collection[str]) -> bool:
    """Whether ``name`` is, or is inside, one of the dotted prefixes in ``trust``; raises as :func:`prefixes`."""
    if trust is TRUST_ALL:
        return True
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes(trust))


def prefixes(trust: Collection[str]) -> tuple[str, ...]:
    """Return the dotted prefixes in ``trust``.

    Raises:
        VitrineError: ``trust`` is a string, or has an entry that is not a dotted name.
    """
    if isinstance(trust, str) or not all(isinstance(prefix, str) and PREFIX.fullmatch(prefix) for prefix in trust):
        given = repr(trust) if isinstance(trust, str) else list(trust)
        raise VitrineError(f"trust={given} must be a list of dotted names, such as ['my_lab.fourier.Fourier']")
    return tuple(trust)
