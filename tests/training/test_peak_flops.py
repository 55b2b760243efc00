"""A device's peak FLOP/s are those of its datasheet, and of a product measured here."""

import time

import pytest
import torch

from vitrine.training.peak_flops import datasheet_peak, matmul_peak


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


def test_a_processor_without_bfloat16_is_timed_with_small_matrices(monkeypatch):
    """Large ones would take it seconds, and no fewer for each number."""
    sizes, randn = [], torch.randn
    monkeypatch.setattr("vitrine.training.peak_flops.cpu_supports_bf16", lambda: False)
    monkeypatch.setattr(torch, "randn", lambda *size, **given: sizes.append(size) or randn(*size, **given))
    matmul_peak.cache_clear()
    assert matmul_peak("cpu", "bf16-mixed", torch.get_num_threads()) > 0
    assert sizes == [(256, 256)] * 2
