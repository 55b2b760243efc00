"""A run about to be trained, and what its run.json keeps of how it began and ended."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from vitrine.config import TrainConfig
from vitrine.config.serialize import to_plain
from vitrine.data.datamodule import ImageDataModule
from vitrine.data.placement import Placement
from vitrine.distributed.hardware import Hardware
from vitrine.distributed.rendezvous import Ranks
from vitrine.durations import duration_seconds
from vitrine.errors import Interrupted
from vitrine.files import link
from vitrine.runs import RunRecord, provenance
from vitrine.runs.record import now
from vitrine.training.callbacks import PruningRule
from vitrine.training.checkpoints import Checkpoints, read_checkpoint
from vitrine.training.pretrained import Pretrained


@dataclass(frozen=True)
class Result:
    """The result of a run, the same on every rank.

    Attributes:
        metrics: ``val/acc`` and ``val/loss`` of the selected epoch, ``test/acc`` and ``test/loss`` if the data has
            test images, ``best_epoch`` and ``train_seconds``.
        run_dir: the run folder.
    """

    metrics: dict[str, float]
    run_dir: Path


@dataclass(frozen=True)
class TrainingRun:
    """All that a rank needs to train a run, apart from the images. Can be pickled if its callbacks can.

    Attributes:
        config: the validated configuration.
        record: the run folder.
        hardware: devices, precision and attention kernel.
        began: when the command began, as ``time.time()`` gives it.
        placement: where the images lie.
        stop_by: when the command must have ended, as ``time.time()`` gives it; ``None`` for no limit.
        group: name of the sweep, for trackers.
        varies: the overrides in which the run differs from others of its sweep.
        pretrained: initial weights, if the run starts from published ones and not from its own checkpoint.
        pruning_rule: asked after each epoch whether to stop early.
        callbacks: Lightning callbacks of the caller.
    """

    config: TrainConfig
    record: RunRecord
    hardware: Hardware
    began: float
    placement: Placement
    stop_by: float | None = None
    group: str | None = None
    varies: str = ""
    pretrained: Pretrained | None = None
    pruning_rule: PruningRule | None = None
    callbacks: Sequence[Callback] = ()


def load_data(config: TrainConfig, hardware: Hardware, ranks: Ranks) -> ImageDataModule:
    """Read the images on rank 0, which fills the cache and decides where they lie, then on the other ranks.

    Raises:
        DataError: the data is missing or damaged.
    """

    def read(placement: Placement | None = None) -> ImageDataModule:
        return ImageDataModule(config, hardware.accelerator, hardware.per_node, placement)

    data = read() if ranks.rank == 0 else None
    placement = ranks.share(lambda: {} if data is None else asdict(data.placement))
    return data or read(Placement(**placement))


def deadline(config: TrainConfig, since: float) -> float | None:
    """Return when a command that began at ``since`` must have ended (``trainer.max_time``); ``None`` for no limit."""
    limit = config.trainer.max_time
    return None if limit is None else since + duration_seconds(limit)


@contextmanager
def recorded(record: RunRecord, ranks: Ranks) -> Iterator[None]:
    """Mark the run as running, and at the end as finished, failed, interrupted or pruned; only rank 0 writes."""
    if ranks.rank == 0:
        record.start()
    try:
        with ranks.failing_together():
            yield
    except BaseException as error:
        if ranks.rank == 0:
            if record.facts.get("status") == "finished":  # all is written; something failed after that
                raise
            record.end_with(error)
        if isinstance(error, Interrupted | KeyboardInterrupt | SystemExit):  # Lightning turns Ctrl-C into SystemExit
            kind = type(error) if isinstance(error, Interrupted) else Interrupted
            raise kind(f"{kind.reason}; resume with: python train.py resume={record.path}") from None
        raise


def record_origin(run: TrainingRun, data: ImageDataModule, inherited: str | None, facts: Mapping[str, Any]) -> None:
    """Write what is known before training to the run folder: configuration, command, code, versions, machine, data.

    Args:
        run: the run.
        data: its images.
        inherited: the run whose configuration it started from, ``like=RUN``.
        facts: further entries of run.json.
    """
    code, difference = provenance.code_state()
    if difference:
        run.record.write("code.diff", difference)
    run.record.update(
        **facts,
        id=run.record.name,
        started=now(),
        command=provenance.command(),
        code=code,
        versions=provenance.versions(),
        machine=provenance.machine(),
        device=run.hardware.name,
        processes=run.hardware.devices,
        precision=run.hardware.precision,
        attention_kernel=run.hardware.attention_kernel,
        images=data.sizes,
        storage=asdict(data.placement),
        classes=data.dataset.classes,
        validation=data.validation_hash,
        group=run.group,
        varies=run.varies,
        like=inherited,
        tags=run.config.tags,
        pretrained=None if run.pretrained is None else [run.pretrained.source, *run.pretrained.changes],
    )
    run.record.write_config(to_plain(run.config))


def record_resumption(run: TrainingRun) -> None:
    """Add to the run folder that the run is resumed now, with the configuration it is resumed with."""
    record = run.record
    if record.last.exists() and _is_best(record.last):
        link(record.last, record.best)  # the process may have been killed just before it did this
    times = [*record.facts.get("resumed", []), {"at": now(), "command": provenance.command()}]
    record.update(resumed=times, storage=asdict(run.placement))
    record.write_config(to_plain(run.config))


def _is_best(last: Path) -> bool:
    """Whether last.ckpt was written at the end of the best epoch so far."""
    checkpoint = read_checkpoint(last)
    best = checkpoint["callbacks"][Checkpoints.__name__]["best"]
    return bool(best) and best["best_epoch"] == checkpoint["epoch"] + 1


class StartUp:
    """Time from the start of the command to the first training step, which metrics.csv's seconds leave out.

    Args:
        run: the run.
        steps_done: optimiser steps done in earlier sessions.
    """

    def __init__(self, run: TrainingRun, steps_done: int) -> None:
        self.run = run
        self.steps_done = steps_done
        self.seconds = time.time() - run.began
        self.compile_seconds = 0.0

    def compiled(self, what: str, seconds: float) -> None:
        """Record what was compiled, so that a resumed run is compiled alike, and how long it took."""
        self.compile_seconds += seconds
        entry = {"step": self.steps_done, "seconds": round(self.seconds, 2), "compiling": round(seconds, 2)}
        entries = [*self.run.record.facts.get("start_ups", []), entry]
        self.run.record.update(compiled=what, start_ups=entries)

    def summary(self, first_step: float | None) -> dict[str, float]:
        """Return ``startup_seconds`` and ``compile_seconds``; ``first_step`` is when it began, by ``time.time()``."""
        ready = self.run.began if first_step is None else first_step - self.compile_seconds
        return {
            "startup_seconds": round(ready - self.run.began, 2),
            "compile_seconds": round(self.compile_seconds, 2),
        }
