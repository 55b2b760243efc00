import pytest
import torch

from vitrine.config.vit import ViTConfig


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
        return ViTConfig(**(sizes | changes))

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
