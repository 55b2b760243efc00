"""The shape of run.json: what has read it need not check the types of its entries again.

A run folder can come from anywhere, so an entry can hold anything. A run with an entry of another type is reported in
one line and left out, as one that cannot be read.
"""

from collections.abc import Mapping
from typing import Any

from vitrine.untrusted import ANY, NUMBER, SCALAR

PIDS = range(1, 2**31)
DATA_SPLIT = {
    **dict.fromkeys(("images", "bytes"), int),
    "per_class": [int],
    **dict.fromkeys(("labels", "pixels", "names", "sizes"), str),
}

# The entries that are read again; others may be there.
SHAPES: dict[str, Any] = {
    **dict.fromkeys(("id", "status", "error", "reason", "host", "process", "started", "ended", "command"), str),
    **dict.fromkeys(("device", "precision", "attention_kernel", "compiled", "validation", "fingerprint"), str),
    **dict.fromkeys(("user", "group", "varies", "like", "wandb_id", "wandb_pushed"), str),
    **dict.fromkeys(("processes", "parameters", "flops_per_image", "epochs", "fingerprint_version"), int),
    **dict.fromkeys(("training_flops_per_image", "teacher_flops_per_image"), int),
    "training_flops_phases": [[int]],  # pairs of FLOPs per image and the number of epochs that have them
    **{name: [str] for name in ("tags", "classes", "wandb_kept", "wandb_project")},
    "wandb_labels": {"name": str, "group": str, "tags": [str], "notes": str},
    "pid": PIDS,
    **dict.fromkeys(("wandb_open", "wandb_gaps"), bool),
    "code": {"commit": str, "changed": bool, "untracked": [str]},
    "versions": {ANY: str},
    "machine": {ANY: SCALAR},
    "images": {ANY: int},
    "storage": {ANY: SCALAR},
    "speed": {ANY: NUMBER},
    "lr_range": {"found": NUMBER, "steps": int, "seconds": NUMBER},
    "parts": {ANY: str},
    "targets": {ANY: [str]},
    "teacher": {"run": str, "sha256": str, "parts": [str]},
    "data_fingerprint": {ANY: DATA_SPLIT},
    "data_changes": [{"at": str}],
    "resumed": [{"at": str, "before": {ANY: SCALAR}}],
    "start_ups": [{"seconds": NUMBER, "compiling": NUMBER}],
}


def images_of(facts: Mapping[str, Any], split: str) -> int:
    """Return the number of images of a split; 0 if there are none, or it is not known."""
    return (facts.get("images") or {}).get(split) or 0
