"""Who is told of a run's metrics: the run folder always; Weights & Biases and TensorBoard as guests, when asked for.

A guest that fails is told nothing more, and training goes on: everything is in the run folder. Nothing of a guest is
imported before it is asked for.
"""

import os
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from vitrine.config.plain import to_plain
from vitrine.config.schema import TensorBoardConfig, TrainConfig, WandbConfig
from vitrine.errors import Interrupted, Pruned
from vitrine.runs import MetricsFile, RunRecord


class Tracker(Protocol):
    """Somebody who is told of metrics while they are made."""

    name: str

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Take metrics of an optimiser step."""

    def finish(self, status: str, metrics: Mapping[str, float], pictures: Mapping[str, Path]) -> None:
        """Take the final metrics and pictures, and end: ``status`` is that of run.json."""


class WandbTracker:
    """One Weights & Biases run. Its id is kept in run.json, so that a run that goes on is the same run there.

    Args:
        settings: project, mode and so on.
        config: everything the run is made with.
        record: the run.
        group: runs that belong together, unless the settings name one.
        varies: what distinguishes this run in its group.
    """

    name = "wandb"

    def __init__(
        self, settings: WandbConfig, config: TrainConfig, record: RunRecord, group: str | None, varies: str
    ) -> None:
        import wandb

        identity = record.facts.get("wandb_id") or secrets.token_hex(4)
        record.update(wandb_id=identity)
        self.run = wandb.init(
            id=identity,
            resume="allow",
            reinit="create_new",
            dir=str(record.path),
            project=settings.project,
            entity=settings.entity,
            mode=settings.mode,  # type: ignore[arg-type]
            group=settings.group or group,
            name=settings.name or varies or record.name,
            tags=[*config.tags, *settings.tags] or None,
            notes=settings.notes,
            job_type="train",
            config=to_plain(config),
            settings=wandb.Settings(console="off", silent=True, init_timeout=60, quiet=True),
        )
        self.run.define_metric("*", step_metric="step")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send metrics; the step is a metric like others, so a run that goes on may repeat steps."""
        self.run.log({**metrics, "step": step})

    def finish(self, status: str, metrics: Mapping[str, float], pictures: Mapping[str, Path]) -> None:
        """Set the summary, add the pictures, and end the run: as failed where ``status`` says so."""
        import wandb

        self.run.summary.update(dict(metrics))
        for name, path in pictures.items():
            self.run.log({name: wandb.Image(str(path))})
        self.run.finish(exit_code=0 if status in ("finished", "pruned") else 1)


class TensorBoardTracker:
    """TensorBoard event files in the run folder."""

    name = "tensorboard"

    def __init__(self, settings: TensorBoardConfig, record: RunRecord) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(record.path / "tensorboard"), flush_secs=settings.flush_secs)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a scalar for each metric."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def finish(self, status: str, metrics: Mapping[str, float], pictures: Mapping[str, Path]) -> None:
        """Add the final metrics and the pictures, and close the files."""
        import numpy as np
        from PIL import Image

        for name, value in metrics.items():
            self.writer.add_scalar(f"final/{name}", value)
        for name, path in pictures.items():
            self.writer.add_image(name, np.asarray(Image.open(path).convert("RGB")), dataformats="HWC")
        self.writer.close()


class RunLogger(Logger):
    """Writes each row to metrics.csv, then tells the guests. Works in the first process only.

    As a context it lets the guests end whatever happens, with what became of the run.

    Args:
        record: the run.
        step: optimiser steps done before; later rows of metrics.csv are dropped.
        guests: who else is told.
    """

    def __init__(self, record: RunRecord, step: int, guests: list[Tracker]) -> None:
        super().__init__()
        self.record = record
        self.guests = guests
        self._file = MetricsFile(record, step)
        self._start = time.monotonic() - self._file.seconds
        self._metrics: Mapping[str, float] = {}
        self._pictures: Mapping[str, Path] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        status = (
            "finished"
            if kind is None
            else "pruned"
            if issubclass(kind, Pruned)
            else "interrupted"
            if issubclass(kind, (Interrupted, KeyboardInterrupt))
            else "failed"
        )
        for guest in list(self.guests):
            try:
                guest.finish(status, self._metrics, self._pictures)
            except Exception as error:
                self._dismiss(guest, error)

    @property
    def seconds(self) -> float:
        """Time spent training so far, in earlier sessions too."""
        return time.monotonic() - self._start

    def conclude(self, metrics: Mapping[str, float], pictures: Mapping[str, Path]) -> None:
        """Keep the final metrics and pictures for the guests' end."""
        self._metrics, self._pictures = metrics, pictures

    @property
    def name(self) -> str:
        """Of the run."""
        return self.record.name

    @property
    def version(self) -> str:
        """There is one."""
        return ""

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the configuration is in the run folder before training starts."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add a row."""
        assert step is not None
        self._file.append({**metrics, "step": step, "seconds": round(self.seconds, 3)})
        for guest in list(self.guests):
            try:
                guest.log(metrics, step)
            except Exception as error:  # a guest may fail in any way; the run goes on
                self._dismiss(guest, error)

    def _dismiss(self, guest: Tracker, error: Exception) -> None:
        self.guests.remove(guest)
        print(f"vitrine: {guest.name} failed and is told nothing more: {_in_one_line(error)}", file=sys.stderr)


def invite(config: TrainConfig, record: RunRecord, group: str | None, varies: str) -> list[Tracker]:
    """The guests that ``config`` asks for. One that can't be reached stays away, with a line that says so."""
    guests: list[Tracker] = []
    if config.logger.wandb is not None:
        os.environ.setdefault("WANDB_SILENT", "true")
        try:
            guests.append(WandbTracker(config.logger.wandb, config, record, group, varies))
        except Exception as error:
            hint = "logger.wandb.mode=offline keeps the run for `wandb sync`; `wandb login` logs in"
            print(f"vitrine: wandb could not start: {_in_one_line(error)} ({hint})", file=sys.stderr)
    if config.logger.tensorboard is not None:
        try:
            guests.append(TensorBoardTracker(config.logger.tensorboard, record))
        except Exception as error:
            print(f"vitrine: tensorboard could not start: {_in_one_line(error)}", file=sys.stderr)
    return guests


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
