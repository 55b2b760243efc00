"""Pictures of a run's test images, to be classified from files."""

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


def stored_probabilities(run: LoadedRun) -> np.ndarray:
    """Return the probabilities of predictions.npz; (N, num_classes)."""
    logits = np.load(run.record.path / "predictions.npz")["logits"].astype(np.float64)
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)
