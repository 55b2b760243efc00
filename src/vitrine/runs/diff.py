"""What is not the same in two runs: configuration, code, versions, machine; and what came out."""

import hashlib
from collections.abc import Mapping
from typing import Any

from vitrine.config.sweep import facts_of
from vitrine.runs.flatten import flat
from vitrine.runs.record import RunRecord

HARDWARE = ("device", "processes", "precision", "attention_kernel", "compiled")
DATA = ("images", "validation", "storage")


def difference(one: RunRecord, other: RunRecord) -> dict[str, dict[str, tuple[Any, Any]]]:
    """By section, the keys whose values differ, each with both values; None stands for what a run has not.

    The sections are ``config``, ``data``, ``code``, ``versions``, ``machine``, and ``metrics`` for what came out.

    Raises:
        RunError: a record can't be read.
    """
    ours, theirs = _sections(one), _sections(other)
    return {name: _differing(ours[name], theirs[name]) for name in ours}


def _sections(record: RunRecord) -> dict[str, Mapping[str, Any]]:
    facts = record.facts
    return {
        "config": {name: value for name, value in record.config.items() if facts_of(name).describes_run},
        "data": {name: facts.get(name) for name in DATA},
        "code": (facts.get("code") or {}) | _patch(record),
        "versions": facts.get("versions") or {},
        "machine": (facts.get("machine") or {}) | {name: facts.get(name) for name in HARDWARE},
        "metrics": record.metrics,
    }


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    ours, theirs = flat(one), flat(other)
    return {key: (ours.get(key), theirs.get(key)) for key in ours | theirs if ours.get(key) != theirs.get(key)}


def _patch(record: RunRecord) -> dict[str, str]:
    """What the code had that its commit had not, in a word."""
    try:
        patch = (record.path / "code.diff").read_bytes()
    except OSError:
        return {}
    return {"code.diff": f"{len(patch.splitlines())} lines, {hashlib.sha256(patch).hexdigest()[:8]}"}
