"""Loggers of a run: metrics.csv in its folder always, Weights & Biases and TensorBoard as trackers on request.

A tracker that fails gets no more metrics, and training continues: everything is in the run folder. Nothing of a tracker
is imported unless it is asked for.
"""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from vitrine.config.loggers import TensorBoardConfig
from vitrine.config.parts import Part, PartError, build, parts_of
from vitrine.config.schema import TrainConfig
from vitrine.config.serialize import to_plain
from vitrine.errors import NotWaitedFor, RunError, first_line
from vitrine.runs import MetricsFile, RunRecord
from vitrine.runs.flatten import flatten
from vitrine.text import report
from vitrine.tracking.wandb_values import completed


class Tracker(Protocol):
    """A service that shows metrics while training runs."""

    name: str

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of an optimiser step."""

    def finish(self, status: str, metrics: Mapping[str, float], plots: Mapping[str, Path]) -> None:
        """Log the final metrics and plots, and end; ``status`` is that of run.json."""


class TensorBoardTracker:
    """TensorBoard event files in the run folder: scalars, plots, and the configuration with its final metrics."""

    name = "tensorboard"

    def __init__(self, settings: TensorBoardConfig, config: TrainConfig, record: RunRecord, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.config = config
        self.step = step
        # Later steps, which a killed session had logged, are logged again.
        folder = str(record.path / "tensorboard")
        self.writer = SummaryWriter(folder, purge_step=step + 1, flush_secs=settings.flush_secs)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a scalar for each metric."""
        self.step = step
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def finish(self, status: str, metrics: Mapping[str, float], plots: Mapping[str, Path]) -> None:
        """Add the final metrics, the plots, and the configuration for the HPARAMS page, and close the files."""
        import numpy as np
        from PIL import Image
        from torch.utils.tensorboard.summary import hparams

        final = {f"final/{name}": value for name, value in metrics.items()}
        values = {name: _as_hparam(value) for name, value in flatten(to_plain(self.config)).items()}
        try:
            for name, value in final.items():
                self.writer.add_scalar(name, value, self.step)
            for summary in hparams(values, final):  # add_hparams would open a second folder for it
                self.writer._get_file_writer().add_summary(summary)
            for name, path in plots.items():  # last: one that cannot be read keeps back nothing else
                self.writer.add_image(name, np.asarray(Image.open(path).convert("RGB")), self.step, dataformats="HWC")
        finally:
            self.writer.close()


def _as_hparam(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)


class RunLogger(Logger):
    """Writes each row of metrics to metrics.csv, then passes it to the trackers. For rank 0.

    As a context manager it sets the run's final status (:meth:`RunRecord.end_with`), then ends the trackers with it.
    Rows of metrics.csv after ``step`` are dropped.
    """

    def __init__(self, record: RunRecord, step: int, trackers: list[Tracker]) -> None:
        super().__init__()
        self.record = record
        self.trackers = trackers
        self._file = MetricsFile(record, step)
        self._step = step
        self._start = time.monotonic() - self._file.seconds
        self._metrics: Mapping[str, float] = {}
        self._plots: Mapping[str, Path] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        status, stopped = "failed", False
        try:
            status = self.record.end_with(error)  # first: ending trackers may take long
        finally:
            for tracker in list(self.trackers):
                try:
                    tracker.finish(status, self._metrics, self._plots)
                except Exception as problem:
                    self._drop(tracker, problem)
                    stopped |= isinstance(problem, NotWaitedFor)
        if stopped and status != "interrupted" and self.record.facts.get("group"):
            raise KeyboardInterrupt  # before the sweep's next trial; an interrupted one ends it by itself

    @property
    def seconds(self) -> float:
        """Seconds of training so far, earlier sessions included."""
        return time.monotonic() - self._start

    def conclude(self, metrics: Mapping[str, float], plots: Mapping[str, Path]) -> None:
        """Keep the final metrics and plots until the trackers end."""
        self._metrics, self._plots = metrics, plots

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.record.name

    @property
    def version(self) -> str:
        """Empty: a run has one version."""
        return ""

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the configuration is in the run folder before training starts."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log a row; without ``step``, that of the row before.

        Raises:
            RunError: a metric is not a number.
        """
        step = self._step = self._step if step is None else step
        row = {name: _number(name, value) for name, value in metrics.items()} | {"seconds": round(self.seconds, 3)}
        self._file.append({**row, "step": step})
        for tracker in list(self.trackers):
            try:
                tracker.log(row, step)
            except Exception as error:  # a tracker may fail in any way; the run continues
                self._drop(tracker, error)

    def _drop(self, tracker: Tracker, error: Exception) -> None:
        self.trackers.remove(tracker)
        report(f"{tracker.name} failed and gets no more metrics: {first_line(error)}")


def _number(name: str, value: Any) -> float:
    try:
        return int(value) if name == "epoch" else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # a tensor raises any but the last
        raise RunError(f"cannot log {name}: it must be one number, not a {type(value).__name__}") from None


class LoggerTracker:
    """A Lightning logger of the user's, as a tracker. It gets the configuration as its hyperparameters."""

    def __init__(self, part: Part, config: TrainConfig) -> None:
        self.name = part.name
        self.logger = build(part)
        if not isinstance(self.logger, Logger):
            raise PartError(part.name, f"must give a Lightning Logger, not {type(self.logger).__name__}")
        self.logger.log_hyperparams(flatten(to_plain(config)))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics of an optimiser step."""
        self.logger.log_metrics(dict(metrics), step)

    def finish(self, status: str, metrics: Mapping[str, float], plots: Mapping[str, Path]) -> None:
        """Log the final metrics as ``final/...``, and end with Lightning's word for the status."""
        if metrics:
            self.logger.log_metrics({f"final/{name}": value for name, value in metrics.items()})
        self.logger.save()
        self.logger.finalize("success" if status in ("finished", "pruned") else "failed")


def start_trackers(
    config: TrainConfig,
    record: RunRecord,
    step: int,
    group: str | None,
    varies: str,
    stop_by: float = math.inf,
) -> list[Tracker]:
    """Start the trackers that ``config`` asks for. A tracker that can't start is reported and left out.

    A run that W&B has, and that continues without it, is to be pushed again.

    Args:
        config: the run's configuration.
        record: the run folder.
        step: optimiser steps done before.
        group: name shared by the runs of a sweep.
        varies: the overrides in which the run differs from others of its group.
        stop_by: when the process must have ended, as ``time.time()`` gives it; infinite for no limit.
    """
    requested: dict[str, Callable[[], Tracker]] = {}
    wandb, tensorboard = config.logger.wandb, config.logger.tensorboard
    if wandb is not None:
        wandb = completed(wandb, record)
    if wandb is not None and wandb.mode != "disabled":

        def start_wandb() -> Tracker:
            from vitrine.tracking.wandb import WandbTracker

            return WandbTracker(wandb, config, record, group, varies, stop_by)

        requested["wandb"] = start_wandb
    if tensorboard is not None:
        requested["tensorboard"] = lambda: TensorBoardTracker(tensorboard, config, record, step)
    for part in parts_of(config.logger):
        requested[part.name] = partial(LoggerTracker, part, config)
    trackers: list[Tracker] = []
    for name, start in requested.items():
        try:
            trackers.append(start())
        except Exception as error:
            report(f"{name} could not start: {first_line(error)}")
    if record.facts.get("wandb_id") and not any(tracker.name == "wandb" for tracker in trackers):
        record.update(wandb_open=True, wandb_pushed=None)  # the server lacks this session
    return trackers
