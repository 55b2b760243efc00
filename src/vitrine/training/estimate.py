"""What a training made for a GPU would take on a machine that has none, said before it begins."""

import re
from dataclasses import replace
from pathlib import Path

import torch

from vitrine.config import TrainConfig
from vitrine.config.schema import DataConfig
from vitrine.data.image_folder import ImageFolder
from vitrine.distributed.hardware import choose
from vitrine.errors import Fault
from vitrine.text import rough_duration
from vitrine.training.throughput import flops_per_image, matmul_peak

# Of a matrix product's floating-point operations per second, what a training step of a ViT is taken to reach on a CPU:
# between the fifth that narrow models reach and the half of wide ones (mfu_measured in run.json).
SHARE = 0.4

TRAIN_IMAGES = {"digits": 1437, "mnist": 60_000, "fashion_mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000}


def missing_gpu(config: TrainConfig, recipes: Path) -> Fault:
    """What to tell who asked for a GPU where there is none.

    Args:
        config: of the run; its data isn't opened.
        recipes: the folder ``conf/experiment``.
    """
    here = replace(config.trainer, accelerator="cpu", devices=1, precision="auto", compile="auto")
    precision = choose(replace(config, trainer=here)).precision
    rate = SHARE * matmul_peak("cpu", precision, torch.get_num_threads())
    work = 3 * flops_per_image(config.model) * _images(config.data) * config.trainer.max_epochs
    problem = (
        f"there is no GPU here that PyTorch can use; this CPU would take about {rough_duration(work / rate)} "
        f"({work:.1e} operations, at {SHARE:.0%} of the {rate / SHARE:.1e} a second that a matrix product reaches here)"
    )
    instead = [f"experiment={recipe}" for recipe in _without_gpu(recipes, config.data.name)]
    return Fault("accelerator", "gpu", problem, ", or ".join([*instead, "accelerator=cpu"]))


def _images(data: DataConfig) -> float:
    """Images in an epoch."""
    if data.name == "imagefolder":
        splits = ImageFolder.scan(data.root).splits
        held_out = data.val_fraction if data.hold_out and "val" not in splits else 0.0
        return len(splits["train"]) * (1 - held_out)
    return TRAIN_IMAGES[data.name] * (1 - data.val_fraction * data.hold_out)


def _without_gpu(recipes: Path, data: str) -> list[str]:
    """The recipes for this data set that ask for no GPU."""
    found = sorted((recipes / data).glob("*.yaml"))
    gpu = re.compile(r"override /accelerator: \w*gpu")
    return [f"{data}/{path.stem}" for path in found if not gpu.search(path.read_text(encoding="utf-8"))]
