import cmath
import math
from collections import defaultdict
from itertools import pairwise, product

import pytest
import torch

from vitrine.models import VisionTransformer
from vitrine.models.pos_embed import alibi_slopes, build_relations

PREFIXES = [
    {"class_token": False, "registers": 0, "pool": "mean"},
    {"class_token": True, "registers": 0},
    {"class_token": True, "registers": 2},
]
GRID = 3
PLACES = list(product(range(GRID), repeat=2))
ROTARY = ("rope", "rope_mixed")
# From the code of the paper (arXiv:2108.12409), get_slopes(8) and get_slopes(12)
SLOPES_8 = [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]
SLOPES_12 = [*SLOPES_8, 0.7071067811865476, 0.35355339059327384, 0.17677669529663692, 0.08838834764831849]


@pytest.fixture
def on_the_grid(small):
    """A configuration of 3 by 3 patches, its heads 8 wide."""

    def make(**changes):
        return small(**({"image_size": 4 * GRID, "dim": 24, "heads": 3} | changes))

    return make


def by_offset(scores, before):
    """The scores (N, N) of patches for patches, under each offset of the query from the key."""
    found = defaultdict(list)
    for (query, (row, column)), (key, (other_row, other_column)) in product(enumerate(PLACES), repeat=2):
        found[row - other_row, column - other_column].append(scores[before + query, before + key].item())
    assert len(found) == (2 * GRID - 1) ** 2
    return found


def assert_only_offsets_matter(scores, before):
    found = by_offset(scores, before)
    for values in found.values():
        assert values == pytest.approx([values[0]] * len(values), abs=1e-6)
    first = sorted(values[0] for values in found.values())
    assert min(after - before for before, after in pairwise(first)) > 1e-5


@pytest.fixture(params=[(position, prefix) for position in ROTARY for prefix in PREFIXES], ids=str)
def rotary(request, on_the_grid, randomise):
    """A configuration and its relation, with random frequencies where they are learned."""
    position, prefix = request.param
    config = on_the_grid(position=position, **prefix)
    return config, randomise(build_relations(config)[0])


def test_scores_of_rotated_queries_and_keys_depend_on_offsets_only(rotary, noise):
    config, relation = rotary
    query, key = (noise(1, 3, 1, 8, seed=seed).expand(-1, -1, config.tokens, -1) for seed in (1, 2))
    q, k, bias = relation(query, key)
    assert bias is None
    scores = (q @ k.transpose(2, 3))[0]
    for head in range(3):
        assert_only_offsets_matter(scores[head], config.prefix)


def test_the_prefix_is_not_rotated_and_no_vector_changes_its_length(rotary, noise):
    config, relation = rotary
    given = [noise(2, 3, config.tokens, 8, seed=seed) for seed in (1, 2)]
    for vectors, rotated in zip(given, relation(*given), strict=False):
        before = config.prefix
        assert torch.equal(rotated[:, :, :before], vectors[:, :, :before])
        assert (rotated[:, :, before + 1 :] - vectors[:, :, before + 1 :]).abs().amax(dim=-1).min() > 0.01
        torch.testing.assert_close(rotated.norm(dim=-1), vectors.norm(dim=-1), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("theta", "base"), [(None, 100.0), (7.0, 7.0)])
def test_rope_rotates_half_of_the_pairs_with_the_column_and_half_with_the_row(on_the_grid, noise, theta, base):
    config = on_the_grid(position="rope", rope_theta=theta)
    q, k = noise(1, 3, 10, 8, seed=1), noise(1, 3, 10, 8, seed=2)
    rotated = build_relations(config)[0].double()(q, k)
    for given, result in zip((q, k), rotated, strict=False):
        for patch, (row, column) in enumerate(PLACES):
            angles = [column, column * base**-0.5, row, row * base**-0.5]
            for pair, angle in enumerate(angles):
                one, other = given[0, 1, 1 + patch, 2 * pair : 2 * pair + 2].tolist()
                expected = complex(one, other) * cmath.exp(1j * angle)
                found = result[0, 1, 1 + patch, 2 * pair : 2 * pair + 2].tolist()
                assert found == pytest.approx([expected.real, expected.imag], abs=1e-6)


