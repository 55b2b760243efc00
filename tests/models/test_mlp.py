import math

import pytest
import torch
from torch import nn

from vitrine.config.model import MLPS as CHOICES
from vitrine.models import VisionTransformer
from vitrine.models.mlp import MLPS, Gelu, opaque_gelu

ACTIVATIONS = {
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: max(x, 0.0),
}


def each(function, x):
    return torch.tensor([function(one) for one in x.tolist()], dtype=torch.float64)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_an_mlp_is_two_linear_maps_with_its_activation_between(randomise, noise, kind):
    mlp = randomise(MLPS[kind](5, 12, (0.5, 0.5))).eval()
    tokens = 3 * noise(2, 3, 5)
    hidden = each(ACTIVATIONS[kind], mlp.fc1.weight @ tokens[1, 2] + mlp.fc1.bias)
    torch.testing.assert_close(mlp(tokens)[1, 2], mlp.fc2.weight @ hidden + mlp.fc2.bias, rtol=0, atol=1e-12)


@pytest.mark.whole
def test_compiled_gelu_is_pytorchs_own_in_bfloat16_on_a_cpu_and_written_by_the_compiler_elsewhere(noise):
    """A graph shows the call; outputs and gradients are equal bit by bit, as they are the same kernels'."""

    def called(dtype):
        graphs = []
        torch.compiler.reset()
        compiled = torch.compile(Gelu(), backend=lambda graph, _: graphs.append(str(graph.graph)) or graph.forward)
        x = noise(2, 3, 64).to(dtype).requires_grad_()
        same = x.detach().clone().requires_grad_()
        found, expected = compiled(x), nn.functional.gelu(same)
        found.square().sum().backward()
        expected.square().sum().backward()
        assert torch.equal(found, expected)
        assert torch.equal(x.grad, same.grad)
        assert x.grad.abs().max() > 0.1
        return "vitrine.gelu" in graphs[0]

    assert called(torch.bfloat16)
    assert not called(torch.float32)
    torch.library.opcheck(opaque_gelu, (noise(5, 7).bfloat16().requires_grad_(),))


def test_exported_gelu_is_pytorchs_operator(noise):
    x = noise(2, 3, 64).bfloat16()
    exported = str(torch.export.export(Gelu(), (x,)).graph)
    assert "aten.gelu" in exported
    assert "vitrine" not in exported


def test_swiglu_multiplies_hidden_units_by_the_silu_of_as_many_others(randomise, noise):
    mlp = randomise(MLPS["swiglu"](5, 12, (0.5, 0.5))).eval()
    tokens = 3 * noise(2, 3, 5)
    assert mlp.fc1.weight.shape == (24, 5)
    assert mlp.fc2.weight.shape == (5, 12)
    gate, values = (mlp.fc1.weight @ tokens[1, 2] + mlp.fc1.bias).split(12)
    hidden = each(lambda x: x / (1 + math.exp(-x)), gate) * values
    torch.testing.assert_close(mlp(tokens)[1, 2], mlp.fc2.weight @ hidden + mlp.fc2.bias, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", CHOICES)
def test_the_model_has_the_configured_mlp_and_hidden_width(small, kind):
    model = VisionTransformer(small(mlp=kind, mlp_ratio=1.5, pool="map"))
    for mlp in [*(block.mlp for block in model.blocks), model.attn_pool.mlp]:
        assert mlp.fc1.weight.shape == ((72 if kind == "swiglu" else 36), 24)
        assert mlp.fc2.weight.shape == (24, 36)


@pytest.mark.parametrize("kind", CHOICES)
def test_dropout_stands_after_each_of_the_two_layers(randomise, noise, kind):
    tokens = noise(1, 2000, 24)
    mlp = randomise(MLPS[kind](24, 30, (0.25, 0.25))).train()
    with torch.no_grad():
        mlp.fc2.weight.copy_(torch.eye(24, 30))  # shows the first 24 hidden units as they are
        mlp.fc2.bias.zero_()
        plain = mlp.eval()(tokens)
        torch.manual_seed(0)
        dropped = mlp.train()(tokens)
    kept = (dropped / plain)[plain.abs() > 1e-6] * 0.75**2  # what both let pass is scaled up twice
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-6)
    assert kept.round().unique().tolist() == [0, 1]
    assert kept.mean().item() == pytest.approx(0.75**2, abs=0.02)
    assert [module.p for module in mlp.modules() if isinstance(module, nn.Dropout)] == [0.25, 0.25]


@pytest.mark.parametrize("kind", CHOICES)
def test_dropout_of_hidden_units_can_be_set_apart(small, kind):
    def rates(**changes):
        model = VisionTransformer(small(mlp=kind, **changes))
        return [(block.mlp.drop1.p, block.mlp.drop2.p) for block in model.blocks]

    assert rates(mlp_dropout=0.5) == [(0.5, 0.5)] * 2
    assert rates(mlp_dropout=0.5, mlp_hidden_dropout=0.0) == [(0.0, 0.5)] * 2
    assert rates(mlp_hidden_dropout=0.25) == [(0.25, 0.0)] * 2
