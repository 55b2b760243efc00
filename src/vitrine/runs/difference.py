"""What is not the same in two runs: configuration, code, versions, machine; and what came out."""

import hashlib
from collections.abc import Mapping
from typing import Any

from vitrine.runs.record import RunRecord
from vitrine.runs.registry import flat

HARDWARE = ("device", "processes", "precision", "attention_kernel", "compiled")
DATA = ("images", "validation", "storage")
SAYS_NOTHING = ("resume", "like")  # how a run was asked for, not what it is


def difference(one: RunRecord, other: RunRecord) -> dict[str, dict[str, tuple[Any, Any]]]:
    """By section, the keys whose values differ, each with both values; None stands for what a run has not.

    The sections are ``config``, ``data``, ``code``, ``versions``, ``machine``, and ``metrics`` for what came out.

    Raises:
        RunError: a record can't be read.
    """
    facts = one.facts, other.facts
    return {
        "config": _differing(one.config, other.config, SAYS_NOTHING),
        "data": _differing(*({name: each.get(name) for name in DATA} for each in facts)),
        "code": _differing(*((record.facts.get("code") or {}) | _patch(record) for record in (one, other))),
        "versions": _differing(*(each.get("versions") or {} for each in facts)),
        "machine": _differing(
            *((each.get("machine") or {}) | {name: each.get(name) for name in HARDWARE} for each in facts)
        ),
        "metrics": _differing(one.metrics, other.metrics),
    }


def _differing(
    one: Mapping[str, Any], other: Mapping[str, Any], without: tuple[str, ...] = ()
) -> dict[str, tuple[Any, Any]]:
    ours, theirs = flat(one), flat(other)
    keys = [key for key in ours | theirs if key not in without]
    return {key: (ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)}


def _patch(record: RunRecord) -> dict[str, str]:
    """What the code had that its commit had not, in a word."""
    try:
        patch = (record.path / "code.diff").read_bytes()
    except OSError:
        return {}
    return {"code.diff": f"{len(patch.splitlines())} lines, {hashlib.sha256(patch).hexdigest()[:8]}"}
