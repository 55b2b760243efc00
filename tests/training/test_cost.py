"""What a model costs is counted right."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.published import PUBLISHED

from vitrine import compose
from vitrine.config import ViTConfig
from vitrine.distributed.hardware import choose_hardware
from vitrine.training.throughput import datasheet_peak, flops_per_image, matmul_peak, peak_memory

SIZES = {"image_size": 8, "patch_size": 2, "in_channels": 3, "num_classes": 10, "dim": 16, "depth": 2, "heads": 4}
SMALL = ViTConfig(**SIZES, mlp_ratio=2.0, **PUBLISHED)


def manual(tokens, read=None):
    """FLOPs of a block of ``SMALL`` on that many tokens, of which the outputs of ``read`` are computed."""
    width, hidden = 16, 32
    read = tokens if read is None else read
    values = 2 * tokens * width * 3 * width
    attention = 2 * read * tokens * width * 2
    return values + attention + 2 * read * width * width + 2 * read * width * hidden * 2


EMBED = 2 * 16 * (2 * 2 * 3) * 16  # of every patch
HEAD = 2 * 16 * 10


def test_flops_of_a_small_model_equal_a_manual_count():
    mean = replace(SMALL, pool="mean")
    assert flops_per_image(mean) == EMBED + 2 * manual(17) + HEAD
    assert flops_per_image(SMALL) == EMBED + manual(17) + manual(17, read=1) + HEAD


def test_flops_of_vit_base_equal_the_published_count():
    """17.5 G multiply-adds (arXiv:2106.04560, table 2, gives 35.1 GFLOPs), if the last block computes all tokens."""
    config = ViTConfig(224, 16, 3, 1000, dim=768, depth=12, heads=12, **PUBLISHED | {"pool": "mean"})
    assert flops_per_image(config) / 1e9 == pytest.approx(35.1, abs=0.05)


def test_flops_of_training_are_those_of_the_patches_that_are_kept():
    some = replace(SMALL, patch_dropout=0.25)
    assert flops_per_image(some) == flops_per_image(some, training=False) == flops_per_image(SMALL)
    kept = 13  # the class token, and 12 patches of 16
    assert flops_per_image(some, training=True) == EMBED + manual(kept) + manual(kept, read=1) + HEAD


@pytest.mark.parametrize("kernel", ["auto", "sdpa", "explicit"])
def test_the_count_does_not_depend_on_how_attention_is_computed(kernel):
    assert flops_per_image(replace(SMALL, attention_kernel=kernel)) == flops_per_image(SMALL)


def test_counting_draws_no_random_number():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    flops_per_image(replace(SMALL, position="learned", mlp_dropout=0.1))
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell it in another way, too")
def test_peak_memory_equals_the_systems_in_bytes():
    peak = peak_memory(choose_hardware(compose(["accelerator=cpu"])))
    lines = Path("/proc/self/status").read_text().splitlines()
    (kibibytes,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    assert peak["peak_memory"] == pytest.approx(kibibytes * 1024, rel=0.02)
    assert "peak_gpu_memory" not in peak
    there = peak_memory(choose_hardware(compose(["accelerator=auto"])))
    assert ("peak_gpu_memory" in there) == torch.cuda.is_available()


@pytest.mark.parametrize(
    ("name", "precision", "expected"),
    [
        ("NVIDIA H200", "bf16-mixed", 989.4),  # 1,979 in the datasheet is for sparse matrices
        ("NVIDIA H200", "32-true", 66.9),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.7),
        ("NVIDIA H100 PCIe", "16-mixed", 756.0),
        ("NVIDIA H200 NVL", "bf16-mixed", 835.5),
        ("NVIDIA A100-SXM4-80GB", "bf16-mixed", 312.0),
        ("NVIDIA L40S", "bf16-mixed", 362.05),
        ("NVIDIA L4", "bf16-mixed", 121.0),
        ("Tesla T4", "16-mixed", 65.0),
    ],
)
def test_a_cards_peak_is_the_dense_one_of_its_datasheet(name, precision, expected):
    assert datasheet_peak(name, precision) == expected * 1e12


@pytest.mark.parametrize(
    ("name", "precision"),
    [("NVIDIA H200", "64-true"), ("NVIDIA RTX 9999", "bf16-mixed"), ("NVIDIA A10G", "bf16-mixed")],
)
def test_the_peak_of_an_unknown_card_is_none(name, precision):
    assert datasheet_peak(name, precision) is None


def test_a_matrix_product_is_timed():
    """Against the same product timed here, which may take another time on a busy machine, but not ten times another."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    seconds = []
    for _ in range(8):
        begin = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - begin)
    expected = 2 * 1024**3 / min(seconds)
    assert expected / 10 < matmul_peak("cpu", "32-true", torch.get_num_threads()) < expected * 10
