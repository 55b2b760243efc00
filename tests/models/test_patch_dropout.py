"""With patch dropout, a model computes what it would if nothing attended to the patches that are left out."""

import pytest
import torch
from helpers.levels import quick
from torch import nn

from vitrine.config.model import ATTENTIONS, POSITIONS
from vitrine.models import VisionTransformer

SCHEMES = [(position, attention) for position in POSITIONS if position != "conv" for attention in ATTENTIONS]
QUICK = [("rope", "joint"), ("relative", "local"), ("sincos2d", "headwise")]


class Without(nn.Module):
    """A relation that keeps all tokens from attending to some, by a bias."""

    def __init__(self, relation, bias):
        super().__init__()
        self.relation, self.hidden = relation, bias

    def forward(self, q, k, indices=None):
        q, k, bias = self.relation(q, k)
        return q, k, self.hidden if bias is None else self.hidden + bias


@pytest.mark.whole
@pytest.mark.parametrize(("position", "attention"), quick(SCHEMES, QUICK))
def test_tokens_keep_their_positions(small, randomise, images_for, position, attention):
    changes = {"position": position, "attention": attention, "class_token": True, "registers": 1}
    model = randomise(VisionTransformer(small(**changes, patch_dropout=0.4, norm_placement="sandwich")))
    drawn = []
    model.patch_drop.register_forward_hook(lambda module, given, result: drawn.append(result[1]))
    images = images_for(model.config)
    features = model.forward_features(images)

    (indices,) = drawn
    assert indices.shape == (3, 2 + 9), "16 patches, of which 9.6 stay"
    hidden = torch.full((3, 1, 1, 18), -torch.inf, dtype=torch.float64)
    hidden[:, 0, 0] = hidden[:, 0, 0].scatter(1, indices, 0.0)
    for block in model.blocks:
        block.attn.relation = Without(block.attn.relation, hidden)
    everywhere = model.eval().forward_features(images)
    expected = everywhere.gather(1, indices.unsqueeze(2).expand_as(features))
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-12)
    assert (features - features.roll(1, dims=0)).abs().max() > 0.1


@pytest.mark.parametrize("pool", ["cls", "mean", "map"])
def test_the_head_reads_the_tokens_that_are_kept(small, randomise, images_for, pool):
    model = randomise(VisionTransformer(small(pool=pool, patch_dropout=0.5)))
    images = images_for(model.config)
    torch.manual_seed(0)
    features = model.forward_features(images)
    torch.manual_seed(0)
    torch.testing.assert_close(model(images), model.head(model.attn_pool(features)), rtol=0, atol=1e-12)
    assert features.shape == (3, 1 + 8, 24)


def test_evaluation_sees_every_patch(small, randomise, images_for):
    whole = randomise(VisionTransformer(small()))
    some = randomise(VisionTransformer(small(patch_dropout=0.5)))
    images = images_for(whole.config)
    assert torch.equal(some.eval()(images), whole.eval()(images))
    assert not torch.equal(some.train()(images), whole.train()(images))
