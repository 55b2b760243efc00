"""What ``auto`` means here, and what is refused."""

import platform
import resource
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from helpers.running import ROOT, python

from vitrine import compose
from vitrine.config import TrainConfig
from vitrine.distributed.hardware import LEAST_WIDTH_FOR_CPU_BF16, choose_hardware, gpus
from vitrine.errors import ConfigError

without_gpu = pytest.mark.skipif(gpus() > 0, reason="there is a GPU here")
with_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")


@cache
def composed(*overrides: str) -> TrainConfig:
    return compose(list(overrides))


def config(*overrides: str, **trainer: object) -> TrainConfig:
    """Composed, then set: the command line's own checks are not what is tested here."""
    made = deepcopy(composed("model=vit_nano", *overrides))
    for name, value in trainer.items():
        setattr(made.trainer, name, value)
    return made


def the_cpu_multiplies_bf16() -> bool:
    path = Path("/proc/cpuinfo")
    flags = path.read_text().split() if path.exists() else []
    return "avx512_bf16" in flags or "amx_bf16" in flags


def test_accelerator_cpu():
    hardware = choose_hardware(config(accelerator="cpu"))
    assert (hardware.accelerator, hardware.devices) == ("cpu", 1)
    assert hardware.name.startswith(f"CPU, {torch.get_num_threads()} thread")


@without_gpu
def test_auto_is_the_cpu_without_a_gpu():
    assert choose_hardware(config(accelerator="auto")) == choose_hardware(config(accelerator="cpu"))
    assert choose_hardware(config(accelerator="auto", devices=None)).devices == 1


@without_gpu
def test_a_missing_gpu_is_refused():
    with pytest.raises(ConfigError, match="there is no GPU here") as caught:
        choose_hardware(config(accelerator="gpu"))
    (fault,) = caught.value.faults
    assert (fault.key, fault.given) == ("accelerator", "gpu")
    assert "accelerator=cpu" in fault.nearest


@with_cuda
def test_auto_is_the_gpu_if_there_is_one():
    hardware = choose_hardware(config(accelerator="auto"))
    assert (hardware.accelerator, hardware.devices) == ("cuda", 1)
    assert hardware.name == torch.cuda.get_device_name()
    assert hardware.precision == ("bf16-mixed" if torch.cuda.get_device_capability() >= (8, 0) else "32-true")


@with_cuda
def test_null_devices_are_all_gpus_and_more_are_refused():
    assert choose_hardware(config(accelerator="gpu", devices=None)).devices == gpus()
    with pytest.raises(ConfigError, match=f"there are {gpus()} GPUs here"):
        choose_hardware(config(accelerator="gpu", devices=gpus() + 1))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true"])
def test_a_given_precision_is_used(precision):
    hardware = choose_hardware(config(accelerator="cpu", precision=precision))
    assert hardware.precision == precision
    trainer = pl.Trainer(accelerator="cpu", precision=hardware.precision, logger=False, enable_checkpointing=False)
    assert trainer.precision == precision


@pytest.mark.parametrize("precision", ["16-mixed", "tf32"])
def test_a_precision_that_the_cpu_lacks_is_refused(precision):
    with pytest.raises(ConfigError, match=rf"trainer\.precision={precision}"):
        choose_hardware(config(accelerator="cpu", precision=precision))


@with_cuda
def test_tf32_rounds_products_and_float32_does_not():
    a, b = torch.randn(2, 512, 512, device="cuda")
    exact = (a.double() @ b.double()).float()
    errors = {}
    for precision in ("32-true", "tf32"):
        hardware = choose_hardware(config(accelerator="gpu", precision=precision))
        assert hardware.lightning_precision == "32-true"
        with hardware.set_up():
            errors[precision] = float((a @ b - exact).abs().max())
            assert torch.backends.cudnn.allow_tf32 == (precision == "tf32"), "convolutions are rounded as products are"
    assert errors["tf32"] > 10 * errors["32-true"]


@pytest.mark.parametrize(
    ("overrides", "kernel"),
    [
        (["trainer.precision=bf16-mixed"], "explicit"),
        (["trainer.precision=32-true"], "sdpa"),
        (["trainer.precision=32-true", "model.heads=8"], "explicit"),
        (["trainer.precision=bf16-mixed", "model.attention_kernel=sdpa"], "sdpa"),
        (["trainer.precision=32-true", "model.attention_kernel=explicit"], "explicit"),
        # 64 images, 4 heads and 784 tokens: 4.7 times as many weights as may be kept; an eighth of the images is less
        (["trainer.precision=bf16-mixed", "data=mnist", "data.batch_size=64", "model.patch_size=1"], "sdpa"),
        (
            ["trainer.precision=bf16-mixed", "data=mnist", "data.batch_size=64", "model.patch_size=1", "+parts=8"],
            "explicit",
        ),
    ],
)
def test_the_attention_kernel_depends_on_precision_heads_and_memory(overrides, kernel):
    parts = 8 if overrides[-1] == "+parts=8" else 1
    made = config(
        *[override for override in overrides if override != "+parts=8"],
        accelerator="cpu",
        accumulate_grad_batches=parts,
    )
    assert choose_hardware(made).attention_kernel == kernel


