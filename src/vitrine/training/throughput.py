"""Training speed: images per second, time spent waiting for data, and model FLOP/s utilisation (MFU)."""

import re
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitrine.config import TrainConfig, ViTConfig
from vitrine.config.image_schedule import image_sides
from vitrine.config.part_failures import failing_in_one_line
from vitrine.config.parts import names_of
from vitrine.data.loader import TrainLoader
from vitrine.distributed.hardware import DTYPES, Hardware
from vitrine.models import VisionTransformer, build_model
from vitrine.training.finetune import freeze, has_constant_features
from vitrine.training.lit_module import Classifier

# Dense peak TFLOP/s of a whole card in bfloat16 (float16 on cards without bfloat16), TF32 and float32. Lightning's
# table has the doubled rates of sparse matrices for some cards. The first pattern that matches the card's name counts.
# Sources: NVIDIA's datasheets of these cards, and the Ampere, Ada and Hopper architecture whitepapers.
PEAKS: dict[str, tuple[float, float, float]] = {
    r"H[12]00 NVL": (835.5, 417.5, 60.0),
    r"H100 PCIe": (756.0, 378.0, 51.2),
    r"H[12]00|GH200": (989.4, 494.7, 66.9),
    r"A100": (312.0, 156.0, 19.5),
    r"L40S": (362.05, 183.0, 91.6),
    r"L4\b": (121.0, 60.0, 30.3),
    r"A10\b": (125.0, 62.5, 31.2),
    r"RTX 4090$": (165.2, 82.6, 82.6),
    r"RTX 3090\b(?! Ti)": (71.0, 35.6, 35.6),
    r"V100-SXM2": (125.0, 15.7, 15.7),
    r"T4\b": (65.0, 8.1, 8.1),
}


# Depth times squared width of 24 M parameters, and tokens: up to these, operations are counted on the CPU. On the meta
# device, which takes no memory, PyTorch imports sympy, and computes shapes in Python: five times as long for vit_tiny.
SMALL_MODEL, SHORT_SEQUENCE = 2_000_000, 1024


def flops_per_image(config: ViTConfig, *, training: bool = False) -> int:
    """Floating-point operations of a forward pass on one image: matrix products only, a multiply-add counting as 2.

    With ``training``, of the patches that patch dropout keeps.
    """
    return _count_flops(config, training=training)[1].get_total_flops()


def _count_flops(config: ViTConfig, *, training: bool = False) -> tuple[nn.Module, FlopCounterMode]:
    """Return a model and the counted operations of its forward pass; see :func:`flops_per_image`."""
    short = config.tokens <= SHORT_SEQUENCE
    small = short and config.depth * config.dim**2 <= SMALL_MODEL
    device = "cpu" if small or names_of(config) else "meta"  # a user's code may compute with values
    if short or device == "meta":  # where attention maps take little memory
        config = replace(config, attention_kernel="explicit")  # PyTorch 2.11 does not count its fused kernel on CPUs
    failing = failing_in_one_line(config)  # of an image alone
    with failing, torch.device(device), torch.no_grad(), torch.random.fork_rng(devices=[]):
        model = build_model(config).eval()
        if isinstance(model, VisionTransformer):
            model.patch_drop.train(training)
        images = torch.zeros(1, config.in_channels, *config.image_hw)
        with FlopCounterMode(display=False) as counter:
            model(images)
    return model, counter


def training_flops_per_image(config: TrainConfig, forward: int) -> int:
    """FLOPs of the forward and backward pass on one image.

    The backward pass counts as two forward passes through what is trained. Frozen layers take no backward pass, and no
    forward pass either where their features are computed once.

    Args:
        config: how the model is trained.
        forward: FLOPs of a forward pass on an image, without patch dropout.
    """
    if config.finetune.name == "full":
        return 3 * (flops_per_image(config.model, training=True) if config.model.patch_dropout else forward)
    model, counter = _count_flops(config.model)
    parts = freeze(model, config.finetune) or []
    names = [f"{type(model).__name__}.{name}" for name, module in model.named_modules() if module in parts]
    trained = sum(sum(counter.get_flop_counts().get(name, {}).values()) for name in names)
    return 3 * trained if has_constant_features(config) else forward + 2 * trained


