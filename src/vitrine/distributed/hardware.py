"""Where to compute and how: what ``auto`` means on this machine, for device, precision and attention kernel.

The rule for attention stands in models/attention.py, that for compiling in training/compile.py. ``python
benchmarks/timing/rules.py`` measures what they go by.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from vitrine.config.schema import TrainConfig, unequal_parts, unequal_shares
from vitrine.distributed.rendezvous import launched
from vitrine.errors import ConfigError, Fault
from vitrine.models.attention import fastest_kernel
from vitrine.text import plural

# What matrices are multiplied in.
DTYPES = {
    "32-true": torch.float32,
    "tf32": torch.float32,
    "bf16-mixed": torch.bfloat16,
    "16-mixed": torch.float16,
    "64-true": torch.float64,
}

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h

# Below this width float32 is kept on a CPU: a step of so narrow a model is short, and bfloat16 would save a fifth of it
# (docs/speed.md), since the work between the matrix products stays in float32.
LEAST_WIDTH_FOR_CPU_BF16 = 64


@dataclass(frozen=True)
class Hardware:
    """What a run computes on.

    Attributes:
        accelerator: ``cpu``, ``cuda`` or ``mps``.
        devices: processes on all machines, one per GPU, or so many on the CPU.
        precision: the word of ``trainer.precision``; never ``auto``.
        attention_kernel: the word of ``model.attention_kernel``, for a step's images; never ``auto``.
        name: of the device, for people.
        nodes: machines, each with as many of the devices.
    """

    accelerator: str
    devices: int
    precision: str
    attention_kernel: str
    name: str
    nodes: int = 1

    @property
    def per_node(self) -> int:
        """Devices on each machine."""
        return self.devices // self.nodes

    @property
    def lightning_precision(self) -> str:
        """Lightning's word for the precision. How float32 is multiplied is set apart, by :meth:`set_up`."""
        return "32-true" if self.precision == "tf32" else self.precision

    @contextmanager
    def set_up(self) -> Iterator[None]:
        """For a while, set what PyTorch keeps for the whole process.

        Gradients near zero would slow a CPU down several times: they count as zero. Memory that a step frees is kept
        for the next one. In bf16-mixed, what little is multiplied in float32 may be rounded as in tf32, which is more
        exact than bfloat16; in 32-true nothing is, nor in convolutions, where PyTorch would.

        To be entered before anything is computed: PyTorch's threads flush as the one that started them did then, and
        those that are there already stay as they are.
        """
        flushed = torch.finfo(torch.float64).tiny / 2 == 0
        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        rounded = self.accelerator == "cuda" and self.precision in ("tf32", "bf16-mixed")
        if self.accelerator == "cuda":  # trainer.deterministic needs it; read once, at the process's first product
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        try:
            torch.set_flush_denormal(True)
            torch.set_float32_matmul_precision("high" if rounded else "highest")
            torch.backends.cudnn.allow_tf32 = rounded
            with freed_memory_kept():
                yield
        finally:
            torch.set_flush_denormal(flushed)
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """For a while, let the C library keep memory that is freed: each training step asks for the same again.

    Else glibc gives large pieces back to the system and gets them anew, zeroed page by page, which takes a sixth of a
    small model's step on a CPU (mallopt(3)). Other C libraries are left alone.
    """
    try:
        library = ctypes.CDLL("libc.so.6")
        mallopt, trim = library.mallopt, library.malloc_trim
    except (OSError, AttributeError):
        yield
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        mallopt(M_MMAP_MAX, 65_536)  # as glibc has them
        mallopt(M_TRIM_THRESHOLD, 128 * 1024)
        trim(0)


def choose(config: TrainConfig) -> Hardware:
    """What ``config`` asks for, on this machine.

    Raises:
        ConfigError: it asks for GPUs that are not there, for another number of them than torchrun or srun has started
            processes, or for a precision that the device has not.
    """
    trainer = config.trainer
    if trainer.accelerator == "gpu" and not gpus():
        problem = "there is no GPU here that PyTorch can use"
        raise ConfigError([Fault("accelerator", "gpu", problem, "accelerator=cpu, or accelerator=auto")])
    accelerator = "cpu" if trainer.accelerator == "cpu" or not gpus() else _gpu_kind()
    devices, nodes = (trainer.devices or gpus()) if accelerator != "cpu" else trainer.devices or 1, 1
    if (started := launched()) is not None:
        if trainer.devices not in (None, started.count):
            problem = f"{started.by} has started {started.count} processes, one for each device"
            raise ConfigError([Fault("trainer.devices", str(devices), problem, f"trainer.devices={started.count}")])
        devices, nodes = started.count, started.nodes
    if accelerator != "cpu" and devices // nodes > gpus():
        there = f"each machine needs {devices // nodes} GPUs that all of its processes see; " if started else ""
        raise ConfigError([Fault("trainer.devices", str(devices), f"{there}there are {gpus()} GPUs here")])
    if problem := unequal_shares(config, devices, "the number of devices, {}"):
        raise ConfigError([Fault("data.batch_size", str(config.data.batch_size), problem)])
    if problem := unequal_parts(config, devices):
        raise ConfigError([Fault("trainer.accumulate_grad_batches", str(trainer.accumulate_grad_batches), problem)])
    precision = trainer.precision
    if precision == "auto":
        precision = "bf16-mixed" if _bf16_pays(accelerator, config.model.dim) else "32-true"
    usable = {"cpu": ("32-true", "bf16-mixed", "64-true"), "mps": ("32-true", "bf16-mixed", "16-mixed")}
    if precision not in usable.get(accelerator, (precision,)):  # Lightning and PyTorch would take another and go on
        where = "a CUDA GPU" if precision == "tf32" else "another device"
        problem = f"needs {where}; this one has {', '.join(usable[accelerator])}"
        raise ConfigError([Fault("trainer.precision", precision, problem, "trainer.precision=bf16-mixed")])
    if accelerator != "cuda" and trainer.compile == "graphs":
        problem = "needs a GPU: these are CUDA graphs"
        raise ConfigError([Fault("trainer.compile", "graphs", problem, "trainer.compile=blocks")])
    kernel = config.model.attention_kernel
    if kernel == "auto":
        images = config.data.batch_size // devices // trainer.accumulate_grad_batches
        kernel = fastest_kernel(accelerator, DTYPES[precision], images * config.model.heads * config.model.tokens**2)
    return Hardware(accelerator, devices, precision, kernel, _name(accelerator), nodes)


def gpus() -> int:
    """GPUs that PyTorch can use here."""
    return torch.cuda.device_count() if torch.cuda.is_available() else int(torch.backends.mps.is_available())


def _gpu_kind() -> str:
    return "cuda" if torch.cuda.is_available() else "mps"


def _bf16_pays(accelerator: str, width: int) -> bool:
    if accelerator == "cuda":
        return torch.cuda.get_device_capability()[0] >= 8
    return accelerator == "cpu" and width >= LEAST_WIDTH_FOR_CPU_BF16 and _cpu_multiplies_bf16()


def _cpu_multiplies_bf16() -> bool:
    """Whether the processor has instructions for products of bfloat16 matrices."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    flags = next((line.split(":", 1)[1].split() for line in text.splitlines() if line.startswith("flags")), [])
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _name(accelerator: str) -> str:
    if accelerator == "cuda":
        return torch.cuda.get_device_name()
    if accelerator == "mps":
        return "Apple GPU"
    return f"CPU, {plural(torch.get_num_threads(), 'thread')}"
