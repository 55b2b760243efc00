"""What a model has learned, against models whose answer is known."""

import numpy as np
import pytest
import torch

from vitrine.config.model import ViTConfig
from vitrine.errors import RunError
from vitrine.explain.learned_sections import position_section
from vitrine.models import VisionTransformer
from vitrine.models.learned import (
    attention_distances,
    offset_scores,
    patch_filters,
    position_similarities,
    similarities,
)

SIZES = {"image_size": 12, "patch_size": 4, "in_channels": 3, "num_classes": 5, "dim": 48, "depth": 2, "heads": 3}


def model(**choices) -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(ViTConfig(**(SIZES | choices))).eval()


@pytest.mark.parametrize("embedding", ["conv", "linear", "shifted"])
def test_filters_are_found_among_the_channels_that_repeat_them(embedding):
    """Three filters, in channels with weights of decreasing size, are the components, in this order."""
    made = model(patch_embed=embedding)
    filters, _ = torch.linalg.qr(torch.randn(48, 3))
    sizes = torch.tensor([3.0, 2.0, 1.0])
    mixed, _ = torch.linalg.qr(torch.cat([torch.ones(48, 1), torch.randn(48, 3)], dim=1))
    weights = (mixed[:, 1:] * sizes) @ filters.T  # channels whose mean is zero
    with torch.no_grad():
        proj = made.patch_embed.proj.weight.flatten(1)
        made.patch_embed.proj.weight.copy_(
            torch.cat([weights, proj[:, 48:]], dim=1).view_as(made.patch_embed.proj.weight)
        )
    components, shares = patch_filters(made, 3)
    assert components.shape == (3, 3, 4, 4)
    assert (components.flatten(1) @ filters).abs() == pytest.approx(torch.eye(3), abs=1e-5)
    assert shares == pytest.approx(sizes.square() / 14, abs=1e-5)
    assert all(values[values.abs().argmax()] > 0 for values in components.flatten(1))


def test_a_convolutional_stem_has_no_filters_of_a_patch():
    assert patch_filters(model(patch_embed="conv_stem")) is None


@pytest.mark.parametrize("scheme", ["learned", "learned2d", "sincos1d", "sincos2d"])
@pytest.mark.parametrize("registers", [0, 2])
def test_positions_are_most_like_themselves(scheme, registers):
    found = position_similarities(model(position=scheme, registers=registers))
    assert found.shape == (9, 9)
    assert found.diagonal() == pytest.approx(torch.ones(9), abs=1e-5)
    assert (found <= 1 + 1e-5).all()


def test_positions_of_more_patches_than_fit_into_memory_are_not_compared():
    made = model(position="sincos2d", image_size=91, patch_size=1)
    problem = "it has 8281 patches, and positions of at most 8192 are compared"
    with pytest.raises(RunError, match=problem):
        position_similarities(made)
    section = position_section(made)
    assert section.text.endswith(f"There is no figure of their similarities: {problem}.")
    assert [one.key for one in section.figures] == ["position_table"]


@pytest.mark.parametrize("scheme", ["none", "conv", "rope", "relative", "alibi2d", "rope_mixed"])
def test_schemes_without_a_table_have_no_similarities(scheme):
    assert position_similarities(model(position=scheme)) is None


@pytest.mark.parametrize("scheme", ["relative", "alibi2d"])
def test_a_bias_by_offset_is_that_of_attention(scheme):
    made = model(position=scheme, class_token=True)
    found = offset_scores(made)
    relation = made.blocks[-1].attn.relation
    _, _, bias = relation(torch.zeros(1, 3, 10, 16), torch.zeros(1, 3, 10, 16))
    for query in range(9):
        for key in range(9):
            down, right = query // 3 - key // 3, query % 3 - key % 3
            assert found[-1, :, 2 + down, 2 + right] == pytest.approx(bias[:, 1 + query, 1 + key].detach(), abs=1e-6)


@pytest.mark.parametrize("scheme", ["rope", "rope_mixed"])
def test_a_rotation_by_offset_is_the_score_of_equal_contents(scheme):
    """With all pairs of channels of length 1, the score of a query and a key, relative to that at no offset."""
    made = model(position=scheme)
    found = offset_scores(made)
    equal = torch.tensor([1.0, 0.0]).repeat(8).expand(1, 3, 9, 16)
    q, k, _ = made.blocks[-1].attn.relation(equal, equal)
    scores = (q @ k.transpose(-2, -1))[0].detach() / 8
    for query in range(9):
        for key in range(9):
            down, right = query // 3 - key // 3, query % 3 - key % 3
            expected = found[-1, :, 2 + down, 2 + right].expand(3)
            assert scores[:, query, key] == pytest.approx(expected, abs=1e-5)


def test_other_schemes_have_no_scores_by_offset():
    assert offset_scores(model(position="learned")) is None


def test_the_distance_of_attention_to_itself_is_zero_and_of_a_neighbour_one_patch():
    weights = torch.eye(6)[None].repeat(2, 1, 1)
    weights[1] = torch.eye(6)[[1, 0, 3, 2, 5, 4]]  # in a grid of 3 x 2: the patch beside
    assert attention_distances(weights, (3, 2), stride=4).tolist() == [0, 4]


def test_the_distance_of_uniform_attention_is_the_mean_distance():
    places = np.stack(np.meshgrid(range(4), range(4), indexing="ij"), axis=-1).reshape(-1, 2)
    expected = np.linalg.norm(places[:, None] - places, axis=-1).mean()
    assert float(attention_distances(torch.full((16, 16), 1 / 16), (4, 4))) == pytest.approx(expected)


def test_attention_to_prefix_tokens_does_not_shorten_distances():
    weights = torch.zeros(5, 5)
    weights[:, 0] = 0.9  # the class token
    weights[1:, 1:] = 0.1 * torch.eye(4)[[1, 0, 3, 2]]
    assert float(attention_distances(weights, (2, 2))) == pytest.approx(1)


def test_similarities_are_cosines():
    found = similarities(torch.tensor([[1.0, 0.0], [3.0, 3.0], [-2.0, 0.0], [0.0, 0.0]]))
    assert found[0] == pytest.approx(torch.tensor([1, 0.5**0.5, -1, 0]))
