import pytest
import torch
from helpers.published import PUBLISHED

from vitrine.config.model import ViTConfig


@pytest.fixture(autouse=True)
def one_thread():
    """Models this small take longer to share out than to compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def small():
    """A small configuration, with what is given changed."""

    def make(**changes):
        sizes = {
            "image_size": 16,
            "patch_size": 4,
            "in_channels": 3,
            "num_classes": 7,
            "dim": 24,
            "depth": 2,
            "heads": 3,
        }
        return ViTConfig(**(sizes | PUBLISHED | changes))

    return make


@pytest.fixture
def randomise():
    """Give every parameter a value that shows where it is used: gains near 1, everything else away from 0."""

    def fill(model):
        generator = torch.Generator().manual_seed(1)
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            is_gain = "norm" in name and name.endswith("weight")
            parameter.data = 1 + 0.1 * noise if is_gain else 0.15 * noise
        return model.double()

    return fill


@pytest.fixture
def assert_same():
    """Check that two modules give the same and learn the same: outputs, and gradients of a fixed weighted sum of them.

    ``translate`` turns a dict of the first module's gradients, by name, into the names and shapes of the second.
    Gradients that are called ``in_float32`` by the second are sums in float32, whatever the modules are in.
    """

    def learn(module, inputs):
        inputs = inputs.clone().requires_grad_()
        outputs = module(inputs)
        weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(3), dtype=outputs.dtype)
        wanted = {"inputs": inputs} | dict(module.named_parameters())
        gradients = torch.autograd.grad((outputs * weights).sum(), list(wanted.values()))
        return outputs.detach(), dict(zip(wanted, gradients, strict=True))

    def check(ours, theirs, inputs, translate=dict, in_float32=()):
        outputs, gradients = learn(ours, inputs)
        expected, others = learn(theirs, inputs)
        assert outputs.dtype == torch.float64
        assert outputs.abs().max() > 0.1
        torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-9)
        gradients = translate(gradients)
        assert gradients.keys() == others.keys()
        for name, gradient in gradients.items():
            assert gradient.abs().max() > 0, name
            error = 1e-6 if name in in_float32 else 1e-9
            torch.testing.assert_close(gradient, others[name], rtol=0, atol=error, msg=lambda m, n=name: f"{n}: {m}")

    return check


@pytest.fixture
def images_for():
    """Random images of the sizes that a configuration asks for."""

    def make(config, count=3):
        shape = (count, config.in_channels, *config.image_hw)
        return torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    return make


@pytest.fixture
def noise():
    """Random numbers, float64; the same for the same shape and seed."""

    def make(*shape, seed=5):
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    return make
