"""How fast training was, what it waited for, and what share of the machine it used."""

import re
import resource
import sys
import time
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils.flop_counter import FlopCounterMode

from vitrine.config import ViTConfig
from vitrine.config.parts import names_of
from vitrine.distributed.hardware import DTYPES, Hardware
from vitrine.models import build_model
from vitrine.training.lit_module import Classifier

Mark = float | torch.cuda.Event


@dataclass(frozen=True)
class Machine:
    """What the hardware can do, in floating-point operations per second over all processes.

    Attributes:
        matmul: by a large matrix product measured here.
        datasheet: by the maker's figure for dense matrices; ``None`` if there is none.
    """

    matmul: float
    datasheet: float | None = None


@dataclass(frozen=True)
class Figures:
    """What a training's steps have shown.

    Attributes:
        images_per_second: by the median step, over all processes.
        images_per_second_slow: by a step that only 5 % of the steps are slower than.
        data_share: share of the time until a batch is there, augmentation included, in [0, 1].
        flops_per_second: of the model, forward and backward, by the median step; what the optimiser and augmentation
            compute does not count.
        mfu_measured: the share of :attr:`Machine.matmul`.
        mfu_datasheet: model FLOP/s utilisation (arXiv:2204.02311, appendix B): the share of :attr:`Machine.datasheet`.
        matmul_flops_per_second, datasheet_flops_per_second: what these are shares of.
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
        cls, steps: np.ndarray, waits: np.ndarray, images: int, flops_per_image: float, machine: Machine
    ) -> "Figures":
        """From the seconds of each step, its waiting included, and of that waiting.

        ``images`` are those of a step, and ``flops_per_image`` those of a forward pass; the backward pass counts twice.
        """
        median, slow = images / np.quantile(steps, [0.5, 0.95])
        rate = 3 * flops_per_image * float(median)
        return cls(
            images_per_second=round(float(median), 1),
            images_per_second_slow=round(float(slow), 1),
            data_share=round(float(waits.sum() / steps.sum()), 5),
            flops_per_second=rate,
            mfu_measured=round(rate / machine.matmul, 4),
            mfu_datasheet=round(rate / machine.datasheet, 4) if machine.datasheet else None,
            matmul_flops_per_second=machine.matmul,
            datasheet_flops_per_second=machine.datasheet,
        )


class Speed(Callback):
    """Times each step without waiting for the device; logs :class:`Figures` for each epoch, and keeps them for all.

    A step lasts from the end of the one before to its own end. Validation is left out.

    Args:
        flops_per_image: of a forward pass.
        machine: what the hardware can do.
    """

    def __init__(self, flops_per_image: float, machine: Machine) -> None:
        self.flops_per_image = flops_per_image
        self.machine = machine
        self.steps: list[np.ndarray] = []
        self.waits: list[np.ndarray] = []
        self.images = 0
        self.first_step: float | None = None  # when the first step began, as time.time() gives it

    @property
    def figures(self) -> dict[str, float | None]:
        """Over all epochs trained here; empty before the first."""
        if not self.steps:
            return {}
        steps, waits = np.concatenate(self.steps), np.concatenate(self.waits)
        return asdict(Figures.of(steps, waits, self.images, self.flops_per_image, self.machine))

    def start_clock(self, device: torch.device) -> None:
        """From now on it counts as waiting for a batch; to be called where training goes on inside an epoch."""
        self._marks = [_mark(device)]

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Start the clock."""
        self.start_clock(module.device)

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """The batch is there."""
        self._marks.append(_mark(module.device))
        self.first_step = self.first_step or time.time()

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """The step is done, or given to the device."""
        self._marks.append(_mark(module.device))

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Log the epoch, which ends with its validation."""
        assert isinstance(module, Classifier)
        seconds = np.array([_seconds(one, other) for one, other in pairwise(self._marks)])
        waits, work = seconds[::2], seconds[1::2]
        if len(work) == 0:
            return
        self.images = module.images_per_step
        self.steps.append(waits + work)
        self.waits.append(waits)
        figures = Figures.of(self.steps[-1], waits, self.images, self.flops_per_image, self.machine)
        names = ("images_per_second", "data_share", "mfu_measured", "mfu_datasheet")
        module.log_now({name: value for name in names if (value := getattr(figures, name)) is not None})


def _mark(device: torch.device) -> Mark:
    """A point in the work of the device."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _seconds(one: Mark, other: Mark) -> float:
    if isinstance(one, float) and isinstance(other, float):
        return other - one
    assert isinstance(one, torch.cuda.Event)
    assert isinstance(other, torch.cuda.Event)
    other.synchronize()
    return one.elapsed_time(other) / 1000


def forget_peak_memory(hardware: Hardware) -> None:
    """Count the most GPU memory from now on."""
    if hardware.accelerator == "cuda":
        torch.cuda.reset_peak_memory_stats()


def flops_per_image(config: ViTConfig) -> int:
    """Floating-point operations of a forward pass on one image: matrix products only, a multiply-add counting as 2."""
    device = "cpu" if names_of(config) else "meta"  # a user's code may compute with values
    with torch.device(device), torch.no_grad(), torch.random.fork_rng(devices=[]):
        model = build_model(config).eval()
        images = torch.zeros(1, config.in_channels, config.image_size, config.image_size)
        with FlopCounterMode(display=False) as counter:
            model(images)
    return int(counter.get_total_flops())


def peak_memory(hardware: Hardware) -> dict[str, int]:
    """Most memory this process has held, in bytes: ``peak_memory``, and ``peak_gpu_memory`` on a CUDA GPU."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = {"peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    if hardware.accelerator == "cuda":
        peak["peak_gpu_memory"] = torch.cuda.max_memory_allocated()
    return peak


# Floating-point operations per second of a whole card by its datasheet, in units of 1e12: with bfloat16 (float16 on
# cards that have no other), TF32 and float32; dense, not the doubled figures for sparse matrices. The first pattern
# found in the card's name counts. Sources: NVIDIA's datasheets of these cards, and the Ampere, Ada and Hopper
# architecture whitepapers.
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


def datasheet_peak(name: str, precision: str) -> float | None:
    """Floating-point operations per second that a GPU's datasheet promises for dense matrices; ``None`` if unknown.

    Args:
        name: of the card, as CUDA gives it.
        precision: the word of ``trainer.precision``.
    """
    column = {"bf16-mixed": 0, "16-mixed": 0, "tf32": 1, "32-true": 2}.get(precision)
    peaks = next((peaks for pattern, peaks in PEAKS.items() if re.search(pattern, name)), None)
    return None if peaks is None or column is None else peaks[column] * 1e12


@cache
def matmul_peak(device: str, precision: str, threads: int) -> float:
    """Floating-point operations per second of a large matrix product here: the fastest of many.

    A machine that is busy with something else all the while gives too little; training may then seem to use more.

    Args:
        device: ``cpu``, ``cuda`` or ``mps``.
        precision: the word of ``trainer.precision``.
        threads: of PyTorch; another number is measured anew.
    """
    halves = precision in ("bf16-mixed", "16-mixed")
    size = 1024 if device == "cpu" else 8192 if halves else 4096
    a, b = (torch.randn(size, size, device=device, dtype=DTYPES[precision]) for _ in range(2))
    seconds: list[float] = []
    end = time.perf_counter() + 0.25
    while len(seconds) < 8 or time.perf_counter() < end:  # of a busy machine's moments, the best
        begin = time.perf_counter()
        product = a @ b
        product[0, 0].item()  # waits for the device
        seconds.append(time.perf_counter() - begin)
    return 2 * size**3 / min(seconds)
