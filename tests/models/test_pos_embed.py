import math

import pytest
import torch
from timm.layers import build_sincos2d_pos_embed
from torch import nn

from vitrine.config.model import LEARNED_TABLES, POSITIONS
from vitrine.models import VisionTransformer
from vitrine.models.pos_embed import ConvPosition, learned, learned2d, no_table, per_token, sincos1d, sincos2d

PREFIXES = [
    {"class_token": False, "registers": 0, "pool": "mean"},
    {"class_token": True, "registers": 0},
    {"class_token": False, "registers": 2, "pool": "mean"},
    {"class_token": True, "registers": 2},
]
TABLES = ("learned", "learned2d", "sincos1d", "sincos2d")


@pytest.mark.parametrize(("grid", "dim"), [(2, 4), (5, 24), (14, 64)])
def test_sincos2d_is_timms_with_its_quarters_in_another_order(small, grid, dim):
    config = small(image_size=4 * grid, dim=dim, heads=1, class_token=False, pool="mean")
    # timm stacks sines, then cosines, rows before columns within each; ours has columns, then rows, sines first.
    row_sine, column_sine, row_cosine, column_cosine = build_sincos2d_pos_embed([grid, grid], dim).chunk(4, dim=1)
    theirs = torch.cat([column_sine, column_cosine, row_sine, row_cosine], dim=1)
    torch.testing.assert_close(sincos2d(config)[0], theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(("frequencies", "last"), [("moco_v3", 6), ("big_vision", 5)])
def test_sincos2d_follows_its_equation_and_leaves_the_prefix_zero(small, prefix, frequencies, last):
    config = small(dim=24, sincos_frequencies=frequencies, **prefix)
    table = sincos2d(config)
    before = prefix["class_token"] + prefix["registers"]
    assert table.shape == (1, before + 16, 24)
    assert table.dtype is torch.float32
    assert not table[0, :before].any()
    for row, column in [(0, 0), (2, 3), (3, 1)]:
        patch = table[0, before + 4 * row + column]
        for k in range(6):
            turn = 10_000 ** (-k / last)
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


@pytest.mark.parametrize("token", [True, False])
def test_in_sincos1d_registers_have_no_place_and_take_none(small, token):
    with_registers = sincos1d(small(registers=2, class_token=token, pool="mean"))
    without = sincos1d(small(class_token=token, pool="mean"))
    assert not with_registers[:, token : token + 2].any()
    assert torch.equal(with_registers[:, :token], without[:, :token])
    assert torch.equal(with_registers[:, token + 2 :], without[:, token:])


@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_learned_table_counts_the_prefix(small, prefix):
    before = prefix["class_token"] + prefix["registers"]
    assert learned(small(**prefix)).shape == (1, before + 16, 24)


@pytest.mark.parametrize("table", [learned, learned2d])
def test_learned_tables_start_small(small, table):
    torch.manual_seed(0)
    values = table(small(image_size=64, dim=600, heads=1))
    assert isinstance(values, nn.Parameter)
    assert values.std().item() == pytest.approx(0.02, rel=0.02)
    assert values.mean().item() == pytest.approx(0, abs=1e-3)


def test_learned2d_has_a_vector_for_each_row_and_each_column_whose_sum_is_a_patches_place(small, noise):
    assert learned2d(small()).shape == (2, 4, 24)
    rows, columns = table = noise(2, 3, 5)
    places = per_token(table, (3, 3), 2)
    assert places.shape == (1, 2 + 9, 5)
    assert not places[:, :2].any()
    for row in range(3):
        for column in range(3):
            assert torch.equal(places[0, 2 + 3 * row + column], rows[row] + columns[column])


def test_without_positions_nothing_is_added(small):
    assert no_table(small()) is None
    assert VisionTransformer(small(position="none")).pos_embed is None


@pytest.mark.parametrize("position", POSITIONS)
def test_only_a_learned_table_is_a_parameter_and_saved(small, position):
    model = VisionTransformer(small(position=position))
    is_learned = position in LEARNED_TABLES
    assert ("pos_embed" in model.state_dict()) == is_learned
    assert ("pos_embed" in dict(model.named_parameters())) == is_learned
    assert ("pos_embed" in dict(model.named_buffers())) == position.startswith("sincos")


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("position", TABLES)
def test_table_formats_are_added_to_the_tokens_as_they_are(small, randomise, images_for, position, prefix):
    config = small(position=position, **prefix)
    model = randomise(VisionTransformer(config))
    images = images_for(config, 2)
    with_table = model.intermediates(images)["embedded"]
    table = model.position_table()
    model.pos_embed = None
    without = model.intermediates(images)["embedded"]
    torch.testing.assert_close(with_table - without, table.expand(2, -1, -1))


def written_out(tokens, before, grid, weight, bias):
    """Each patch and a weighted sum of those around it, nothing lying beyond the edge."""
    result = tokens.clone()
    for row in range(grid):
        for column in range(grid):
            total = bias.clone()
            for down in (-1, 0, 1):
                for right in (-1, 0, 1):
                    if 0 <= row + down < grid and 0 <= column + right < grid:
                        other = before + grid * (row + down) + column + right
                        total = total + weight[:, 0, 1 + down, 1 + right] * tokens[:, other]
            result[:, before + grid * row + column] += total
    return result


@pytest.mark.parametrize("prefix", PREFIXES)
def test_conv_adds_to_each_patch_those_around_it_channel_by_channel(small, noise, prefix):
    config = small(position="conv", **prefix)
    position = ConvPosition(config.dim, config.grid, config.prefix).double()
    tokens = noise(2, config.tokens, 24)
    expected = written_out(tokens, config.prefix, 4, position.proj.weight, position.proj.bias)
    torch.testing.assert_close(position(tokens), expected, rtol=0, atol=1e-12)


def test_conv_acts_once_after_the_first_block(small, randomise, images_for):
    config = small(position="conv", depth=3)
    model = randomise(VisionTransformer(config)).eval()
    found = model.intermediates(images_for(config))
    conv = model.pos_conv.proj
    after_first = written_out(model.blocks[0](found["embedded"]), 1, 4, conv.weight, conv.bias)
    torch.testing.assert_close(found["blocks.0"], after_first, rtol=0, atol=1e-12)
    assert torch.equal(found["blocks.1"], model.blocks[1](found["blocks.0"]))
    assert torch.equal(found["blocks.2"], model.blocks[2](found["blocks.1"]))
