from itertools import product

import pytest
import torch
from torch import nn

from vitrine.models import VisionTransformer
from vitrine.models.block import BLOCKS, Block, DropPath, LayerScale, PostNormBlock, SandwichBlock
from vitrine.models.pos_embed import NoRelation
from vitrine.models.vit import drop_path_rates

KINDS = {"pre": Block, "post": PostNormBlock, "sandwich": SandwichBlock}


@pytest.fixture
def block(small, randomise):
    """One block with random weights."""

    def make(placement="pre", drop_path=0.0, **changes):
        config = small(norm_placement=placement, drop_path=drop_path, **changes)
        return randomise(BLOCKS[placement](config, drop_path or None, NoRelation())).eval()

    return make


@pytest.mark.parametrize("layer_scale", [None, 0.5])
@pytest.mark.parametrize("placement", KINDS)
def test_norms_stand_where_the_placement_says(block, noise, placement, layer_scale):
    one = block(placement, layer_scale=layer_scale)
    assert type(one) is KINDS[placement]
    x = noise(2, 17, 24)

    def attention(tokens):
        mixed = one.norm1_out(one.attn(tokens))
        return mixed if layer_scale is None else mixed * one.ls1.gamma

    def mlp(tokens):
        made = one.norm2_out(one.mlp(tokens))
        return made if layer_scale is None else made * one.ls2.gamma

    if placement == "post":
        after = one.norm1(x + attention(x))
        expected = one.norm2(after + mlp(after))
    else:
        after = x + attention(one.norm1(x))
        expected = after + mlp(one.norm2(after))
    torch.testing.assert_close(one(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("placement", ["pre", "sandwich"])
def test_a_small_layer_scale_makes_a_branch_small(small, noise, placement):
    x, moved = noise(2, 17, 24), []
    for scale in (1.0, 1e-3):
        torch.manual_seed(0)
        config = small(norm_placement=placement, layer_scale=scale)
        moved.append(float((BLOCKS[placement](config, 0.0, NoRelation()).double()(x) - x).norm()))
    assert moved[1] < 2e-3 * moved[0]


@pytest.mark.parametrize("placement", KINDS)
def test_without_residual_connections_each_branch_replaces_its_input(block, noise, placement):
    one = block(placement, residual=False)
    x = noise(2, 17, 24)
    if placement == "pre":
        expected = one.mlp(one.norm2(one.attn(one.norm1(x))))
    elif placement == "post":
        expected = one.norm2(one.mlp(one.norm1(one.attn(x))))
    else:
        expected = one.norm2_out(one.mlp(one.norm2(one.norm1_out(one.attn(one.norm1(x))))))
    torch.testing.assert_close(one(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("placement", "norms"), [("pre", 2), ("post", 2), ("sandwich", 4)])
def test_each_placement_has_its_number_of_norms(block, placement, norms):
    assert sum(isinstance(module, nn.LayerNorm) for module in block(placement).modules()) == norms


def test_the_model_takes_the_blocks_of_its_placement(small):
    for placement, kind in KINDS.items():
        blocks = VisionTransformer(small(norm_placement=placement)).blocks
        assert [type(one) for one in blocks] == [kind, kind]


def test_layer_scale_starts_at_its_value_and_multiplies_each_channel(small, noise):
    scale = LayerScale(24, 0.3)
    assert torch.equal(scale.gamma, torch.full((24,), 0.3))
    scale.gamma.data = torch.arange(24.0)
    tokens = noise(2, 5, 24)
    assert torch.equal(scale(tokens), tokens * torch.arange(24.0))
    model = VisionTransformer(small(layer_scale=1e-4))
    factors = {name: one for name, one in model.named_parameters() if name.endswith("gamma")}
    assert set(factors) == {f"blocks.{index}.ls{branch}.gamma" for index in (0, 1) for branch in (1, 2)}
    assert all((factor == 1e-4).all() for factor in factors.values())


def test_without_layer_scale_there_are_no_factors(small):
    assert not any("gamma" in name for name in VisionTransformer(small()).state_dict())


@pytest.mark.parametrize("placement", KINDS)
def test_drop_path_skips_each_branch_by_itself_for_each_image_by_itself(block, noise, placement):
    one = block(placement, drop_path=0.5)
    x = noise(1, 17, 24)

    def outcome(attention, mlp):
        """The block's output where a branch is skipped (0) or counts twice, for the mean (2)."""
        factors = iter([attention, mlp])
        one.drop_path.forward = lambda branch: branch * next(factors)
        result = one(x)[0]
        del one.drop_path.forward
        return result

    outcomes = torch.stack([outcome(*factors) for factors in product((0, 2), repeat=2)])
    torch.manual_seed(0)
    results = one.train()(x.expand(64, -1, -1))
    distances = (results[:, None] - outcomes).abs().amax(dim=(2, 3))
    assert distances.amin(dim=1).max() < 1e-12
    assert set(distances.argmin(dim=1).tolist()) == {0, 1, 2, 3}


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


def test_a_block_alone_skips_as_its_argument_says(small):
    assert Block(small(drop_path=0.0), 0.5, NoRelation()).drop_path.keep == 0.5
    assert not hasattr(Block(small(drop_path=0.5), None, NoRelation()).drop_path, "keep")
    assert drop_path_rates(small(depth=2, drop_path=0.0)) == [None, None]


@pytest.mark.parametrize(
    ("shape", "depth", "rates"),
    [
        ("linear", 1, [0.0]),
        ("linear", 2, [0.0, 0.4]),
        ("linear", 5, [0.0, 0.1, 0.2, 0.3, 0.4]),
        ("constant", 1, [0.4]),
        ("constant", 3, [0.4, 0.4, 0.4]),
    ],
)
def test_drop_path_grows_linearly_from_the_first_block_to_the_last_or_stays_the_same(small, shape, depth, rates):
    config = small(depth=depth, drop_path=0.4, drop_path_shape=shape)
    assert drop_path_rates(config) == pytest.approx(rates)
    assert [1 - one.drop_path.keep.item() for one in VisionTransformer(config).blocks] == pytest.approx(rates, abs=1e-6)
