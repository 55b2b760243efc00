"""Peak memory is that of the system."""

from pathlib import Path

import pytest
import torch

from vitrine import compose
from vitrine.distributed.hardware import choose_hardware
from vitrine.training.memory import peak_memory


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell it in another way, too")
def test_peak_memory_equals_the_systems_in_bytes():
    peak = peak_memory(choose_hardware(compose(["accelerator=cpu"])))
    lines = Path("/proc/self/status").read_text().splitlines()
    (kibibytes,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    assert peak["peak_memory"] == pytest.approx(kibibytes * 1024, rel=0.02)
    assert "peak_gpu_memory" not in peak
    there = peak_memory(choose_hardware(compose(["accelerator=auto"])))
    assert ("peak_gpu_memory" in there) == torch.cuda.is_available()
