import math

import pytest
import torch

from vitrine.models.attention import attend
from vitrine.models.block import DropPath


def some_qkv(dtype=torch.float64, shape=(2, 3, 5, 4)):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for _ in range(3)]


def test_attend_is_softmax_of_products_over_the_root_of_the_width():
    q, k, v = some_qkv()
    mixed = attend(q, k, v, kernel="explicit")
    for image, head, token in [(0, 0, 0), (1, 2, 4)]:
        scores = [math.fsum((q[image, head, token] * k[image, head, other]).tolist()) / 2 for other in range(5)]
        weights = [math.exp(score) / math.fsum(map(math.exp, scores)) for score in scores]
        expected = sum(weight * v[image, head, other] for other, weight in enumerate(weights))
        torch.testing.assert_close(mixed[image, head, token], expected, rtol=0, atol=1e-12)


def test_both_kernels_give_the_same_numbers_and_gradients():
    weights = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    results = []
    for kernel in ("sdpa", "explicit"):
        qkv = some_qkv()
        mixed = attend(*qkv, kernel=kernel)
        (mixed * weights).sum().backward()
        results.append([mixed.detach(), *(one.grad for one in qkv)])
    for fused, explicit in zip(*results, strict=True):
        assert fused.abs().max() > 0.01
        torch.testing.assert_close(fused, explicit, rtol=0, atol=1e-12)


def test_auto_is_explicit_for_bfloat16_on_a_cpu_and_sdpa_else():
    low = some_qkv(torch.bfloat16, (4, 3, 64, 16))
    assert torch.equal(attend(*low), attend(*low, kernel="explicit"))
    assert not torch.equal(attend(*low), attend(*low, kernel="sdpa"))
    full = some_qkv(torch.float32, (4, 3, 64, 16))
    assert torch.equal(attend(*full), attend(*full, kernel="sdpa"))
    assert not torch.equal(attend(*full), attend(*full, kernel="explicit"))


@pytest.mark.parametrize("kernel", ["sdpa", "explicit"])
def test_dropout_drops_weights_and_scales_those_that_stay(kernel):
    torch.manual_seed(0)
    tokens, rate = 8, 0.25
    zeros, ones = torch.zeros(50, 4, tokens, 6), torch.ones(50, 4, tokens, 6)
    mixed = attend(zeros, zeros, ones, dropout=rate, kernel=kernel)  # every weight is 1/8
    kept = mixed * tokens * (1 - rate)
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-4)
    assert torch.equal(kept, kept[..., :1].expand_as(kept))  # weights are dropped, not values
    assert len(kept.round().unique()) > 4
    assert mixed.mean().item() == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("kernel", ["sdpa", "explicit"])
def test_without_dropout_every_row_of_weights_adds_up_to_one(kernel):
    q, k, v = some_qkv()
    torch.testing.assert_close(attend(q, k, torch.ones_like(v), kernel=kernel), torch.ones_like(v))


def test_drop_path_is_the_identity_in_evaluation_and_at_rate_zero():
    x = torch.randn(4, 3, 2)
    assert torch.equal(DropPath(0.9).eval()(x), x)
    assert torch.equal(DropPath(0.0).train()(x), x)


def test_drop_path_drops_whole_images_and_keeps_the_mean():
    torch.manual_seed(0)
    images, rate = 4000, 0.3
    dropped = DropPath(rate).train()(torch.ones(images, 3, 2))
    assert torch.equal(dropped, dropped[:, :1, :1].expand_as(dropped))
    assert dropped.unique().tolist() == pytest.approx([0, 1 / (1 - rate)])
    assert dropped.mean().item() == pytest.approx(1, abs=0.04)
