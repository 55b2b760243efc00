import math

import pytest
import torch
from scipy.stats import kstest
from torch import nn

from vitrine.config.model import INITS
from vitrine.models import VisionTransformer
from vitrine.models.layers import HeadwiseLinear, PackedLinear


@pytest.fixture
def fresh(small):
    """A model just made, large enough for its weights to show their distribution."""

    def make(init, **changes):
        torch.manual_seed(0)
        return VisionTransformer(small(**({"init": init, "dim": 96, "mlp_ratio": 2.0} | changes)))

    return make


# What has each kind of linear map: three in one, two in one, one for each head, convolutions small, large and depthwise
EVERY_KIND = [
    {"mlp": "swiglu", "pool": "map", "position": "conv"},
    {"attention": "headwise", "patch_embed": "conv_stem", "patch_size": 8},
    {"patch_embed": "linear", "attention": "local"},
    {"patch_embed": "shifted"},
]
IDS = ["packed", "headwise", "linear", "shifted"]


def follows(weights, distribution, *args):
    return kstest(weights.detach().flatten().numpy(), distribution, args=args).pvalue > 1e-3


def assert_uniform(weights, bound):
    assert weights.abs().max() <= bound
    assert follows(weights, "uniform", -bound, 2 * bound)


def linears(model):
    return {name: one for name, one in model.named_modules() if isinstance(one, nn.Linear)}


def convolutions(model):
    return {name: one for name, one in model.named_modules() if isinstance(one, nn.Conv2d)}


def headwise(model):
    return {name: one for name, one in model.named_modules() if isinstance(one, HeadwiseLinear)}


def biases(model):
    found = (linears(model) | convolutions(model) | headwise(model)).values()
    return [one.bias for one in found if one.bias is not None]


def test_these_models_have_every_kind_of_linear_map(fresh):
    packed, heads, flat, shifted = (fresh("torch", **changes) for changes in EVERY_KIND)
    assert {one.maps for one in linears(packed).values() if isinstance(one, PackedLinear)} == {2, 3}
    assert len(headwise(heads)) == 2
    assert {one.kernel_size for one in convolutions(heads).values()} == {(3, 3), (1, 1)}
    assert {one.groups for one in convolutions(packed).values()} == {1, 96}
    assert "patch_embed.proj" in linears(flat)
    assert "patch_embed.proj" in linears(shifted)


@pytest.mark.parametrize("changes", [{}, *EVERY_KIND], ids=["plain", *IDS])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("init", INITS)
def test_under_every_scheme_norms_start_as_the_identity_and_the_class_token_at_zero(fresh, init, norm, changes):
    model = fresh(init, norm=norm.__name__.lower(), **changes)
    norms = [module for module in model.modules() if isinstance(module, norm | nn.BatchNorm2d)]
    assert len(norms) >= 5
    assert all((module.weight == 1).all() for module in norms)
    assert not any(module.bias.any() for module in norms if not isinstance(module, nn.RMSNorm))
    assert not model.cls_token.any()


@pytest.mark.parametrize("init", INITS)
def test_no_scheme_touches_what_is_no_linear_map(fresh, init):
    model = fresh(init, registers=8, pool="map", layer_scale=0.3, attention="local")
    assert follows(model.pos_embed, "norm", 0, 0.02)
    assert follows(model.reg_token, "norm", 0, 0.02)
    assert follows(model.attn_pool.latent, "norm", 0, 96**-0.5)
    assert all((block.ls1.gamma == 0.3).all() for block in model.blocks)
    assert all((block.attn.temperature == 32**-0.5).all() for block in model.blocks)
    relation = fresh(init, position="relative", heads=12).blocks[1].attn.relation
    assert follows(relation.table, "norm", 0, 0.02)
    assert follows(relation.prefix, "norm", 0, 0.02)
    frequencies = fresh(init, position="rope_mixed").blocks[1].attn.relation.frequencies
    assert frequencies.square().sum(dim=0).sqrt()[:, [0, 8]].flatten().tolist() == pytest.approx([1.0] * 6)
    assert follows(fresh(init, position="learned2d").pos_embed, "norm", 0, 0.02)


@pytest.mark.parametrize("changes", EVERY_KIND, ids=IDS)
@pytest.mark.parametrize("init", ["xavier", "paper"])
def test_linear_layers_are_drawn_from_xaviers_distribution_each_map_for_itself(fresh, init, changes):
    model = fresh(init, **changes)
    for layer in linears(model).values():
        for part in layer.weight.chunk(layer.maps if isinstance(layer, PackedLinear) else 1):
            assert_uniform(part, math.sqrt(6 / sum(part.shape)))
    for layer in headwise(model).values():
        for part in layer.weight.flatten(0, 1):
            assert_uniform(part, math.sqrt(6 / (32 + 32)))


@pytest.mark.parametrize("changes", EVERY_KIND[:2], ids=IDS[:2])
@pytest.mark.parametrize("init", ["xavier", "paper"])
def test_convolutions_are_drawn_from_xaviers_distribution_or_in_the_paper_from_lecuns(fresh, init, changes):
    for layer in convolutions(fresh(init, **changes)).values():
        seen = layer.in_channels // layer.groups * layer.kernel_size[0] * layer.kernel_size[1]
        if init == "xavier":
            assert_uniform(layer.weight, math.sqrt(6 / (seen + layer.out_channels)))
        else:
            assert follows(layer.weight, "norm", 0, 1 / math.sqrt(seen))


