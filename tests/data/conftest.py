import numpy as np
import pytest
import torch
from PIL import Image

from vitrine.config.schema import DataConfig
from vitrine.data.image_dataset import Split


@pytest.fixture
def data_config(tmp_path):
    """Build a DataConfig from defaults and the given changes."""

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
    """Build a split of random images whose labels number them."""

    def make(count, channels=1, size=8):
        shape = (count, channels, size, size)
        images = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(5), dtype=torch.uint8)
        return Split(images, torch.arange(count))

    return make


@pytest.fixture
def image_file():
    """Write an array to an image file."""

    def write(path, pixels):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path)
        return path

    return write