def assert_rotated_by(frequencies, given, result, atol):
    """``frequencies`` (2, heads, pairs) rotate each head's pairs with column and row together; one token in front."""
    x, y = frequencies.tolist()
    for head, (patch, (row, column)), pair in product(range(3), enumerate(PLACES), range(4)):
        one, other = given[0, head, 1 + patch, 2 * pair : 2 * pair + 2].tolist()
        expected = complex(one, other) * cmath.exp(1j * (column * x[head][pair] + row * y[head][pair]))
        found = result[0, head, 1 + patch, 2 * pair : 2 * pair + 2].tolist()
        assert found == pytest.approx([expected.real, expected.imag], abs=atol)


def test_rope_mixed_rotates_each_pair_with_column_and_row_as_each_head_has_learned(on_the_grid, randomise, noise):
    relation = randomise(build_relations(on_the_grid(position="rope_mixed"))[0])
    q, k = noise(1, 3, 10, 8, seed=1), noise(1, 3, 10, 8, seed=2)
    for given, result in zip((q, k), relation(q, k), strict=False):
        assert_rotated_by(relation.frequencies, given, result, 1e-6)


@pytest.mark.parametrize(("theta", "base"), [(None, 10.0), (7.0, 7.0)])
def test_rope_mixed_starts_as_two_axes_at_right_angles_rotated_at_random_in_each_head(on_the_grid, theta, base):
    torch.manual_seed(0)
    model = VisionTransformer(on_the_grid(position="rope_mixed", rope_theta=theta))
    directions = set()
    for block in model.blocks:
        for head in range(3):
            one, other = (
                [complex(*pair) for pair in half.tolist()]
                for half in block.attn.relation.frequencies[:, head].T.chunk(2)
            )
            for half in (one, other):
                assert [abs(frequency) for frequency in half] == pytest.approx([1, base**-0.5])
                assert cmath.phase(half[0] / half[1]) == pytest.approx(0, abs=1e-5)
            assert cmath.phase(other[0] / one[0]) == pytest.approx(math.pi / 2, abs=1e-5)
            directions.add(round(cmath.phase(one[0]), 3))
    assert len(directions) == 6


@pytest.mark.parametrize(("row", "column", "grid"), [(29, 31, (32, 32)), (0, 257, (1, 512))])
def test_angles_of_rope_mixed_do_not_suffer_from_the_precision_of_the_model(small, noise, row, column, grid):
    image = [4 * side for side in grid]
    config = small(image_size=image, patch_size=4, dim=8, heads=1, position="rope_mixed", rope_theta=1.5)
    relation = build_relations(config)[0].bfloat16()
    relation.frequencies.data = relation.frequencies.data.sign() * 0.9  # far columns rotate by many radians
    ones = torch.ones(1, 1, config.tokens, 8, dtype=torch.bfloat16)
    rotated = relation(ones, ones)[0].float()
    (x, *_), (y, *_) = relation.frequencies[:, 0].tolist()
    expected = complex(1, 1) * cmath.exp(1j * (column * x + row * y))
    found = rotated[0, 0, 1 + grid[1] * row + column, :2].tolist()
    assert found == pytest.approx([expected.real, expected.imag], abs=0.02)


@pytest.mark.parametrize("position", ["rope", "rope_mixed"])
def test_rotated_queries_and_keys_keep_their_precision(on_the_grid, noise, position):
    relation = build_relations(on_the_grid(position=position))[0]
    low = noise(1, 3, 10, 8).bfloat16()
    assert [rotated.dtype for rotated in relation(low, low)[:2]] == [torch.bfloat16] * 2


