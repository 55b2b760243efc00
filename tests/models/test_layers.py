import math

import pytest
import torch
from scipy.stats import kstest
from torch import nn

from vitrine.models import VisionTransformer
from vitrine.models.layers import (
    BatchNorm,
    Dropout,
    HeadwiseLinear,
    PackedLinear,
    PatchDropout,
    apply_dropout,
    build_norm,
)

KINDS = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm, "batchnorm": BatchNorm}
EVERYWHERE = {
    "embed_norm": True,
    "qk_norm": True,
    "norm_placement": "sandwich",
    "pool": "map",
    "patch_embed": "shifted",
}


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_each_value_is_zeroed_with_the_rate_and_the_mean_is_kept(rate, dtype):
    count = 1_000_001  # no multiple of four
    zeroed = apply_dropout(torch.ones(count, dtype=dtype), rate)
    assert zeroed.dtype == dtype
    (kept,) = set(zeroed.unique().tolist()) - {0.0}
    assert kept == pytest.approx(1 / (1 - rate), rel=1e-2 if dtype == torch.bfloat16 else 1e-4)
    deviation = (rate * (1 - rate) / count) ** 0.5
    for part in zeroed[: count - 1].view(-1, 4).unbind(1):  # the four that share a random number
        assert (part == 0).double().mean().item() == pytest.approx(rate, abs=8 * deviation)


def test_values_that_share_a_random_number_are_zeroed_independently():
    first, second, *_ = (apply_dropout(torch.ones(4_000_000), 0.5).view(-1, 4) == 0).double().unbind(1)
    assert (first * second).mean().item() == pytest.approx(0.25, abs=0.003)


def test_the_gradient_passes_where_the_value_did():
    x = torch.randn(5, 7, 3).transpose(0, 2).requires_grad_()  # not contiguous
    y = apply_dropout(x, 0.4)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)
    assert 0 < (y == 0).sum() < y.numel()


def test_the_seed_decides():
    def draw(seed):
        torch.manual_seed(seed)
        return apply_dropout(torch.ones(100), 0.5)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_patch_dropout_keeps_the_prefix_and_as_many_patches_of_each_image_each_as_often():
    images, prefix, kept, patches = 6000, 2, 3, 8
    tokens = torch.arange(images * (prefix + patches), dtype=torch.float32).view(images, prefix + patches, 1)
    left, indices = PatchDropout(kept, patches, prefix)(tokens)
    assert torch.equal(left, tokens.gather(1, indices.unsqueeze(2)))
    assert torch.equal(indices[:, :prefix], torch.arange(prefix).expand(images, -1))
    assert (indices.diff(dim=1) > 0).all()
    often = indices[:, prefix:].flatten().bincount(minlength=prefix + patches)[prefix:] / images
    assert often.tolist() == pytest.approx([kept / patches] * patches, abs=8 * (0.25 / images) ** 0.5)
    pairs = torch.tensor([(row == prefix).any() and (row == prefix + 1).any() for row in indices]).double().mean()
    assert pairs.item() == pytest.approx(kept * (kept - 1) / (patches * (patches - 1)), abs=0.03)


def test_patch_dropout_is_off_in_evaluation():
    tokens = torch.randn(2, 9, 4)
    assert PatchDropout(3, 8, 1).eval()(tokens) == (tokens, None)


def test_rates_at_the_ends():
    x = torch.randn(8)
    assert apply_dropout(x, 0.0) is x
    assert apply_dropout(x, 0.999999).isfinite().all()


def test_nothing_is_zeroed_in_evaluation():
    x = torch.randn(8)
    layer = Dropout(0.5)
    assert layer.eval()(x) is x
    assert (layer.train()(torch.ones(1000)) == 0).any()


