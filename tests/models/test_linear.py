import math

import pytest
import torch
from scipy.stats import kstest

from vitrine.models.layers import HeadwiseLinear, PackedLinear


@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_map_is_its_maps_side_by_side(noise, bias):
    packed = PackedLinear(5, 4, maps=3, bias=bias).double()
    x = noise(2, 5)
    assert (packed.bias is not None) == bias
    for index, part in enumerate(packed(x).split(4, dim=1)):
        rows = slice(4 * index, 4 * index + 4)
        expected = x @ packed.weight[rows].T + (packed.bias[rows] if bias else 0)
        torch.testing.assert_close(part, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_a_headwise_map_gives_each_head_what_its_own_channels_say(noise, bias):
    headwise = HeadwiseLinear(12, heads=3, maps=2, bias=bias).double()
    x = noise(2, 5, 12)
    made = headwise(x)
    assert made.shape == (2, 2, 3, 5, 4)
    assert (headwise.bias is not None) == bias
    for index in range(2):
        for head in range(3):
            own = x[..., 4 * head : 4 * head + 4]
            expected = own @ headwise.weight[index, head].T + (headwise.bias[index, head] if bias else 0)
            torch.testing.assert_close(made[index, :, head], expected, rtol=0, atol=1e-12)


def test_a_headwise_map_starts_as_pytorch_starts_a_linear_map_of_that_width():
    torch.manual_seed(0)
    headwise = HeadwiseLinear(400, heads=20, maps=3)
    bound = 1 / math.sqrt(20)
    for parameter in (headwise.weight, headwise.bias):
        assert parameter.abs().max() <= bound
        values = parameter.detach().flatten().numpy()
        assert kstest(values, "uniform", args=(-bound, 2 * bound)).pvalue > 1e-3