@pytest.mark.parametrize("prefix", PREFIXES)
def test_relative_takes_the_bias_of_an_offset_from_its_table(on_the_grid, randomise, noise, prefix):
    config = on_the_grid(position="relative", **prefix)
    relation = randomise(build_relations(config)[0])
    q = noise(1, 3, config.tokens, 8)
    same_q, same_k, bias = relation(q, -q)
    assert torch.equal(same_q, q)
    assert torch.equal(same_k, -q)
    assert bias.shape == (3, config.tokens, config.tokens)
    assert relation.table.shape == (3, 5, 5)
    for head in range(3):
        for (down, right), values in by_offset(bias[head], config.prefix).items():
            assert set(values) == {relation.table[head, down + 2, right + 2].item()}
        assert_only_offsets_matter(bias[head], config.prefix)


@pytest.mark.parametrize("prefix", PREFIXES[1:])
def test_relative_has_a_bias_of_the_prefix_for_patches_of_patches_for_it_and_within_it(on_the_grid, prefix):
    config = on_the_grid(position="relative", **prefix)
    relation = build_relations(config)[0]
    relation.prefix.data = torch.arange(9.0).reshape(3, 3)
    *_, bias = relation(None, None)
    before = config.prefix
    for head in range(3):
        assert (bias[head, :before, before:] == 3 * head).all()
        assert (bias[head, before:, :before] == 3 * head + 1).all()
        assert (bias[head, :before, :before] == 3 * head + 2).all()


def test_relative_has_no_bias_for_a_prefix_that_is_not_there(on_the_grid):
    assert build_relations(on_the_grid(position="relative", **PREFIXES[0]))[0].prefix is None


@pytest.mark.parametrize(("heads", "slopes"), [(8, SLOPES_8), (12, SLOPES_12), (1, [2**-8]), (2, [2**-4, 2**-8])])
def test_slopes_of_alibi_are_those_of_the_paper(heads, slopes):
    assert alibi_slopes(heads) == pytest.approx(slopes, rel=1e-12)


@pytest.mark.parametrize("heads", range(1, 40))
def test_slopes_of_alibi_differ_from_head_to_head_and_lie_between_0_and_1(heads):
    slopes = alibi_slopes(heads)
    assert len(set(slopes)) == heads
    assert all(2**-8 <= slope < 1 for slope in slopes)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_alibi_falls_with_the_distance_between_patches_and_leaves_the_prefix_alone(on_the_grid, noise, prefix):
    config = on_the_grid(position="alibi2d", dim=64, heads=8, **prefix)
    q = noise(1, 8, config.tokens, 8)
    same_q, same_k, bias = build_relations(config)[0](q, -q)
    assert torch.equal(same_q, q)
    assert torch.equal(same_k, -q)
    assert bias.shape == (8, config.tokens, config.tokens)
    assert not bias[:, : config.prefix].any()
    assert not bias[:, :, : config.prefix].any()
    for head, slope in enumerate(SLOPES_8):
        for (down, right), values in by_offset(bias[head], config.prefix).items():
            assert values == pytest.approx([-slope * math.hypot(down, right)] * len(values), rel=1e-6)


def test_alibi_measures_distances_on_the_diagonal_as_pythagoras_did(small):
    *_, bias = build_relations(small(image_size=20, position="alibi2d", dim=64, heads=8))[0](None, None)
    assert bias[0, 1, 1 + 5 * 3 + 4].item() == -0.5 * 5
    assert bias[2, 1 + 5 * 4 + 3, 1].item() == -0.125 * 5


@pytest.mark.parametrize("position", ["relative", "rope_mixed"])
def test_learned_relations_differ_from_block_to_block(on_the_grid, position):
    first, second = build_relations(on_the_grid(position=position))
    assert not torch.equal(next(first.parameters()), next(second.parameters()))


@pytest.mark.parametrize("position", ["none", "learned", "conv", "rope", "alibi2d"])
def test_fixed_relations_are_one_in_all_blocks_and_not_saved(on_the_grid, position):
    model = VisionTransformer(on_the_grid(position=position))
    first, second = (block.attn.relation for block in model.blocks)
    assert first is second
    assert not first.state_dict()
    assert not list(first.parameters())
