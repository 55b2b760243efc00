"""Choose a run's devices, precision and attention kernel on this machine, and set PyTorch and malloc up for them.

The rule for attention is in models/attention.py, that for compilation in training/compile.py. ``python
benchmarks/timing/rules.py`` measures what they are based on.
"""

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from vitrine.config.parts import is_dotted
from vitrine.config.schema import TrainConfig
from vitrine.config.validate import unequal_parts, unequal_shares
from vitrine.distributed.launch import Launch, launched
from vitrine.errors import ConfigError, Fault
from vitrine.models.attention import fastest_kernel
from vitrine.text import plural

# Data type of matrix products.
DTYPES = {
    "32-true": torch.float32,
    "tf32": torch.float32,
    "bf16-mixed": torch.bfloat16,
    "16-mixed": torch.float16,
    "64-true": torch.float64,
}

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # parameters of glibc's mallopt, from malloc.h

# Models narrower than this stay in float32 on a CPU: their steps are short, and bfloat16 would save a fifth of them
# (docs/speed.md), since the operations between the matrix products stay in float32.
LEAST_WIDTH_FOR_CPU_BF16 = 64


@dataclass(frozen=True)
class Hardware:
    """Devices of a run, and how they compute.

    Attributes:
        accelerator: ``cpu``, ``cuda`` or ``mps``.
        devices: ranks on all machines: one for each GPU, or the number asked for on the CPU.
        precision: a choice of ``trainer.precision``; never ``auto``.
        attention_kernel: a choice of ``model.attention_kernel``; never ``auto``.
        name: the device's name, for people.
        nodes: machines, each with the same number of devices.
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
        """Lightning's name of the precision. :meth:`set_up` sets how float32 is multiplied."""
        return "32-true" if self.precision == "tf32" else self.precision

    @property
    def rounds(self) -> bool:
        """Whether float32 products may be rounded."""
        return self.accelerator == "cuda" and self.precision in ("tf32", "bf16-mixed")

    @contextmanager
    def set_up(self) -> Iterator[None]:
        """Set PyTorch's process-wide options for this hardware, and restore them at the end.

        Denormal floats count as zero: gradients near zero would slow a CPU down several times. Freed memory is kept
        for the next step. In bf16-mixed, the few float32 products may be rounded as in tf32, which is more exact than
        bfloat16; in 32-true nothing is rounded, not even in convolutions, where PyTorch would.

        Enter this before anything is computed: threads that PyTorch has started already keep their denormals.
        """
        flushed = torch.finfo(torch.float64).tiny / 2 == 0
        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        if self.accelerator == "cuda":  # for trainer.deterministic; cuBLAS reads it once
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        try:
            torch.set_flush_denormal(True)
            torch.set_float32_matmul_precision("high" if self.rounds else "highest")
            torch.backends.cudnn.allow_tf32 = self.rounds
            with keep_freed_memory():
                yield
        finally:
            torch.set_flush_denormal(flushed)
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]

    def caller_rng_kept(self) -> AbstractContextManager[None]:
        """Restore the caller's random state at the end: a run seeds PyTorch's generators of all devices in use."""
        on_cpu = self.accelerator == "cpu" and not torch.cuda.is_initialized()
        return torch.random.fork_rng(devices=[] if on_cpu else range(gpus()), device_type=_gpu_kind())


def lightning_deterministic(wanted: bool) -> bool | None:
    """Lightning's ``deterministic``: ``None`` where PyTorch's switch is off and stays off.

    Setting it imports PyTorch's compiler, which takes a second or two.
    """
    return wanted or (False if torch.are_deterministic_algorithms_enabled() else None)


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep freed memory in the process instead of returning it to the system: each training step needs it again.

    By default glibc returns large blocks and gets them back zeroed, page by page, which takes a sixth of a small
    model's step on a CPU (mallopt(3)). Other C libraries are left alone.
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
        mallopt(M_MMAP_MAX, 65_536)  # glibc's defaults
        mallopt(M_TRIM_THRESHOLD, 128 * 1024)
        trim(0)


def missing_gpu(data: str, recipes: Path | None = None) -> Fault:
    """Return the fault of a configuration that needs a GPU where there is none.

    The hint names the recipes for ``data``, in the folder ``recipes``, that need no GPU.
    """
    needs_gpu = re.compile(r"override /accelerator: \w*gpu")
    paths = sorted((recipes / data).glob("*.yaml")) if recipes else []
    instead = [path.stem for path in paths if not needs_gpu.search(path.read_text(encoding="utf-8"))]
    hint = ", or ".join([*(f"experiment={data}/{name}" for name in instead), "accelerator=cpu"])
    return Fault("accelerator", "gpu", "there is no GPU here that PyTorch can use", hint)


