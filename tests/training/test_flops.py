"""The FLOPs of a model are counted right."""

from dataclasses import replace

import pytest
import torch
from helpers.published import PUBLISHED

from vitrine.config import ViTConfig
from vitrine.training.flops import flops_per_image

SIZES = {"image_size": 8, "patch_size": 2, "in_channels": 3, "num_classes": 10, "dim": 16, "depth": 2, "heads": 4}
SMALL = ViTConfig(**SIZES, mlp_ratio=2.0, **PUBLISHED)


def manual(tokens, read=None):
    """FLOPs of a block of ``SMALL`` on that many tokens, of which the outputs of ``read`` are computed."""
    width, hidden = 16, 32
    read = tokens if read is None else read
    values = 2 * tokens * width * 3 * width
    attention = 2 * read * tokens * width * 2
    return values + attention + 2 * read * width * width + 2 * read * width * hidden * 2


EMBED = 2 * 16 * (2 * 2 * 3) * 16  # of every patch
HEAD = 2 * 16 * 10


def test_flops_of_a_small_model_equal_a_manual_count():
    mean = replace(SMALL, pool="mean")
    assert flops_per_image(mean) == EMBED + 2 * manual(17) + HEAD
    assert flops_per_image(SMALL) == EMBED + manual(17) + manual(17, read=1) + HEAD


def test_flops_of_vit_base_equal_the_published_count():
    """17.5 G multiply-adds (arXiv:2106.04560, table 2, gives 35.1 GFLOPs), if the last block computes all tokens."""
    config = ViTConfig(224, 16, 3, 1000, dim=768, depth=12, heads=12, **PUBLISHED | {"pool": "mean"})
    assert flops_per_image(config) / 1e9 == pytest.approx(35.1, abs=0.05)


def test_flops_of_training_are_those_of_the_patches_that_are_kept():
    some = replace(SMALL, patch_dropout=0.25)
    assert flops_per_image(some) == flops_per_image(some, training=False) == flops_per_image(SMALL)
    kept = 13  # the class token, and 12 patches of 16
    assert flops_per_image(some, training=True) == EMBED + manual(kept) + manual(kept, read=1) + HEAD


@pytest.mark.parametrize("kernel", ["auto", "sdpa", "explicit"])
def test_the_count_does_not_depend_on_how_attention_is_computed(kernel):
    assert flops_per_image(replace(SMALL, attention_kernel=kernel)) == flops_per_image(SMALL)


def test_counting_draws_no_random_number():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    flops_per_image(replace(SMALL, position="learned", mlp_dropout=0.1))
    assert torch.equal(torch.rand(4), expected)
