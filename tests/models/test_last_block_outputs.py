"""The last block computes the outputs that the pool reads, and no others."""

import copy

import pytest
import torch
from helpers.levels import quick

from vitrine.config.model import ATTENTIONS, NORM_PLACEMENTS, POSITIONS
from vitrine.models import VisionTransformer

CHOICES = [(position, attention) for position in POSITIONS for attention in ATTENTIONS]
QUICK = [("learned", "joint"), ("relative", "headwise"), ("rope_mixed", "local")]


def learned(model, images):
    """Logits of ``images``, and the gradients of a weighted sum of them."""
    torch.manual_seed(0)
    logits = model(images)
    (logits * torch.arange(logits.numel()).view(logits.shape)).sum().backward()
    return logits, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.whole
@pytest.mark.parametrize("placement", NORM_PLACEMENTS)
@pytest.mark.parametrize(("position", "attention"), quick(CHOICES, QUICK))
@pytest.mark.parametrize("kernel", ["sdpa", "explicit"])
def test_the_class_token_gives_and_learns_what_it_does_among_all(
    small, randomise, images_for, position, attention, placement, kernel
):
    kinds = {"position": position, "attention": attention, "attention_kernel": kernel, "norm_placement": placement}
    model = randomise(VisionTransformer(small(**kinds, registers=2, layer_scale=0.5, mlp="swiglu", qk_norm=True)))
    assert model.num_queries == 1
    whole = copy.deepcopy(model)
    whole.num_queries = None
    images = images_for(model.config)
    torch.testing.assert_close(learned(model, images), learned(whole, images), rtol=0, atol=1e-10)


@pytest.mark.parametrize("changes", [{"patch_dropout": 0.4}, {"residual": False}, {"drop_path": 0.5}, {"depth": 1}])
def test_it_does_in_training_too(small, randomise, images_for, changes):
    model = randomise(VisionTransformer(small(**changes)))
    whole = copy.deepcopy(model)
    whole.num_queries = None
    images = images_for(model.config)
    torch.testing.assert_close(learned(model, images), learned(whole, images), rtol=0, atol=1e-10)


def test_the_last_block_alone_leaves_tokens_out(small, images_for):
    model = VisionTransformer(small(depth=3)).double()
    shapes = []
    for block in model.blocks:
        block.mlp.register_forward_hook(lambda module, given, result: shapes.append(tuple(result.shape)))
    model(images_for(model.config))
    assert shapes == [(3, 17, 24), (3, 17, 24), (3, 1, 24)]
    assert model.forward_features(images_for(model.config)).shape == (3, 17, 24)


@pytest.mark.parametrize("changes", [{"norm": "batchnorm"}, {"pool": "mean"}, {"pool": "map"}])
def test_every_token_is_computed_where_it_matters(small, changes):
    assert VisionTransformer(small(**changes)).num_queries is None
