"""What a model and a training cost."""

import resource
import sys

import torch
from torch.utils.flop_counter import FlopCounterMode

from vitrine.config import ViTConfig
from vitrine.models import VisionTransformer


def flops_per_image(config: ViTConfig) -> int:
    """Floating-point operations of a forward pass on one image: matrix products only, a multiply-add counting as 2."""
    with torch.device("meta"), torch.no_grad():
        model = VisionTransformer(config)
        images = torch.zeros(1, config.in_channels, config.image_size, config.image_size)
        with FlopCounterMode(display=False) as counter:
            model(images)
    return int(counter.get_total_flops())


def peak_memory() -> dict[str, int]:
    """Most memory this process has held, in bytes: ``peak_memory``, and ``peak_gpu_memory`` where there is a GPU."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = {"peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    if torch.cuda.is_available():
        peak["peak_gpu_memory"] = torch.cuda.max_memory_allocated()
    return peak