def test_denormal_gradients_count_as_zero():
    tiny = torch.tensor([1e-39])
    with choose_hardware(config(accelerator="cpu")).set_up():
        assert float(tiny * 1.0) == 0.0
    assert float(tiny * 1.0) > 0


THREADS = """
import os
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from vitrine import compose, fit


class Look(Callback):
    def on_train_start(self, trainer, module):
        tiny = torch.from_numpy(np.full(2**22, 700_000, dtype=np.int32)).view(torch.float32)
        print("threads", torch.get_num_threads(), "left", int(((tiny * 1.0).view(torch.int32) != 0).sum()), flush=True)
        os._exit(0)  # the rest of the training would show nothing more


fit(compose(["model=vit_nano", "depth=1", "trainer.max_epochs=1", "debug.limit_batches=2"]), callbacks=[Look()])
"""


@pytest.mark.whole
def test_denormals_count_as_zero_in_every_thread_of_training(tmp_path):
    """Each thread has a setting of its own, which it takes from the one that starts it."""
    done = python("-c", THREADS, cwd=tmp_path, env={"OMP_NUM_THREADS": "2"})
    assert "threads 2 left 0" in done.stdout, done.stderr


def test_process_wide_options_are_restored():
    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision("medium")
    try:
        with suppress(RuntimeError), choose_hardware(config(accelerator="cpu")).set_up():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32
            raise RuntimeError("in training")
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.cudnn.allow_tf32
        assert torch.finfo(torch.float64).tiny / 2 == 0
    finally:
        torch.set_flush_denormal(False)
        torch.set_float32_matmul_precision("highest")


@pytest.mark.whole
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's memory is seen to")
def test_freed_memory_stays_in_the_process(tmp_path):
    """In a process of its own: what other tests have left in the memory of this one may be put where a piece was."""
    code = """
import resource
import torch
from vitrine.distributed.hardware import keep_freed_memory

def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(2**24)  # 64 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with keep_freed_memory():
    torch.ones(2**25)  # room for what else may be put where the first was
    kept = [new_pages() for _ in range(5)][-1]  # the first few may lie elsewhere
print(kept, new_pages())
"""
    done = python("-c", code, cwd=tmp_path)
    kept, given_back = map(int, done.stdout.split())
    pages = 5 * 2**26 // resource.getpagesize()
    assert kept < pages / 100
    assert given_back > pages / 10 / 512, "unless pages are huge, each piece is got anew"


@pytest.mark.parametrize("width", [LEAST_WIDTH_FOR_CPU_BF16 - 4, LEAST_WIDTH_FOR_CPU_BF16, 768])
def test_auto_precision_on_a_cpu_with_bfloat16_depends_on_width(width):
    wide = width >= LEAST_WIDTH_FOR_CPU_BF16
    expected = "bf16-mixed" if wide and the_cpu_multiplies_bf16() else "32-true"
    assert choose_hardware(config(f"model.dim={width}", "model.heads=4", accelerator="cpu")).precision == expected


def test_several_processes_on_the_cpu():
    assert choose_hardware(config(accelerator="cpu", devices=2)).devices == 2


def test_a_batch_not_divisible_by_devices_is_refused():
    with pytest.raises(ConfigError, match="must be divisible by the number of devices, 3") as caught:
        choose_hardware(config(accelerator="cpu", devices=3))
    (fault,) = caught.value.faults
    assert (fault.key, fault.given) == ("data.batch_size", "64")


def test_pairs_that_cannot_be_shared_equally_are_refused():
    mixed = compose(["model=vit_nano", "augment.mixup=0.8", "data.batch_size=66"])
    mixed.trainer.accelerator, mixed.trainer.devices = "cpu", 2
    with pytest.raises(ConfigError, match="must be divisible by twice the number of devices, 2: "):
        choose_hardware(mixed)


def test_parts_that_cannot_be_equal_are_refused():
    """Asked again here: how many devices null means is known only now."""
    with pytest.raises(ConfigError, match="must divide the 32 images of each rank") as caught:
        choose_hardware(config(accelerator="cpu", devices=2, accumulate_grad_batches=64))
    (fault,) = caught.value.faults
    assert (fault.key, fault.given) == ("trainer.accumulate_grad_batches", "64")


@with_cuda
@pytest.mark.whole
def test_a_deterministic_training_runs(tmp_path):
    """In a process of its own: PyTorch asks once what the library of products may do."""
    command = "model=vit_nano accelerator=gpu trainer.deterministic=true debug.limit_batches=2 trainer.max_epochs=1"
    done = python(str(ROOT / "train.py"), *command.split(), f"paths.output_dir={tmp_path}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