@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_map_is_its_maps_side_by_side(noise, bias):
    packed = PackedLinear(5, 4, maps=3, bias=bias).double()
    x = noise(2, 5)
    assert (packed.bias is not None) == bias
    for index, part in enumerate(packed(x).split(4, dim=1)):
        rows = slice(4 * index, 4 * index + 4)
        expected = x @ packed.weight[rows].T + (packed.bias[rows] if bias else 0)
        torch.testing.assert_close(part, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_a_headwise_map_gives_each_head_what_its_own_channels_say(noise, bias):
    headwise = HeadwiseLinear(12, heads=3, maps=2, bias=bias).double()
    x = noise(2, 5, 12)
    made = headwise(x)
    assert made.shape == (2, 2, 3, 5, 4)
    assert (headwise.bias is not None) == bias
    for index in range(2):
        for head in range(3):
            own = x[..., 4 * head : 4 * head + 4]
            expected = own @ headwise.weight[index, head].T + (headwise.bias[index, head] if bias else 0)
            torch.testing.assert_close(made[index, :, head], expected, rtol=0, atol=1e-12)


def test_a_headwise_map_starts_as_pytorch_starts_a_linear_map_of_that_width():
    torch.manual_seed(0)
    headwise = HeadwiseLinear(400, heads=20, maps=3)
    bound = 1 / math.sqrt(20)
    for parameter in (headwise.weight, headwise.bias):
        assert parameter.abs().max() <= bound
        values = parameter.detach().flatten().numpy()
        assert kstest(values, "uniform", args=(-bound, 2 * bound)).pvalue > 1e-3


def test_layernorm_takes_off_the_mean_and_divides_by_the_standard_deviation(small, randomise, noise):
    norm = randomise(build_norm(small(norm="layernorm", norm_eps=0.1), 6))
    x = 1 + noise(2, 3, 6)
    centred = x - x.sum(dim=-1, keepdim=True) / 6
    scale = (centred.square().sum(dim=-1, keepdim=True) / 6 + 0.1).sqrt()
    torch.testing.assert_close(norm(x), centred / scale * norm.weight + norm.bias, rtol=0, atol=1e-12)


def test_rmsnorm_divides_by_the_root_of_the_mean_square_and_has_no_bias(small, randomise, noise):
    norm = randomise(build_norm(small(norm="rmsnorm", norm_eps=0.1), 6))
    x = 1 + noise(2, 3, 6)
    scale = (x.square().sum(dim=-1, keepdim=True) / 6 + 0.1).sqrt()
    torch.testing.assert_close(norm(x), x / scale * norm.weight, rtol=0, atol=1e-12)
    assert set(norm.state_dict()) == {"weight"}


def test_batchnorm_normalises_each_channel_over_the_tokens_of_all_images(small, randomise, noise):
    norm = randomise(build_norm(small(norm="batchnorm", norm_eps=0.1), 6))
    x = 1 + noise(2, 3, 6)
    tokens = x.flatten(0, 1)
    centred = tokens - tokens.mean(dim=0)
    expected = centred / (centred.square().mean(dim=0) + 0.1).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm(x).flatten(0, 1), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(norm.running_mean, 0.1 * tokens.mean(dim=0))
    alone = norm.eval()(x[:1])
    torch.testing.assert_close(alone, norm(x)[:1], rtol=0, atol=0, msg="depends on the images beside it")
    scale = (norm.running_var + 0.1).sqrt()
    expected = (x[:1] - norm.running_mean) / scale * norm.weight + norm.bias
    torch.testing.assert_close(alone, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_every_norm_of_a_model_is_of_its_kind_and_epsilon(small, kind):
    model = VisionTransformer(small(norm=kind, norm_eps=0.02, **EVERYWHERE))
    found = {name: module for name, module in model.named_modules() if isinstance(module, tuple(KINDS.values()))}
    inside = ("norm1", "norm2", "norm1_out", "norm2_out", "attn.q_norm", "attn.k_norm")
    expected = {f"blocks.{index}.{name}" for index in (0, 1) for name in inside}
    assert set(found) == expected | {"patch_embed.norm", "norm_pre", "norm", "attn_pool.norm"}
    assert {type(module) for module in found.values()} == {KINDS[kind]}
    assert {module.eps for module in found.values()} == {0.02}


@pytest.mark.parametrize("key", ["embed_norm", "final_norm"])
def test_tokens_are_normalised_before_the_first_block_and_after_the_last_if_so_configured(small, images_for, key):
    config = small(embed_norm=False, final_norm=False)
    name = "embedded" if key == "embed_norm" else "features"

    def statistics(**changes):
        torch.manual_seed(0)
        model = VisionTransformer(small(**({"embed_norm": False, "final_norm": False} | changes))).double()
        tokens = model.intermediates(images_for(config))[name]
        return tokens.mean(dim=-1).abs().max(), (tokens.var(dim=-1, correction=0) - 1).abs().max()

    assert all(value > 0.1 for value in statistics())
    assert all(value < 0.01 for value in statistics(**{key: True}))


def test_positions_are_added_before_the_first_norm(small, randomise, images_for):
    model = randomise(VisionTransformer(small(embed_norm=True)))
    found = model.intermediates(images_for(small()))
    tokens = torch.cat([model.cls_token.expand(3, -1, -1), found["patches"]], dim=1) + model.pos_embed
    torch.testing.assert_close(found["embedded"], model.norm_pre(tokens))
