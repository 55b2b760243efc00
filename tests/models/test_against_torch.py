from itertools import product

import pytest
import torch
from helpers.renaming import renamed
from torch import nn

from vitrine.models import VisionTransformer

NAMES = (
    ("attn.qkv.", "self_attn.in_proj_"),
    ("attn.proj", "self_attn.out_proj"),
    ("mlp.fc1", "linear1"),
    ("mlp.fc2", "linear2"),
)


def torch_names(tensors):
    return renamed(tensors, NAMES)


class Encoder(nn.Module):
    """What a model of ours does with its tokens."""

    def __init__(self, model):
        super().__init__()
        self.layers, self.norm = model.blocks, model.norm

    def forward(self, tokens):
        for block in self.layers:
            tokens = block(tokens)
        return self.norm(tokens)


def torch_encoder(config):
    layer = nn.TransformerEncoderLayer(
        d_model=config.dim,
        nhead=config.heads,
        dim_feedforward=config.mlp_dim,
        dropout=0.0,
        activation=config.mlp,
        layer_norm_eps=config.norm_eps,
        batch_first=True,
        norm_first=config.norm_placement == "pre",
    )
    norm = nn.LayerNorm(config.dim, eps=config.norm_eps) if config.final_norm else None
    encoder = nn.TransformerEncoder(layer, config.depth, norm=norm, enable_nested_tensor=False)
    return encoder.double().train()  # in evaluation it takes another path, fused


@pytest.fixture(params=product(["pre", "post"], ["relu", "gelu"], [True, False]), ids=str)
def encoders(request, small, randomise):
    placement, mlp, final_norm = request.param
    config = small(norm_placement=placement, mlp=mlp, final_norm=final_norm, norm_eps=1e-5)
    ours, theirs = Encoder(randomise(VisionTransformer(config))), torch_encoder(config)
    theirs.load_state_dict(torch_names(ours.state_dict()))
    return ours, theirs


def some_tokens():
    return torch.randn(3, 5, 24, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def test_tokens_and_gradients_are_those_of_torchs_encoder(encoders, assert_same):
    assert_same(*encoders, some_tokens(), torch_names)


@pytest.mark.parametrize("change", [{"norm_placement": "pre"}, {"mlp": "gelu"}, {"norm_eps": 1e-6}])
def test_the_comparison_notices_a_small_difference(small, randomise, assert_same, change):
    post = {"norm_placement": "post", "mlp": "relu", "norm_eps": 1e-5}
    theirs = torch_encoder(small(**post))
    ours = Encoder(randomise(VisionTransformer(small(**post | change))))
    theirs.load_state_dict(torch_names(ours.state_dict()))
    with pytest.raises(AssertionError, match="not close"):
        assert_same(ours, theirs, some_tokens(), torch_names)
