import pytest
import torch

from vitrine.models import VisionTransformer, attended_patches, rollout, rollout_problem
from vitrine.models.pool import POOLS


def test_rollout_of_two_layers_is_the_papers_product_written_out():
    first = torch.tensor([[[0.2, 0.8], [0.6, 0.4]], [[0.4, 0.6], [1.0, 0.0]]], dtype=torch.float64)  # two heads
    second = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]], dtype=torch.float64)
    mixed_first = torch.tensor([[0.65, 0.35], [0.4, 0.6]], dtype=torch.float64)  # (mean over heads + identity) / 2
    mixed_second = torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64)
    maps = torch.stack([first, second]).unsqueeze(0)
    torch.testing.assert_close(rollout(maps)[0], mixed_second @ mixed_first)
    without = second.mean(dim=0) @ first.mean(dim=0)
    torch.testing.assert_close(rollout(maps, residual=False)[0], without)


def test_rows_add_up_to_one_through_any_number_of_layers():
    maps = torch.rand(2, 5, 3, 7, 7, dtype=torch.float64).softmax(dim=-1)
    torch.testing.assert_close(rollout(maps).sum(dim=-1), torch.ones(2, 7, dtype=torch.float64))


@pytest.mark.parametrize("pool", ["cls", "mean", "map"])
def test_a_model_that_looks_at_one_patch_only_is_seen_to(small, pool):
    """Every query is the same and only one patch's key agrees with it, so all attention lands there."""
    config = small(pool=pool, depth=1, heads=1, position="none", qkv_bias=True, registers=1)
    model = VisionTransformer(config).eval()
    row, column = 2, 1
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.patch_embed.proj.weight[0].fill_(1.0)  # channel 0 of a token is the sum of its patch
        model.blocks[0].norm1.weight.fill_(1.0)
        model.blocks[0].attn.qkv.bias[0] = 50.0  # queries
        model.blocks[0].attn.qkv.weight[config.dim, 0] = 1.0  # keys
        model.norm.weight.fill_(1.0)
        if pool == "map":
            model.attn_pool.q.bias[0] = 50.0
            model.attn_pool.kv.weight[0, 0] = 1.0
    image = torch.zeros(1, 3, 16, 16)
    image[..., 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 1.0
    seen = attended_patches(model, image)
    assert seen.shape == (1, 4, 4)
    assert seen.sum().item() == pytest.approx(1)
    assert seen.flatten().argmax().item() == 4 * row + column
    assert seen[0, row, column] > 0.5


def test_what_is_attended_patches_is_the_rollouts_row_of_what_the_head_reads(small, randomise):
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    for pool, read in (("cls", lambda rolled: rolled[:, 0]), ("mean", lambda rolled: rolled[:, 3:].mean(dim=1))):
        model = randomise(VisionTransformer(small(pool=pool, registers=2, class_token=True)))
        expected = read(rollout(model.attention_maps(images)))[:, 3:]
        expected = expected / expected.sum(dim=1, keepdim=True)
        torch.testing.assert_close(attended_patches(model, images).flatten(1), expected)


def test_a_class_that_extends_the_model_has_no_rollout_as_it_may_compute_otherwise(small):
    model = type("Changed", (VisionTransformer,), {})(small())
    assert rollout_problem(model) == "the model is not a Vision Transformer of vitrine's"


def test_a_pool_that_rollout_does_not_know_is_a_problem_and_not_an_error(small, monkeypatch):
    monkeypatch.setitem(POOLS, "new", POOLS["mean"])
    model = VisionTransformer(small())
    model.config.pool = "new"
    assert rollout_problem(model) == "pool=new does not show which tokens it reads"
