"""Muon on many matrices at once, against PyTorch's, which takes one after another."""

from copy import deepcopy

import pytest
import torch

from vitrine.training.muon import Muon, orthogonalize_, product_dtype

SETTINGS = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
SHAPES = [(24, 8), (8, 8), (32, 8), (8, 32), (8, 32), (5, 7)]
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def matrices(dtype: torch.dtype) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def give_gradients(parameters: list[torch.nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for one in parameters:
        one.grad = torch.randn(one.shape, generator=generator).to(one.dtype)


def with_spectrum(values: torch.Tensor, width: int) -> torch.Tensor:
    """Two matrices (2, M, width) in float64 with these singular values (M,), of Frobenius norm 1."""
    random = torch.randn(2, len(values), width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(random, full_matrices=False)
    return left @ torch.diag_embed(values.double() / values.double().norm()).expand(2, -1, -1) @ right


def one_after_another(found: torch.Tensor) -> torch.Tensor:
    """Five iterations on the matrices themselves, as PyTorch's."""
    a, b, c = COEFFICIENTS
    for _ in range(5):
        gram = found @ found.mT
        found = a * found + (b * gram + c * gram @ gram) @ found
    return found


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.usefixtures("muon_in_float64")
def test_in_float64_it_is_pytorchs(nesterov):
    ours, theirs = matrices(torch.float64), matrices(torch.float64)
    optimizers = [
        kind(some, nesterov=nesterov, **SETTINGS) for kind, some in ((Muon, ours), (torch.optim.Muon, theirs))
    ]
    for step in range(3):
        give_gradients(ours[:-1], step)  # the last has no gradient
        give_gradients(theirs[:-1], step)
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ours[-1], matrices(torch.float64)[-1], rtol=0, atol=0)


def test_it_goes_on_from_a_checkpoint_of_pytorchs():
    ours, theirs = matrices(torch.float32), matrices(torch.float32)
    before = torch.optim.Muon(theirs, **SETTINGS)
    give_gradients(theirs, 0)
    before.step()
    after = Muon(ours, **SETTINGS)
    after.load_state_dict(deepcopy(before.state_dict()))
    assert after.state_dict()["param_groups"] == before.state_dict()["param_groups"]
    for one, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(after.state[one], before.state[its], rtol=0, atol=0)


@pytest.mark.parametrize("width", [48, 192], ids=["square", "wide"])
@pytest.mark.parametrize("spectrum", ["flat", "falling", "steep"])
def test_bfloat16_rounds_about_as_iterations_on_the_matrices_themselves(spectrum, width):
    ranks = torch.arange(48)
    values = {"flat": torch.ones(48), "falling": 1 / (ranks + 1.0), "steep": 10 ** (-6 * ranks / 47)}[spectrum]
    given = with_spectrum(values, width)
    exact = one_after_another(given)

    def error(found: torch.Tensor) -> float:
        return float((found.double() - exact).norm() / exact.norm())

    found = given.bfloat16()
    orthogonalize_(found, COEFFICIENTS, steps=5, eps=1e-7)
    assert error(found) < 2.5 * error(one_after_another(given.bfloat16()))
    precise = given.clone()
    orthogonalize_(precise, COEFFICIENTS, steps=5, eps=1e-7)
    assert error(precise) < 1e-9


def test_a_cpu_without_instructions_for_bfloat16_computes_in_float32(monkeypatch):
    matrix = torch.zeros(2, 2)
    monkeypatch.setattr("vitrine.training.muon.cpu_supports_bf16", lambda: False)
    assert product_dtype(matrix) is torch.float32
    monkeypatch.setattr("vitrine.training.muon.cpu_supports_bf16", lambda: True)
    assert product_dtype(matrix) is torch.bfloat16
    assert product_dtype(matrix.double()) is torch.float64


def test_matrices_of_zeros_stay():
    """A head that starts at zero has no gradient at first."""
    one = torch.nn.Parameter(torch.zeros(4, 8))
    optimizer = Muon([one], **SETTINGS)
    one.grad = torch.zeros_like(one)
    optimizer.step()
    assert one.isfinite().all()
    assert not one.any()
