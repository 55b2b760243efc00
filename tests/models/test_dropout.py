import pytest
import torch

from vitrine.models.layers import Dropout, apply_dropout


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_each_value_is_zeroed_with_the_rate_and_the_mean_is_kept(rate, dtype):
    count = 1_000_001  # no multiple of four
    zeroed = apply_dropout(torch.ones(count, dtype=dtype), rate)
    assert zeroed.dtype == dtype
    (kept,) = set(zeroed.unique().tolist()) - {0.0}
    assert kept == pytest.approx(1 / (1 - rate), rel=1e-2 if dtype == torch.bfloat16 else 1e-4)
    deviation = (rate * (1 - rate) / count) ** 0.5
    for part in zeroed[: count - 1].view(-1, 4).unbind(1):  # the four that share a random number
        assert (part == 0).double().mean().item() == pytest.approx(rate, abs=8 * deviation)


def test_values_that_share_a_random_number_are_zeroed_independently():
    first, second, *_ = (apply_dropout(torch.ones(4_000_000), 0.5).view(-1, 4) == 0).double().unbind(1)
    assert (first * second).mean().item() == pytest.approx(0.25, abs=0.003)


def test_the_gradient_passes_where_the_value_did():
    x = torch.randn(5, 7, 3).transpose(0, 2).requires_grad_()  # not contiguous
    y = apply_dropout(x, 0.4)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)
    assert 0 < (y == 0).sum() < y.numel()


def test_the_seed_decides():
    def draw(seed):
        torch.manual_seed(seed)
        return apply_dropout(torch.ones(100), 0.5)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_rates_at_the_ends():
    x = torch.randn(8)
    assert apply_dropout(x, 0.0) is x
    assert apply_dropout(x, 0.999999).isfinite().all()


def test_nothing_is_zeroed_in_evaluation():
    x = torch.randn(8)
    layer = Dropout(0.5)
    assert layer.eval()(x) is x
    assert (layer.train()(torch.ones(1000)) == 0).any()