def choose_hardware(config: TrainConfig, *, alone: bool = False) -> Hardware:
    """Return the hardware that ``config`` asks for on this machine.

    Args:
        config: the configuration.
        alone: whether this process uses the devices alone, even if it is one of several ranks.

    Raises:
        ConfigError: it asks for GPUs that don't exist, for a number of devices other than the ranks that torchrun or
            srun has started, or for a precision that the device doesn't support.
    """
    trainer = config.trainer
    if trainer.accelerator == "gpu" and not gpus():
        raise ConfigError([missing_gpu(config.data.name)])
    accelerator = "cpu" if trainer.accelerator == "cpu" or not gpus() else _gpu_kind()
    devices, nodes = _devices(trainer.devices, accelerator, None if alone else launched())
    if problem := unequal_shares(config, devices, "the number of devices, {}"):
        raise ConfigError([Fault("data.batch_size", str(config.data.batch_size), problem)])
    if problem := unequal_parts(config, devices):
        raise ConfigError([Fault("trainer.accumulate_grad_batches", str(trainer.accumulate_grad_batches), problem)])
    precision = _precision(config, accelerator)
    if accelerator != "cuda" and trainer.compile == "graphs":
        problem = "needs a GPU: these are CUDA graphs"
        raise ConfigError([Fault("trainer.compile", "graphs", problem, "trainer.compile=blocks")])
    kernel = config.model.attention_kernel
    if kernel == "auto":
        images = config.data.batch_size // devices // trainer.accumulate_grad_batches
        weights = images * config.model.heads * config.model.tokens**2
        kernel = fastest_kernel(accelerator, DTYPES[precision], weights, config.model.dim // config.model.heads)
    return Hardware(accelerator, devices, precision, kernel, _device_name(accelerator), nodes)


def _devices(asked: int | None, accelerator: str, launch: Launch | None) -> tuple[int, int]:
    """Return the number of devices on all machines, and that of machines.

    Args:
        asked: ``trainer.devices``; ``None`` takes all GPUs, or one CPU.
        accelerator: ``cpu``, ``cuda`` or ``mps``.
        launch: the ranks that torchrun or srun has started, if any.
    """
    devices, nodes = asked or (1 if accelerator == "cpu" else gpus()), 1
    if launch is not None:
        if asked not in (None, launch.count):
            problem = f"{launch.by} has started {launch.count} processes, one for each device"
            if launch.by == "srun":
                problem += "; for independent runs start each with `srun --ntasks=1`, or use -m"
            raise ConfigError([Fault("trainer.devices", str(asked), problem, f"trainer.devices={launch.count}")])
        devices, nodes = launch.count, launch.nodes
    if accelerator != "cpu" and devices // nodes > gpus():
        needed = f"each machine needs {devices // nodes} GPUs that all of its processes see; " if launch else ""
        raise ConfigError([Fault("trainer.devices", str(devices), f"{needed}there are {gpus()} GPUs here")])
    return devices, nodes


def _precision(config: TrainConfig, accelerator: str) -> str:
    precision = config.trainer.precision
    if precision == "auto":
        width = 0 if is_dotted(config.model.name) else config.model.dim  # unknown, of a model of the user's
        return "bf16-mixed" if _bf16_is_faster(accelerator, width) else "32-true"
    usable = {"cpu": ("32-true", "bf16-mixed", "64-true"), "mps": ("32-true", "bf16-mixed", "16-mixed")}
    if precision not in usable.get(accelerator, (precision,)):  # Lightning and PyTorch would silently use another
        where = "a CUDA GPU" if precision == "tf32" else "another device"
        problem = f"needs {where}; this device supports {', '.join(usable[accelerator])}"
        raise ConfigError([Fault("trainer.precision", precision, problem, "trainer.precision=bf16-mixed")])
    return precision


def on_one_device(config: TrainConfig, accelerator: str) -> TrainConfig:
    """Return a run's configuration to use its model with, on one device of another machine, too.

    Args:
        config: the run's.
        accelerator: ``auto``, ``cpu`` or ``gpu``.
    """
    trainer = replace(config.trainer, accelerator=accelerator, devices=1, compile="nothing")
    if (accelerator == "cpu" or not gpus()) and trainer.precision in ("16-mixed", "tf32"):
        trainer.precision = "auto"  # the run was trained on a GPU
    return replace(config, trainer=trainer)


def gpus() -> int:
    """Return the number of GPUs that PyTorch can use here."""
    return torch.cuda.device_count() if torch.cuda.is_available() else int(torch.backends.mps.is_available())


def _gpu_kind() -> str:
    return "cuda" if torch.cuda.is_available() else "mps"


def _bf16_is_faster(accelerator: str, width: int) -> bool:
    if accelerator == "cuda":
        return torch.cuda.get_device_capability()[0] >= 8
    return accelerator == "cpu" and width >= LEAST_WIDTH_FOR_CPU_BF16 and cpu_supports_bf16()


@cache
def cpu_supports_bf16() -> bool:
    """Whether the processor has instructions for matrix products in bfloat16."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    flags = next((line.split(":", 1)[1].split() for line in text.splitlines() if line.startswith("flags")), [])
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _device_name(accelerator: str) -> str:
    if accelerator == "cuda":
        return torch.cuda.get_device_name()
    if accelerator == "mps":
        return "Apple GPU"
    return f"CPU, {plural(torch.get_num_threads(), 'thread')}"
