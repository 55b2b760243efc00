"""What ``auto`` means here, and what is refused."""

from copy import deepcopy
from functools import cache
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch

from vitrine import compose
from vitrine.config import TrainConfig
from vitrine.errors import ConfigError
from vitrine.training.devices import LEAST_WIDTH_FOR_CPU_BF16, choose, gpus

without_gpu = pytest.mark.skipif(gpus() > 0, reason="there is a GPU here")
with_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")


@cache
def composed(*words: str) -> TrainConfig:
    return compose(list(words))


def config(*words: str, **trainer: object) -> TrainConfig:
    """Composed, then set: the command line's own checks are not what is tested here."""
    made = deepcopy(composed("model=vit_nano", *words))
    for name, value in trainer.items():
        setattr(made.trainer, name, value)
    return made


def the_cpu_multiplies_bf16() -> bool:
    path = Path("/proc/cpuinfo")
    words = path.read_text().split() if path.exists() else []
    return "avx512_bf16" in words or "amx_bf16" in words


def test_the_cpu_when_asked_for():
    hardware = choose(config(accelerator="cpu"))
    assert (hardware.accelerator, hardware.devices) == ("cpu", 1)
    assert hardware.name.startswith(f"CPU, {torch.get_num_threads()} thread")


@without_gpu
def test_auto_is_the_cpu_where_there_is_no_gpu():
    assert choose(config(accelerator="auto")) == choose(config(accelerator="cpu"))
    assert choose(config(accelerator="auto", devices=None)).devices == 1


@without_gpu
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="there is no GPU here") as caught:
        choose(config(accelerator="gpu"))
    (fault,) = caught.value.faults
    assert (fault.key, fault.given) == ("accelerator", "gpu")
    assert "accelerator=cpu" in fault.nearest


@with_cuda
def test_auto_is_the_gpu_where_there_is_one():
    hardware = choose(config(accelerator="auto"))
    assert (hardware.accelerator, hardware.devices) == ("cuda", 1)
    assert hardware.name == torch.cuda.get_device_name()
    assert hardware.precision == ("bf16-mixed" if torch.cuda.get_device_capability() >= (8, 0) else "32-true")


@with_cuda
def test_null_devices_are_all_gpus_and_more_are_refused():
    assert choose(config(accelerator="gpu", devices=None)).devices == gpus()
    with pytest.raises(ConfigError, match=f"there are {gpus()} GPUs here"):
        choose(config(accelerator="gpu", devices=gpus() + 1))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true"])
def test_a_precision_that_is_asked_for_is_taken(precision):
    hardware = choose(config(accelerator="cpu", precision=precision))
    assert hardware.precision == precision
    trainer = pl.Trainer(accelerator="cpu", precision=hardware.precision, logger=False, enable_checkpointing=False)
    assert trainer.precision == precision


def test_a_precision_that_the_cpu_has_not_is_refused():
    with pytest.raises(ConfigError, match=r"trainer\.precision=16-mixed"):
        choose(config(accelerator="cpu", precision="16-mixed"))


@pytest.mark.parametrize("width", [LEAST_WIDTH_FOR_CPU_BF16 - 4, LEAST_WIDTH_FOR_CPU_BF16, 768])
def test_auto_precision_on_a_cpu_is_bfloat16_for_wide_models_where_the_cpu_multiplies_it(width):
    wide = width >= LEAST_WIDTH_FOR_CPU_BF16
    expected = "bf16-mixed" if wide and the_cpu_multiplies_bf16() else "32-true"
    assert choose(config(f"model.dim={width}", "model.heads=4", accelerator="cpu")).precision == expected


def test_several_processes_on_the_cpu():
    assert choose(config(accelerator="cpu", devices=2)).devices == 2


def test_a_batch_that_cannot_be_shared_equally_is_refused():
    with pytest.raises(ConfigError, match="must be divisible by the number of devices, 3") as caught:
        choose(config(accelerator="cpu", devices=3))
    (fault,) = caught.value.faults
    assert (fault.key, fault.given) == ("data.batch_size", "64")


def test_pairs_that_cannot_be_shared_equally_are_refused():
    mixed = compose(["model=vit_nano", "augment.mixup=0.8", "data.batch_size=66"])
    mixed.trainer.accelerator, mixed.trainer.devices = "cpu", 2
    with pytest.raises(ConfigError, match="must be divisible by twice the number of devices, 2: "):
        choose(mixed)