def flops_by_epoch(config: TrainConfig, forward: int) -> list[int]:
    """Return :func:`training_flops_per_image` in each epoch, which ``trainer.image_schedule`` lets differ."""
    trainer = config.trainer
    sides = image_sides(trainer.image_schedule, trainer.max_epochs)
    flops: dict[int | None, int] = {None: training_flops_per_image(config, forward)}
    for side in sides:
        if side is not None and side not in flops:
            flops[side] = 3 * flops_per_image(replace(config.model, image_size=side), training=True)
    return [flops[side] for side in sides]


def datasheet_peak(name: str, precision: str) -> float | None:
    """Dense peak FLOP/s of a GPU by its datasheet; ``None`` if unknown.

    Args:
        name: the card's name, as CUDA reports it.
        precision: a choice of ``trainer.precision``.
    """
    column = {"bf16-mixed": 0, "16-mixed": 0, "tf32": 1, "32-true": 2}.get(precision)
    peaks = next((peaks for pattern, peaks in PEAKS.items() if re.search(pattern, name)), None)
    return None if peaks is None or column is None else peaks[column] * 1e12


@cache
def matmul_peak(device: str, precision: str, threads: int) -> float:
    """FLOP/s of a large matrix product on this machine: the fastest of those in a quarter of a second.

    Too low if another program keeps the machine busy throughout: :class:`Throughput` then measures it again.

    Args:
        device: ``cpu``, ``cuda`` or ``mps``.
        precision: a choice of ``trainer.precision``.
        threads: PyTorch's threads, on which the result depends.
    """
    halves = precision in ("bf16-mixed", "16-mixed")
    size = 1024 if device == "cpu" else 8192 if halves else 4096
    a, b = (torch.randn(size, size, device=device, dtype=DTYPES[precision]) for _ in range(2))
    (a @ b)[0, 0].item()  # loads what computes it, and waits for the device
    seconds: list[float] = []
    end = time.perf_counter() + 0.25
    while not seconds or time.perf_counter() < end:  # a CPU without bfloat16 takes longer for one
        begin = time.perf_counter()
        (a @ b)[0, 0].item()
        seconds.append(time.perf_counter() - begin)
    return 2 * size**3 / min(seconds)


@dataclass(frozen=True)
class PeakFlops:
    """Peak FLOP/s of all devices together.

    Attributes:
        matmul: of a large matrix product, measured here.
        datasheet: of dense matrices by the maker's datasheet; ``None`` if unknown.
    """

    matmul: float
    datasheet: float | None = None

    @classmethod
    def of(cls, hardware: Hardware) -> "PeakFlops":
        """Measure and look up the peak of ``hardware``."""
        measured = matmul_peak(hardware.accelerator, hardware.precision, torch.get_num_threads())
        datasheet = datasheet_peak(hardware.name, hardware.precision) if hardware.accelerator == "cuda" else None
        return cls(measured * hardware.devices, None if datasheet is None else datasheet * hardware.devices)


@dataclass(frozen=True)
class StepStatistics:
    """Speed of training steps; the values of ``speed`` in run.json.

    Batches that are smaller than the others, as an epoch's last can be, count in ``data_share`` only.

    Attributes:
        images_per_second: by the median step, over all ranks.
        images_per_second_slow: by a step that only 5 % of the steps are slower than.
        data_share: share of the time spent waiting for batches, augmentation included, in [0, 1].
        flops_per_second: model FLOP/s, forward and backward, by the median step; the optimiser's and augmentation's
            operations do not count.
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
                (:func:`training_flops_per_image`); (N,).
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
            (:func:`flops_by_epoch`).
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


def reset_peak_memory(hardware: Hardware) -> None:
    """Start measuring the peak of GPU memory."""
    if hardware.accelerator == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_memory(hardware: Hardware) -> dict[str, int]:
    """Return this process's peak memory in bytes: ``peak_memory``, and ``peak_gpu_memory`` on a CUDA GPU."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = {"peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    if hardware.accelerator == "cuda":
        peak["peak_gpu_memory"] = torch.cuda.max_memory_allocated()
    return peak