@pytest.mark.parametrize("changes", EVERY_KIND, ids=IDS)
@pytest.mark.parametrize("init", ["xavier", "paper"])
def test_xavier_and_paper_start_with_zero_biases(fresh, init, changes):
    found = biases(fresh(init, **changes))
    assert len(found) > 7
    assert not any(bias.any() for bias in found)


@pytest.mark.parametrize("changes", EVERY_KIND, ids=IDS)
def test_trunc_normal_draws_every_linear_layer_narrowly_and_zeroes_its_bias(fresh, changes):
    model = fresh("trunc_normal", **changes)
    for layer in [*linears(model).values(), *headwise(model).values()]:
        assert layer.weight.abs().max() <= 0.04
        assert follows(layer.weight, "truncnorm", -2, 2, 0, 0.02)
        assert not layer.bias.any()


@pytest.mark.parametrize("changes", EVERY_KIND[:2], ids=IDS[:2])
@pytest.mark.parametrize("init", ["trunc_normal", "torch"])
def test_convolutions_are_as_pytorch_draws_them_in_schemes_that_say_nothing_of_them(fresh, init, changes):
    for layer in convolutions(fresh(init, **changes)).values():
        seen = layer.in_channels // layer.groups * layer.kernel_size[0] * layer.kernel_size[1]
        assert_uniform(layer.weight, 1 / math.sqrt(seen))
        if layer.bias is not None:
            assert_uniform(layer.bias, 1 / math.sqrt(seen))


@pytest.mark.parametrize("changes", EVERY_KIND, ids=IDS)
def test_torch_leaves_weights_and_biases_as_pytorch_draws_them(fresh, changes):
    model = fresh("torch", **changes)
    for layer in linears(model).values():
        assert_uniform(layer.weight, 1 / math.sqrt(layer.in_features))
        assert_uniform(layer.bias, 1 / math.sqrt(layer.in_features))
    for layer in headwise(model).values():
        assert_uniform(layer.weight, 1 / math.sqrt(32))
        assert_uniform(layer.bias, 1 / math.sqrt(32))


def test_torch_encoder_draws_as_pytorchs_encoder_layer_does(fresh):
    ours = fresh("torch_encoder").blocks[0]
    theirs = nn.TransformerEncoderLayer(96, 3, 192)
    pairs = [
        (ours.attn.qkv, theirs.self_attn.in_proj_weight, theirs.self_attn.in_proj_bias),
        (ours.attn.proj, theirs.self_attn.out_proj.weight, theirs.self_attn.out_proj.bias),
        (ours.mlp.fc1, theirs.linear1.weight, theirs.linear1.bias),
        (ours.mlp.fc2, theirs.linear2.weight, theirs.linear2.bias),
    ]
    for layer, weight, bias in pairs:
        for own, other in ((layer.weight, weight), (layer.bias, bias)):
            assert own.shape == other.shape
            assert own.std().item() == pytest.approx(other.std().item(), rel=0.15)
            assert own.abs().max().item() == pytest.approx(other.abs().max().item(), rel=0.05)


def test_torch_encoder_draws_headwise_attention_like_the_other_kinds(fresh):
    attention = fresh("torch_encoder", attention="headwise").blocks[0].attn
    assert not attention.qkv.bias.any()
    assert not attention.proj.bias.any()
    for weight in attention.qkv.weight.flatten(0, 1):
        assert_uniform(weight, math.sqrt(6 / (32 + 32)))


@pytest.mark.parametrize(("choice", "law"), [("normal", "norm"), ("uniform", "uniform")])
@pytest.mark.parametrize("position", ["learned", "learned2d"])
def test_class_token_and_learned_positions_start_from_the_law_that_is_named(fresh, choice, law, position):
    model = fresh("xavier", class_token_init=choice, position_init=choice, position=position, dim=960)
    for table in (model.cls_token, model.pos_embed):
        assert kstest(table.detach().flatten().numpy(), law).pvalue > 1e-3


@pytest.mark.parametrize("changes", [{}, {"position": "rope_mixed"}, {"norm_placement": "post", "init": "torch"}])
def test_all_blocks_start_as_the_first_on_request(fresh, changes):
    changes = {"init": "xavier", "depth": 3} | changes
    model, plain = fresh(same_init_layers=True, **changes), fresh(**changes)
    first = model.blocks[0].state_dict()
    assert all(torch.equal(value, plain.blocks[0].state_dict()[name]) for name, value in first.items())
    for block, other in zip(model.blocks[1:], plain.blocks[1:], strict=True):
        assert all(torch.equal(value, first[name]) for name, value in block.state_dict().items())
        assert not torch.equal(other.mlp.fc1.weight, first["mlp.fc1.weight"])
    assert model.blocks[1].mlp.fc1.weight.data_ptr() != model.blocks[0].mlp.fc1.weight.data_ptr()
