"""A run about to be trained: its configuration, folder, hardware and deadline; and its result."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning.pytorch.callbacks import Callback

from vitrine.config import TrainConfig
from vitrine.data.placement import Placement
from vitrine.distributed.hardware import Hardware
from vitrine.durations import duration_seconds
from vitrine.runs import RunRecord
from vitrine.training.callbacks import PruningRule
from vitrine.training.distill import Distillation
from vitrine.training.pretrained import Pretrained


@dataclass(frozen=True)
class Result:
    """The result of a run, the same on every rank.

    Attributes:
        metrics: ``val/acc``, ``val/loss`` and what else was measured in the selected epoch; ``test/acc``, ``test/loss``
            and further metrics if the data has test images; ``best_epoch`` and ``train_seconds``.
        run_dir: the run folder, an absolute path.
    """

    metrics: dict[str, float]
    run_dir: Path


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """All that a rank needs to train a run, apart from the images. Can be pickled if its callbacks can.

    Attributes:
        config: the validated configuration.
        record: the run folder.
        hardware: devices, precision and attention kernel.
        began: when the command began, as ``time.time()`` gives it.
        placement: where the images lie.
        stop_by: when the command must have ended, as ``time.time()`` gives it; infinite for no limit.
        group: name of the sweep, for trackers.
        varies: the overrides in which the run differs from others of its sweep.
        pretrained: initial weights, if the run starts from published ones and not from its own checkpoint.
        distillation: the teacher, if there is one.
        pruning_rule: asked after each epoch whether to stop early.
        callbacks: Lightning callbacks of the caller.
    """

    config: TrainConfig
    record: RunRecord
    hardware: Hardware
    began: float
    placement: Placement
    stop_by: float = math.inf
    group: str | None = None
    varies: str = ""
    pretrained: Pretrained | None = None
    distillation: Distillation | None = None
    pruning_rule: PruningRule | None = None
    callbacks: Sequence[Callback] = ()


def deadline(config: TrainConfig, since: float) -> float:
    """Return when a command that began at ``since`` must have ended (``trainer.max_time``); infinite for no limit."""
    limit = config.trainer.max_time
    return math.inf if limit is None else since + duration_seconds(limit)
