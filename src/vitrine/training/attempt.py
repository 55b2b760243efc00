"""An attempt of a run, which a restart by torchrun continues in the same folder."""

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from vitrine.config import TrainConfig
from vitrine.config.parts import is_dotted
from vitrine.config.serialize import to_plain
from vitrine.config.size import format_size
from vitrine.distributed.rendezvous import recall, remember
from vitrine.runs import RunRecord

_attempts: Counter[str] = Counter()  # how often this process has begun to train each configuration


def attempt_key(config: TrainConfig, folder: str | Path | None, varies: str) -> str:
    """Return what an attempt to train is remembered by: the arguments of ``fit``, and how often it had them."""
    request = json.dumps([to_plain(config), None if folder is None else str(folder), varies], sort_keys=True)
    digest = hashlib.sha256(request.encode()).hexdigest()
    _attempts[digest] += 1
    return f"run {digest} {_attempts[digest]}"


def earlier_attempt(key: str) -> dict[str, Any] | None:
    """Return the run to resume after a restart by ``torchrun --max-restarts``; ``None`` if there is none.

    ``folder`` is its folder, ``time_from`` when ``trainer.max_time`` began, in its first attempt.
    """
    earlier = json.loads(recall(key) or "null")
    return earlier if earlier and (Path(earlier["folder"]) / "run.json").exists() else None


def begin_attempt(key: str, config: TrainConfig, folder: str | Path | None, varies: str, time_from: float) -> str:
    """Create a run folder, remember it, and return its path.

    Args:
        key: of the attempt.
        config: what to train.
        folder: the run folder; ``None`` for one with a new name in ``runs/`` under ``paths.output_dir``.
        varies: the overrides in which the run differs from others of its sweep.
        time_from: when ``trainer.max_time`` began.

    Raises:
        RunError: the folder can't be created, or has another run.
    """
    name = run_name(config, varies)
    record = RunRecord.create(Path(config.paths.output_dir) / "runs", name) if folder is None else RunRecord.at(folder)
    remember(key, json.dumps({"folder": str(record.path), "time_from": time_from}))
    return str(record.path)


def run_name(config: TrainConfig, varies: str) -> str:
    """Return the part of a run folder's name that describes the run."""
    model = config.model
    patch = model.patch_size if isinstance(model.patch_size, int) else format_size(model.patch_size)
    architecture = f"{model.dim}x{model.depth}-p{patch}-{model.position}"
    if is_dotted(model.name):
        architecture = model.name
    described = f"{config.data.name}-{architecture}-s{config.seed}"
    name = config.name or varies or described
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)[:100]
