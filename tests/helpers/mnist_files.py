"""Small data sets in MNIST's file format."""

import struct
from pathlib import Path

import numpy as np


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write MNIST's format: two zero bytes, type, number of dimensions, each dimension, values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def write_fashion_mnist(root: Path) -> Path:
    """Write a Fashion-MNIST of four training and two test images; return its raw folder."""
    raw = root / "FashionMNIST" / "raw"
    random = np.random.default_rng(0)
    for split, count in (("train", 4), ("t10k", 2)):
        write_idx(raw / f"{split}-images-idx3-ubyte", random.integers(0, 256, (count, 28, 28)))
        write_idx(raw / f"{split}-labels-idx1-ubyte", np.arange(count) + 5)
    return raw
