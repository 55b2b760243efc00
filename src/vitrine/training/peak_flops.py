"""Peak FLOP/s of hardware: measured by a large matrix product, and by the maker's datasheet."""

import re
import time
from dataclasses import dataclass
from functools import cache

import torch

from vitrine.distributed.hardware import DTYPES, Hardware, cpu_supports_bf16

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

    Too low if another program keeps the machine busy throughout:
    :class:`~vitrine.training.throughput.Throughput` then measures it again.

    Args:
        device: ``cpu``, ``cuda`` or ``mps``.
        precision: a choice of ``trainer.precision``.
        threads: PyTorch's threads, on which the result depends.
    """
    halves = precision in ("bf16-mixed", "16-mixed")
    size = 8192 if halves else 4096
    if device == "cpu":  # without instructions for it, a large product takes seconds, and is no faster
        size = 256 if halves and not cpu_supports_bf16() else 1024
    a, b = (torch.randn(size, size, device=device, dtype=DTYPES[precision]) for _ in range(2))
    (a @ b)[0, 0].item()  # loads what computes it, and waits for the device
    seconds: list[float] = []
    end = time.perf_counter() + 0.25
    while not seconds or time.perf_counter() < end:
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
