"""Differences between two runs: configuration, data, code, versions, machine and metrics."""

import hashlib
from collections.abc import Mapping
from typing import Any

from vitrine.errors import RunError, first_line
from vitrine.runs.data_changes import changes, class_changes
from vitrine.runs.flatten import flatten
from vitrine.runs.record import RunRecord
from vitrine.text import listed, plural
from vitrine.untrusted import read_bytes

HARDWARE = ("device", "processes", "precision", "attention_kernel", "compiled")
DATA = ("images", "targets", "validation", "storage")
MAX_CODE_DIFF = 64 * 1024**2  # bytes; vitrine's own code has one or two million


def diff_runs(run: RunRecord, other: RunRecord) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Return, by section, the keys whose values differ, with both values; ``None`` if a run lacks the key.

    The sections are ``config``, ``data``, ``code``, ``versions``, ``machine`` and ``metrics``. ``content`` of ``data``
    says how the classes and images of ``other`` differ from those of ``run``, as far as both have them.

    Raises:
        RunError: a record cannot be read.
    """
    sections, other_sections = _sections(run), _sections(other)
    found = {name: _differing(sections[name], other_sections[name]) for name in sections}
    if changed := _data_changes(run.facts, other.facts):
        found["data"]["content"] = (None, listed(changed, separator="; "))
    return found


def code_diff(record: RunRecord) -> bytes:
    """Return the content of code.diff, the uncommitted changes of the code; nothing if there were none.

    Raises:
        RunError: it cannot be read, or is larger than ``MAX_CODE_DIFF``.
    """
    path = record.path / "code.diff"
    try:
        return read_bytes(path, MAX_CODE_DIFF)
    except FileNotFoundError:
        return b""
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {first_line(error)}") from None


def _sections(record: RunRecord) -> dict[str, Mapping[str, Any]]:
    from vitrine.config.sweep import facts_of  # imports OmegaConf, which a list of runs does not need

    facts, parts = record.facts, record.facts.get("parts")
    return {
        "config": {name: value for name, value in record.config.items() if facts_of(str(name)).describes_run},
        "data": {name: facts.get(name) for name in DATA},
        "code": (facts.get("code") or {}) | _patch(record) | ({"parts": parts} if parts else {}),
        "versions": facts.get("versions") or {},
        "machine": (facts.get("machine") or {}) | {name: facts.get(name) for name in HARDWARE},
        "metrics": record.metrics,
    }


def _data_changes(facts: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    found, classes = [], facts.get("classes") or []
    if classes and (other_classes := others.get("classes")):
        found += class_changes(classes, other_classes)
    if (before := facts.get("data_fingerprint")) and (now := others.get("data_fingerprint")):
        found += changes(before, now, classes)
    return found


def _differing(section: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    values, others = flatten(section), flatten(other)
    return {key: (values.get(key), others.get(key)) for key in values | others if values.get(key) != others.get(key)}


def _patch(record: RunRecord) -> dict[str, str]:
    """Size and hash of code.diff."""
    if not (patch := code_diff(record)):
        return {}
    return {"code.diff": f"{plural(len(patch.splitlines()), 'line')}, {hashlib.sha256(patch).hexdigest()[:8]}"}
