import pytest
import torch
from torch import nn

from vitrine.models import VisionTransformer
from vitrine.models.layers import build_norm

KINDS = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm}
EVERYWHERE = {
    "embed_norm": True,
    "qk_norm": True,
    "norm_placement": "sandwich",
    "pool": "map",
    "patch_embed": "shifted",
}


def test_layernorm_takes_off_the_mean_and_divides_by_the_standard_deviation(small, randomise, noise):
    one = randomise(build_norm(small(norm="layernorm", norm_eps=0.1), 6))
    x = 1 + noise(2, 3, 6)
    centred = x - x.sum(dim=-1, keepdim=True) / 6
    scale = (centred.square().sum(dim=-1, keepdim=True) / 6 + 0.1).sqrt()
    torch.testing.assert_close(one(x), centred / scale * one.weight + one.bias, rtol=0, atol=1e-12)


def test_rmsnorm_divides_by_the_root_of_the_mean_square_and_has_no_bias(small, randomise, noise):
    one = randomise(build_norm(small(norm="rmsnorm", norm_eps=0.1), 6))
    x = 1 + noise(2, 3, 6)
    scale = (x.square().sum(dim=-1, keepdim=True) / 6 + 0.1).sqrt()
    torch.testing.assert_close(one(x), x / scale * one.weight, rtol=0, atol=1e-12)
    assert set(one.state_dict()) == {"weight"}


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
