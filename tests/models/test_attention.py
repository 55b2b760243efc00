import math
from dataclasses import replace

import pytest
import torch

from vitrine.config.model import ATTENTIONS, POSITIONS
from vitrine.models import VisionTransformer
from vitrine.models import attention as modules
from vitrine.models.attention import Attention, HeadwiseAttention, attend, build_attention
from vitrine.models.pos_embed import NoRelation

NAMES = {module: name for name, module in modules.ATTENTIONS.items()}


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


@pytest.mark.parametrize("kernel", ["sdpa", "explicit"])
def test_a_bias_is_added_to_the_scores_and_minus_infinity_masks(kernel, noise):
    q, k, v = (one.detach() for one in some_qkv())
    bias = noise(3, 5, 5)
    bias[1, 2] = torch.tensor([0.0, -torch.inf, 0.0, -torch.inf, -torch.inf])
    mixed = attend(q, k, v, bias=bias, scale=0.3, kernel=kernel)
    for image, head, token in [(0, 0, 0), (1, 2, 4), (1, 1, 2)]:
        scores = [0.3 * float(q[image, head, token] @ k[image, head, other]) for other in range(5)]
        shares = [math.exp(score + float(bias[head, token, other])) for other, score in enumerate(scores)]
        expected = sum(share * v[image, head, other] for other, share in enumerate(shares)) / math.fsum(shares)
        torch.testing.assert_close(mixed[image, head, token], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", ["auto", "sdpa", "explicit"])
def test_a_bias_in_full_precision_fits_queries_in_half(kernel, noise):
    q, k, v = (one.detach() for one in some_qkv(torch.bfloat16))
    bias = noise(3, 5, 5).float()
    mixed = attend(q, k, v, bias=bias, kernel=kernel)
    exact = attend(q.double(), k.double(), v.double(), bias=bias.double(), kernel="explicit")
    assert mixed.dtype is torch.bfloat16
    torch.testing.assert_close(mixed.double(), exact, rtol=0, atol=0.03)


@pytest.fixture
def attention(small, randomise):
    """Attention alone, with random weights, in evaluation mode."""

    def make(kind=Attention, **changes):
        return randomise(build_attention(small(**changes, attention=NAMES[kind]), NoRelation())).eval()

    return make


def softmax_rows(scores):
    shares = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return shares / shares.sum(dim=-1, keepdim=True)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("kind", [Attention, HeadwiseAttention])
def test_qk_norm_normalises_queries_and_keys_but_not_values_in_each_head(attention, noise, kind, norm):
    normed = attention(kind, qk_norm=True, norm=norm, norm_eps=0.01, out_projection=False)
    tokens = noise(2, 17, 24)
    q, k, v = normed.project(tokens)

    def normalised(x, gain, bias):
        x = x - x.mean(dim=-1, keepdim=True) if norm == "layernorm" else x
        return x / (x.square().mean(dim=-1, keepdim=True) + 0.01).sqrt() * gain + bias

    q = normalised(q, normed.q_norm.weight, normed.q_norm.bias if norm == "layernorm" else 0)
    k = normalised(k, normed.k_norm.weight, normed.k_norm.bias if norm == "layernorm" else 0)
    mixed = softmax_rows(q @ k.transpose(2, 3) / math.sqrt(8)) @ v
    torch.testing.assert_close(normed(tokens), mixed.transpose(1, 2).flatten(2), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [Attention, HeadwiseAttention])
def test_without_biases_and_output_projection_only_the_weights_of_queries_keys_and_values_are_left(attention, kind):
    assert set(attention(kind, qkv_bias=False, out_projection=False).state_dict()) == {"qkv.weight"}
    assert set(attention(kind).state_dict()) == {"qkv.weight", "qkv.bias", "proj.weight", "proj.bias"}


def learn(model, images):
    """Logits, and the gradients of a fixed weighted sum of them, by name."""
    logits = model(images)
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(3), dtype=logits.dtype)
    (logits * weights).sum().backward()
    return logits.detach(), {name: one.grad for name, one in model.named_parameters()}


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_all_kernels_give_the_same_logits_and_gradients(small, randomise, images_for, attention, position):
    config = small(attention=attention, position=position, registers=1, qk_norm=True, pool="map", image_size=12)
    images = images_for(config)
    torch.manual_seed(0)
    reference = randomise(VisionTransformer(replace(config, attention_kernel="explicit")))
    logits, gradients = learn(reference, images)
    assert logits.abs().max() > 0.01
    for kernel in ("sdpa", "auto"):
        model = randomise(VisionTransformer(replace(config, attention_kernel=kernel)))
        others, other_gradients = learn(model, images)
        torch.testing.assert_close(others, logits, rtol=0, atol=1e-12)
        for name, gradient in gradients.items():
            torch.testing.assert_close(other_gradients[name], gradient, rtol=0, atol=1e-12, msg=f"{kernel}: {name}")


@pytest.mark.parametrize("kernel", ["sdpa", "explicit"])
def test_a_model_computes_attention_by_the_configured_kernel(small, images_for, monkeypatch, kernel):
    calls = []
    fused = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or fused(*a, **k)
    )
    config = small(attention_kernel=kernel, pool="map")
    VisionTransformer(config).double()(images_for(config))
    assert len(calls) == (3 if kernel == "sdpa" else 0)


@pytest.mark.parametrize("position", ["none", "relative", "rope_mixed"])
@pytest.mark.parametrize("kind", ATTENTIONS)
def test_in_mixed_precision_queries_keys_and_values_are_all_in_the_lower_one(small, kind, position):
    attention = VisionTransformer(small(attention=kind, position=position, dim=48)).blocks[0].attn
    with torch.autocast("cpu", torch.bfloat16):
        q, k, v = attention.project(torch.randn(2, 17, 48))
        q, k, _ = attention.relate(q, k)
        mixed = attention(torch.randn(2, 17, 48))
    assert {q.dtype, k.dtype, v.dtype, mixed.dtype} == {torch.bfloat16}
