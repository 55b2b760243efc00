"""Who is told of a run's metrics: the run folder always; Weights & Biases and TensorBoard as guests, when asked for.

A guest that fails is told nothing more, and training goes on: everything is in the run folder. Nothing of a guest is
imported before it is asked for.
"""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from vitrine.config.schema import TensorBoardConfig, TrainConfig
from vitrine.config.serialize import to_plain
from vitrine.errors import first_line
from vitrine.runs import MetricsFile, RunRecord
from vitrine.runs.flatten import flatten


class Tracker(Protocol):
    """Somebody who is told of metrics while they are made."""

    name: str

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Take metrics of an optimiser step."""

    def finish(self, status: str, metrics: Mapping[str, float], pictures: Mapping[str, Path]) -> None:
        """Take the final metrics and pictures, and end: ``status`` is that of run.json."""


class TensorBoardTracker:
    """TensorBoard event files in the run folder: scalars, pictures, and the configuration with what it reached."""

    name = "tensorboard"

    def __init__(self, settings: TensorBoardConfig, config: TrainConfig, record: RunRecord, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.config = config
        self.step = step
        # What a killed session had told of later steps is told anew.
        folder = str(record.path / "tensorboard")
        self.writer = SummaryWriter(folder, purge_step=step + 1, flush_secs=settings.flush_secs)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a scalar for each metric."""
        self.step = step
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def finish(self, status: str, metrics: Mapping[str, float], pictures: Mapping[str, Path]) -> None:
        """Add the final metrics, the pictures, and the configuration for the HPARAMS page, and close the files."""
        import numpy as np
        from PIL import Image
        from torch.utils.tensorboard.summary import hparams

        final = {f"final/{name}": value for name, value in metrics.items()}
        for name, value in final.items():
            self.writer.add_scalar(name, value, self.step)
        for name, path in pictures.items():
            self.writer.add_image(name, np.asarray(Image.open(path).convert("RGB")), self.step, dataformats="HWC")
        values = {name: _as_hparam(value) for name, value in flatten(to_plain(self.config)).items()}
        for summary in hparams(values, final):  # add_hparams would open a second folder for it
            self.writer._get_file_writer().add_summary(summary)
        self.writer.close()


def _as_hparam(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)


class RunLogger(Logger):
    """Writes each row to metrics.csv, then tells the guests. Works in the first process only.

    As a context it ends the record, and then lets the guests end, whatever happens: with what became of the run.

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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        status = "failed"
        try:
            status = self.record.end_with(error)  # guests may take long, and who waits for them may be killed
        finally:
            for guest in list(self.guests):
                try:
                    guest.finish(status, self._metrics, self._pictures)
                except Exception as problem:
                    self._dismiss(guest, problem)

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
        row = {**metrics, "seconds": round(self.seconds, 3)}
        self._file.append({**row, "step": step})
        for guest in list(self.guests):
            try:
                guest.log(row, step)
            except Exception as error:  # a guest may fail in any way; the run goes on
                self._dismiss(guest, error)

    def _dismiss(self, guest: Tracker, error: Exception) -> None:
        self.guests.remove(guest)
        print(f"vitrine: {guest.name} failed and is told nothing more: {first_line(error)}", file=sys.stderr)


def invite(
    config: TrainConfig,
    record: RunRecord,
    step: int,
    group: str | None,
    varies: str,
    stop_by: float | None = None,
) -> list[Tracker]:
    """The guests that ``config`` asks for. One that can't come stays away, with a line that says so.

    Args:
        config: everything the run is made with.
        record: the run.
        step: optimiser steps done before.
        group: word that runs of one sweep share.
        varies: what distinguishes the run in its group.
        stop_by: when the process must have ended, as ``time.time()`` gives it.
    """
    asked: dict[str, Callable[[], Tracker]] = {}
    wandb, tensorboard = config.logger.wandb, config.logger.tensorboard
    if wandb is not None and wandb.mode != "disabled":

        def come() -> Tracker:
            from vitrine.tracking.wandb import WandbTracker

            return WandbTracker(wandb, config, record, group, varies, stop_by)

        asked["wandb"] = come
    if tensorboard is not None:
        asked["tensorboard"] = lambda: TensorBoardTracker(tensorboard, config, record, step)
    guests = []
    for name, come in asked.items():
        try:
            guests.append(come())
        except Exception as error:
            print(f"vitrine: {name} could not start: {first_line(error)}", file=sys.stderr)
    return guests
