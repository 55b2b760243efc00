"""What a model and a training cost, and what this machine could do."""

import re
import resource
import sys
import time
from functools import cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from vitrine.config import ViTConfig
from vitrine.models import VisionTransformer
from vitrine.training.devices import DTYPES, Hardware


def forget_peak_memory(hardware: Hardware) -> None:
    """Count the most GPU memory from now on."""
    if hardware.accelerator == "cuda":
        torch.cuda.reset_peak_memory_stats()


def flops_per_image(config: ViTConfig) -> int:
    """Floating-point operations of a forward pass on one image: matrix products only, a multiply-add counting as 2."""
    with torch.device("meta"), torch.no_grad():
        model = VisionTransformer(config)
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
