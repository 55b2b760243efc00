"""Pictures to be classified from files: those of a run's test images, and two that Pillow cannot write."""

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from vitrine.data.datasets import load_dataset
from vitrine.inference.load import LoadedRun


def write_test_images(run: LoadedRun, folder: Path, most: int | None = None) -> list[Path]:
    """Write the first ``most`` test images of a run's data set as PNG files, at their size before any resizing."""
    config = run.config.data
    native = {"digits": 8, "mnist": 28, "fashion_mnist": 28}.get(config.name, 32)
    config.image_size, size = native, config.image_size
    split = load_dataset(config, folder.with_name("cache")).test
    config.image_size = size
    paths = []
    for index in range(len(split) if most is None else min(most, len(split))):
        label = run.classes[int(split.labels[index])]
        path = folder / label / f"{index:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(split.images[index].permute(1, 2, 0).squeeze(2).numpy()).save(path)
        paths.append(path)
    return paths


def colours_of_16_bits() -> bytes:
    """Return a PNG file, 1 x 4 pixels, all channels of which are 1600 of 65535; Pillow cannot write such a picture."""
    rows = b"\0" + np.full((4, 3), 1600, ">u2").tobytes()
    head = struct.pack(">IIBBBBB", 4, 1, 16, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
        content += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return content


def bitmap_of_16_bits() -> bytes:
    """Return a BMP file, 8 x 8 black pixels of 16 bits for all three channels together; Pillow cannot write one."""
    pixels, masks = bytes(128), struct.pack("<III", 0xF800, 0x7E0, 0x1F)
    head = struct.pack("<IiiHHIIiiII", 40, 8, 8, 1, 16, 3, len(pixels), 0, 0, 0, 0) + masks
    return b"BM" + struct.pack("<IHHI", 14 + len(head) + len(pixels), 0, 0, 14 + len(head)) + head + pixels


def stored_probabilities(run: LoadedRun) -> np.ndarray:
    """Return the probabilities of predictions.npz; (N, num_classes)."""
    logits = np.load(run.record.path / "predictions.npz")["logits"].astype(np.float64)
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)
