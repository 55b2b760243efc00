import math
from functools import partial

import pytest
import torch
from torch import nn

from vitrine.models import VisionTransformer
from vitrine.models.pos_embed import sincos2d


def some_tokens():
    return torch.randn(3, 17, 24, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def blocks_on_the_diagonal(heads, tensors):
    """Weights, or gradients, of joint attention that headwise attention has too, in its shapes."""
    kept = {}
    for name, value in tensors.items():
        if name.endswith("attn.qkv.weight"):
            squares = value.unflatten(1, (heads, -1)).unflatten(0, (3, heads, -1))  # map, head, output, head, input
            value = torch.stack([squares[:, head, :, head] for head in range(heads)], dim=1)
        elif name.endswith("attn.qkv.bias"):
            value = value.unflatten(0, (3, heads, -1))
        if not name.endswith(("attn.proj.weight", "attn.proj.bias")):
            kept[name] = value
    return kept


@pytest.mark.parametrize("qkv_bias", [True, False])
def test_headwise_attention_is_joint_attention_with_block_diagonal_maps_and_no_projection(
    small, randomise, images_for, assert_same, qkv_bias
):
    config = small(qkv_bias=qkv_bias)
    joint = randomise(VisionTransformer(config))
    headwise = VisionTransformer(small(qkv_bias=qkv_bias, attention="headwise", out_projection=False)).double()
    diagonal = torch.block_diag(*[torch.ones(8, 8, dtype=torch.float64)] * 3)
    for block in joint.blocks:
        block.attn.qkv.weight.data *= diagonal.repeat(3, 1)
        block.attn.proj.weight.data = torch.eye(24, dtype=torch.float64)
        block.attn.proj.bias.data.zero_()
    kept = partial(blocks_on_the_diagonal, config.heads)
    headwise.load_state_dict(kept(joint.state_dict()))
    assert_same(joint, headwise, images_for(config), kept)


class Written(nn.Module):
    """The maps of an attention of ours, with what happens between them to be written out."""

    def __init__(self, attention):
        super().__init__()
        for name, module in attention.named_children():
            self.add_module(name, module)
        for name, parameter in attention.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        self.heads = attention.heads


class WrittenHeadwise(Written):
    def forward(self, tokens):
        width = tokens.shape[2] // self.heads
        images = []
        for image in tokens:
            outputs = []
            for head in range(self.heads):
                x = image[:, head * width : (head + 1) * width]
                q, k, v = (x @ self.qkv.weight[i, head].T + self.qkv.bias[i, head] for i in range(3))
                outputs.append((q @ k.T / math.sqrt(width)).softmax(dim=1) @ v)
            images.append(torch.cat(outputs, dim=1))
        return torch.stack(images)


class WrittenLocal(Written):
    def forward(self, tokens):
        q, k, v = self.qkv(tokens).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, bias = self.relation(q, k)
        outputs = []
        for head in range(self.heads):
            rows = []
            for i in range(tokens.shape[1]):
                scores = torch.einsum("bc,bnc->bn", q[:, head, i], k[:, head]) * self.temperature[head]
                scores = scores if bias is None else scores + bias[head, i]
                scores[:, i] = -math.inf
                rows.append(torch.einsum("bn,bnc->bc", scores.softmax(dim=1), v[:, head]))
            outputs.append(torch.stack(rows, dim=1))
        return self.proj(torch.cat(outputs, dim=2))


@pytest.mark.parametrize("kernel", ["sdpa", "explicit"])
@pytest.mark.parametrize(
    ("written", "choices"),
    [
        (WrittenHeadwise, {"attention": "headwise", "out_projection": False}),
        (WrittenLocal, {"attention": "local"}),
        (WrittenLocal, {"attention": "local", "position": "relative"}),
        (WrittenLocal, {"attention": "local", "position": "rope_mixed"}),
    ],
)
def test_attention_is_what_its_formula_says(small, randomise, assert_same, written, choices, kernel):
    attention = randomise(VisionTransformer(small(attention_kernel=kernel, **choices))).blocks[0].attn
    assert_same(attention, written(attention), some_tokens())


def test_local_attention_starts_as_sharp_as_joint_attention_and_differs_from_it(small, randomise):
    model = VisionTransformer(small(attention="local"))
    for block in model.blocks:
        assert block.attn.temperature.tolist() == pytest.approx([1 / math.sqrt(8)] * 3)
    local, joint = (randomise(VisionTransformer(small(attention=kind))).blocks[0].attn for kind in ("local", "joint"))
    joint.load_state_dict({name: value for name, value in local.state_dict().items() if name != "temperature"})
    local.temperature.data.fill_(1 / math.sqrt(8))
    assert (local(some_tokens()) - joint(some_tokens())).abs().max() > 1e-3


@pytest.mark.parametrize(("grid", "dim"), [(3, 8), (5, 24), (14, 64)])
def test_sincos2d_of_big_vision_is_its_published_formula_and_that_of_moco_is_not(small, grid, dim):
    choices = {"image_size": 4 * grid, "dim": dim, "heads": 1, "class_token": False, "pool": "mean"}
    quarter = dim // 4
    rates = [10_000 ** (-k / (quarter - 1)) for k in range(quarter)]
    expected = [
        [wave(place * rate) for place in (column, row) for wave in (math.sin, math.cos) for rate in rates]
        for row in range(grid)
        for column in range(grid)
    ]
    table = sincos2d(small(**choices, position="sincos2d", sincos_frequencies="big_vision"))
    torch.testing.assert_close(table, torch.tensor([expected]), rtol=0, atol=1e-6)
    other = sincos2d(small(**choices, position="sincos2d", sincos_frequencies="moco_v3"))
    assert (table - other).abs().max() > 1e-2
