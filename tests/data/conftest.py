from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrine.config.schema import DataConfig
from vitrine.data.datasets import Split


@pytest.fixture
def data_config(tmp_path):
    """A data configuration, with what is given changed."""

    def make(**changes):
        values = {
            "name": "digits",
            "root": str(tmp_path / "data"),
            "image_size": 8,
            "in_channels": 1,
            "num_classes": 10,
            "patch_size": 2,
            "epochs": 1,
            "mean": [0.5],
            "std": [0.5],
            "flip": False,
            "batch_size": 8,
        }
        return DataConfig(**(values | changes))

    return make


@pytest.fixture
def numbered():
    """A split of random images whose labels say which is which."""

    def make(count, channels=1, size=8):
        shape = (count, channels, size, size)
        images = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(5), dtype=torch.uint8)
        return Split(images, torch.arange(count))

    return make


@pytest.fixture
def picture():
    """Write an array as a picture."""

    def write(path, pixels):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path)
        return path

    return write


@pytest.fixture
def shared_data():
    """Real data beside the checkout, where there is some."""
    folder = Path(__file__).parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("there is no copy of the real data sets in ../shared/data")
    return folder
