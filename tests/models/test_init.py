import math

import pytest
import torch
from scipy.stats import kstest
from torch import nn

from vitrine.config.vit import INITS as WORDS
from vitrine.models import VisionTransformer
from vitrine.models.init import INITS


@pytest.fixture
def fresh(small):
    """A model just made, large enough for its weights to show their distribution."""

    def make(init):
        torch.manual_seed(0)
        return VisionTransformer(small(init=init, dim=96, depth=2, mlp_ratio=2.0))

    return make


def assert_uniform(weights, bound):
    assert weights.abs().max() <= bound
    assert kstest(weights.detach().flatten().numpy(), "uniform", args=(-bound, 2 * bound)).pvalue > 1e-3


def linears(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def test_every_scheme_of_the_configuration_has_its_function():
    assert tuple(INITS) == WORDS


@pytest.mark.parametrize("init", WORDS)
def test_under_every_scheme_norms_start_as_the_identity_and_the_class_token_at_zero(fresh, init):
    model = fresh(init)
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 5
    assert all((norm.weight == 1).all() and not norm.bias.any() for norm in norms)
    assert not model.cls_token.any()


@pytest.mark.parametrize("init", WORDS)
def test_no_scheme_touches_the_table_of_positions(fresh, init):
    table = fresh(init).pos_embed.detach().flatten().numpy()
    assert kstest(table, "norm", args=(0, 0.02)).pvalue > 1e-3


@pytest.mark.parametrize("init", ["xavier", "paper"])
def test_linear_layers_are_drawn_from_xaviers_distribution_each_projection_for_itself(fresh, init):
    for name, layer in linears(fresh(init)).items():
        if name == "head" and init == "paper":
            continue
        parts = layer.weight.chunk(3) if name.endswith("qkv") else [layer.weight]
        for part in parts:
            assert_uniform(part, math.sqrt(6 / sum(part.shape)))


def test_xavier_counts_the_patch_embedding_as_a_linear_map_from_pixels_to_the_width(fresh):
    assert_uniform(fresh("xavier").patch_embed.proj.weight, math.sqrt(6 / (3 * 4 * 4 + 96)))


def test_paper_draws_the_patch_embedding_from_lecuns_distribution(fresh):
    weight = fresh("paper").patch_embed.proj.weight.detach()
    assert kstest(weight.flatten().numpy(), "norm", args=(0, 1 / math.sqrt(3 * 4 * 4))).pvalue > 1e-3


@pytest.mark.parametrize("init", ["xavier", "paper"])
def test_xavier_and_paper_start_with_zero_biases_but_only_paper_with_a_zero_head(fresh, init):
    model = fresh(init)
    assert model.head.weight.any() == (init == "xavier")
    assert not model.patch_embed.proj.bias.any()
    assert not any(layer.bias.any() for layer in linears(model).values())


def test_trunc_normal_draws_every_linear_layer_narrowly_and_zeroes_its_bias(fresh):
    for layer in linears(fresh("trunc_normal")).values():
        weight = layer.weight.detach()
        assert weight.abs().max() <= 0.04
        assert kstest(weight.flatten().numpy(), "truncnorm", args=(-2, 2, 0, 0.02)).pvalue > 1e-3
        assert not layer.bias.any()


def test_torch_leaves_weights_and_biases_as_pytorch_draws_them(fresh):
    model = fresh("torch")
    for layer in linears(model).values():
        assert_uniform(layer.weight, 1 / math.sqrt(layer.in_features))
        assert_uniform(layer.bias, 1 / math.sqrt(layer.in_features))
    assert_uniform(model.patch_embed.proj.weight, 1 / math.sqrt(3 * 4 * 4))
