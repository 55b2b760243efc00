import math

import pytest
import torch
from timm.layers import build_sincos2d_pos_embed
from torch import nn

from vitrine.config.vit import POSITIONS
from vitrine.models import VisionTransformer
from vitrine.models.position import TABLES, learned, none, sincos1d, sincos2d


def test_every_scheme_of_the_configuration_has_its_function():
    assert tuple(TABLES) == POSITIONS


@pytest.mark.parametrize(("grid", "dim"), [(2, 4), (5, 24), (14, 64)])
def test_sincos2d_is_timms_with_its_quarters_in_another_order(small, grid, dim):
    config = small(image_size=4 * grid, dim=dim, heads=1, class_token=False, pool="mean")
    # timm stacks sines, then cosines, rows before columns within each; ours has columns, then rows, sines first.
    row_sine, column_sine, row_cosine, column_cosine = build_sincos2d_pos_embed([grid, grid], dim).chunk(4, dim=1)
    theirs = torch.cat([column_sine, column_cosine, row_sine, row_cosine], dim=1)
    torch.testing.assert_close(sincos2d(config)[0], theirs, rtol=0, atol=1e-5)


def test_sincos2d_follows_its_equation_and_leaves_the_class_token_zero(small):
    table = sincos2d(small(dim=24))
    assert table.shape == (1, 17, 24)
    assert table.dtype is torch.float32
    assert not table[0, 0].any()
    row, column = 2, 3
    patch = table[0, 1 + 4 * row + column]
    for k in range(6):
        turn = 10_000 ** (-k / 6)
        expected = [math.sin(column * turn), math.cos(column * turn), math.sin(row * turn), math.cos(row * turn)]
        assert patch[k::6].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("token", [True, False])
@pytest.mark.parametrize("dim", [1, 7, 24])
def test_sincos1d_follows_the_formula_of_the_transformer_at_any_width(small, dim, token):
    config = small(dim=dim, heads=1, class_token=token, pool="mean")
    table = sincos1d(config)
    assert table.shape == (1, 16 + token, dim)
    assert table.dtype is torch.float32
    for i in range(config.tokens):
        for j in range(dim):
            even = j % 2 == 0
            angle = i / 10_000 ** ((j if even else j - 1) / dim)
            assert table[0, i, j].item() == pytest.approx(math.sin(angle) if even else math.cos(angle), abs=2e-6)


def test_the_learned_table_counts_the_class_token_and_starts_small(small):
    assert learned(small()).shape == (1, 17, 24)
    assert learned(small(class_token=False, pool="mean")).shape == (1, 16, 24)
    torch.manual_seed(0)
    table = learned(small(image_size=64, dim=240))
    assert isinstance(table, nn.Parameter)
    assert table.std().item() == pytest.approx(0.02, rel=0.02)
    assert table.mean().item() == pytest.approx(0, abs=1e-3)


def test_without_positions_nothing_is_added(small):
    assert none(small()) is None
    assert VisionTransformer(small(position="none")).pos_embed is None


@pytest.mark.parametrize("position", POSITIONS)
def test_only_a_learned_table_is_a_parameter_and_saved(small, position):
    model = VisionTransformer(small(position=position))
    is_learned = position == "learned"
    assert ("pos_embed" in model.state_dict()) == is_learned
    assert ("pos_embed" in dict(model.named_parameters())) == is_learned
    assert ("pos_embed" in dict(model.named_buffers())) == position.startswith("sincos")


def test_tables_are_added_to_the_tokens_as_they_are(small, randomise):
    model = randomise(VisionTransformer(small(position="sincos2d")))
    model.blocks, model.norm = nn.ModuleList(), nn.Identity()
    with_table = model.forward_features(torch.zeros(1, 3, 16, 16, dtype=torch.float64))
    model.pos_embed = None
    without = model.forward_features(torch.zeros(1, 3, 16, 16, dtype=torch.float64))
    torch.testing.assert_close(with_table - without, sincos2d(small(position="sincos2d")).double())
