"""A data set: grey images of a square, a disc or a cross, drawn anew from a seed; nothing is downloaded.

python train.py -m model=vit_nano data=examples.shapes.shapes data.options.count=600 trainer.max_epochs=3 seed=0,1,2
"""

import numpy as np

SIZE = 16


def shapes(count: int = 1200, noise: int = 60, seed: int = 0) -> dict:
    """Return ``count`` images (N, 1, 16, 16) uint8 with labels (N,), a quarter of them as the test split.

    ``noise`` is the largest grey level that is added to each pixel.
    """
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    rows, columns = np.mgrid[:SIZE, :SIZE]
    images = random.integers(0, noise + 1, (count, 1, SIZE, SIZE), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        radius, (row, column) = random.integers(3, 6), random.integers(6, SIZE - 6, 2)
        down, right = abs(rows - row), abs(columns - column)
        square, disc = np.maximum(down, right) <= radius, down**2 + right**2 <= radius**2
        cross = (np.minimum(down, right) <= 1) & square
        image[0][(square, disc, cross)[label]] = 255
    train = count * 3 // 4
    return {
        "classes": ["square", "disc", "cross"],
        "train": (images[:train], labels[:train]),
        "test": (images[train:], labels[train:]),
    }


# What the keys data.* are, unless they are typed.
shapes.config = {"image_size": SIZE, "in_channels": 1, "num_classes": 3, "patch_size": 4, "mean": [0.3], "std": [0.35]}
