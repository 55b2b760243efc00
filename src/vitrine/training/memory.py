"""Peak memory of a run, on the host and on the GPU."""

import resource
import sys

import torch

from vitrine.distributed.hardware import Hardware


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
