"""An attempt of a run, which a restart by torchrun continues in the same folder."""

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from vitrine.config import TrainConfig
from vitrine.config.parts import is_dotted
from vitrine.config.serialize import to_plain
from vitrine.config.size import format_size
from vitrine.distributed.rendezvous import recall, remember
from vitrine.runs import RunRecord


@dataclass(frozen=True)
class Attempt:
    """The run folder of a call of ``fit``; after a restart by torchrun, that of the previous attempt.

    Attributes:
        path: the run folder.
        time_from: when ``trainer.max_time`` began, as ``time.time()`` gives it: in the first attempt.
        status: ``new``, or the status of the run to resume.
    """

    path: str
    time_from: float
    status: str = "new"


_attempts: Counter[str] = Counter()  # how often this process has begun to train each configuration


def begin_attempt(config: TrainConfig, folder: str | Path | None, varies: str, time_from: float) -> Attempt:
    """Create a run folder, or find that of the attempt before a restart by ``torchrun --max-restarts``.

    Args:
        config: what to train.
        folder: the run folder; ``None`` for one with a new name in ``runs/`` under ``paths.output_dir``.
        varies: the overrides in which the run differs from others of its sweep.
        time_from: when ``trainer.max_time`` began, in this attempt.

    Raises:
        RunError: the folder can't be created, or has another run.
    """
    request = json.dumps([to_plain(config), None if folder is None else str(folder), varies], sort_keys=True)
    digest = hashlib.sha256(request.encode()).hexdigest()
    _attempts[digest] += 1
    key = f"run {digest} {_attempts[digest]}"
    if (earlier := recall(key)) is not None:
        attempt = Attempt(**json.loads(earlier))
        record = RunRecord(Path(attempt.path))
        if (record.path / "run.json").exists():
            # The process that wrote it may have run on another machine: it has ended all the same.
            status = "finished" if record.status == "finished" else "interrupted"
            return replace(attempt, status=status)
    name = run_name(config, varies)
    record = RunRecord.create(Path(config.paths.output_dir) / "runs", name) if folder is None else RunRecord.at(folder)
    attempt = Attempt(str(record.path), time_from)
    remember(key, json.dumps(asdict(attempt)))
    return attempt


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
