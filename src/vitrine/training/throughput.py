"""Training speed: images per second, time spent waiting for data, and model FLOP/s utilisation (MFU)."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback

from vitrine.data.loader import TrainLoader
from vitrine.training.lit_module import Classifier
from vitrine.training.peak_flops import PeakFlops, matmul_peak


@dataclass(frozen=True)
class StepStatistics:
    """Speed of training steps; the values of ``speed`` in run.json.

    Batches that are smaller than the others, as an epoch's last can be, count in ``data_share`` only.

    Attributes:
        images_per_second: by the median step, over all ranks.
        images_per_second_slow: by a step that only 5 % of the steps are slower than.
        data_share: share of the time spent waiting for batches, augmentation included, in [0, 1].
        flops_per_second: model FLOP/s, forward and backward and a teacher's forward, by the median step; the
            optimiser's and augmentation's operations do not count.
        mfu_measured: share of :attr:`PeakFlops.matmul`.
        mfu_datasheet: model FLOP/s utilisation (arXiv:2204.02311, appendix B): share of :attr:`PeakFlops.datasheet`.
        matmul_flops_per_second, datasheet_flops_per_second: the peaks themselves.
    """

    images_per_second: float
    images_per_second_slow: float
    data_share: float
    flops_per_second: float
    mfu_measured: float
    mfu_datasheet: float | None
    matmul_flops_per_second: float
    datasheet_flops_per_second: float | None

    @classmethod
    def of(
        cls, steps: np.ndarray, waits: np.ndarray, images: np.ndarray, training_flops: np.ndarray, peak: PeakFlops
    ) -> "StepStatistics":
        """Summarise timed steps.

        Args:
            steps: seconds of each step, waiting for its batch included; (N,).
            waits: seconds of that waiting; (N,).
            images: images in each step, over all ranks; (N,).
            training_flops: FLOPs of the forward and backward pass on one image in each step
                (:func:`~vitrine.training.flops.training_flops_per_image`); (N,).
            peak: of the hardware.
        """
        whole = images == images.max()
        seconds = steps[whole] / images[whole]
        median, slow = 1 / np.quantile(seconds, [0.5, 0.95])
        rate = 1 / float(np.median(seconds / training_flops[whole]))
        return cls(
            images_per_second=round(float(median), 1),
            images_per_second_slow=round(float(slow), 1),
            data_share=round(float(waits.sum() / steps.sum()), 5),
            flops_per_second=rate,
            mfu_measured=round(rate / peak.matmul, 4),
            mfu_datasheet=round(rate / peak.datasheet, 4) if peak.datasheet else None,
            matmul_flops_per_second=peak.matmul,
            datasheet_flops_per_second=peak.datasheet,
        )


Timestamp = float | torch.cuda.Event


class Throughput(Callback):
    """Times each step without waiting for the device, and logs the speed of each epoch.

    A step lasts from the end of the previous step to its own end. Validation is left out.

    Args:
        training_flops: FLOPs of the forward and backward pass on one image in an epoch, from 0
            (:func:`~vitrine.training.flops.flops_by_epoch`).
        measure_peak: returns the peak of the hardware. Called after the first epoch's steps, where it delays no
            step, and again after an epoch that was faster: other programs had slowed the first measurement.
    """

    MEASUREMENTS = 3  # of the peak, at most: it takes a quarter of a second

    def __init__(self, training_flops: Callable[[int], float], measure_peak: Callable[[], PeakFlops]) -> None:
        self.training_flops = training_flops
        self.measure_peak = measure_peak
        self.peaks: list[PeakFlops] = []
        self.steps: list[np.ndarray] = []
        self.waits: list[np.ndarray] = []
        self.images: list[np.ndarray] = []
        self.flops: list[np.ndarray] = []
        self.first_step: float | None = None  # when the first step began, as time.time() gives it

    @property
    def summary(self) -> dict[str, float | None]:
        """:class:`StepStatistics` of all epochs in this process; empty before the end of the first epoch."""
        if not self.steps:
            return {}
        columns = (self.steps, self.waits, self.images, self.flops)
        return asdict(self._statistics(*(np.concatenate(parts) for parts in columns)))

    def start_clock(self, device: torch.device) -> None:
        """Start timing: from now on, time counts as waiting for a batch.

        To be called after an interruption inside an epoch, such as compilation.
        """
        self._timestamps = [_timestamp(device)]
        self._counts: list[int] = []  # images of each step

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Start timing."""
        self.start_clock(module.device)

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        """Record that the batch is ready."""
        self._timestamps.append(_timestamp(module.device))
        self._counts.append(len(batch[1]) * trainer.world_size)
        self.first_step = self.first_step or time.time()

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Record the end of the step, as the device reaches it."""
        self._timestamps.append(_timestamp(module.device))

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Log the speed of the epoch, whose steps are done."""
        assert isinstance(module, Classifier)
        seconds = np.array([_seconds_between(begin, end) for begin, end in pairwise(self._timestamps)])
        waits, work = seconds[::2], seconds[1::2]
        if len(work) == 0:
            return
        assert isinstance(trainer.train_dataloader, TrainLoader)
        waits = shared(waits, trainer.train_dataloader.at_once)
        self.steps.append(waits + work)
        self.waits.append(waits)
        self.images.append(np.array(self._counts))
        self.flops.append(np.full(len(work), self.training_flops(trainer.current_epoch), dtype=np.float64))
        epoch = self._statistics(self.steps[-1], waits, self.images[-1], self.flops[-1])
        names = ("images_per_second", "data_share", "mfu_measured", "mfu_datasheet")
        module.log_now({name: value for name in names if (value := getattr(epoch, name)) is not None})

    def _statistics(
        self, steps: np.ndarray, waits: np.ndarray, images: np.ndarray, flops: np.ndarray
    ) -> StepStatistics:
        while True:
            if not self.peaks:
                self.peaks.append(self.measure_peak())
            peak = max(self.peaks, key=lambda peak: peak.matmul)
            found = StepStatistics.of(steps, waits, images, flops, peak)
            if found.mfu_measured <= 1 or len(self.peaks) == self.MEASUREMENTS:
                return found
            matmul_peak.cache_clear()
            self.peaks.append(self.measure_peak())


def shared(waits: np.ndarray, at_once: int) -> np.ndarray:
    """Share the waits (N,) for batches that are augmented ``at_once``, all before the first, among these batches."""
    groups = np.arange(len(waits)) // at_once
    return (np.bincount(groups, waits) / np.bincount(groups))[groups]


def _timestamp(device: torch.device) -> Timestamp:
    """Return the time, or an event in the device's queue of work."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _seconds_between(begin: Timestamp, end: Timestamp) -> float:
    if isinstance(begin, float) and isinstance(end, float):
        return end - begin
    assert isinstance(begin, torch.cuda.Event)
    assert isinstance(end, torch.cuda.Event)
    end.synchronize()
    return begin.elapsed_time(end) / 1000
