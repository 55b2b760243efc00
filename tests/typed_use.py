"""Documented calls in a user's typed code; ``uv run mypy`` checks their types."""

from pathlib import Path
from typing import Any, BinaryIO, assert_type

import numpy as np
from PIL import Image
from torch import Tensor

from vitrine import compose, fit, load_run
from vitrine.inference.predictor import Prediction


def train(folder: Path) -> None:
    fit(compose(config_dir=folder), folder=folder)
    fit(compose(config_dir="conf"), folder="outputs/runs/RUN")


def predict(
    paths: list[str], path: Path, file: BinaryIO, image: Image.Image, array: np.ndarray, tensor: Tensor
) -> None:
    run = load_run("outputs/runs/RUN")
    for picture in ("7.png", path, file, image):
        assert_type(run.predict(picture), Prediction)
        assert_type(run.features(picture), Tensor)
    for one_or_batch in (array, tensor):
        assert_type(run.predict(one_or_batch), Any)  # its number of dimensions decides
    assert_type(run.predict(paths), list[Prediction])
    assert_type(run.predict(sorted(path.glob("*.png"))), list[Prediction])
    assert_type(run.predict(["7.png", path, image, tensor]), list[Prediction])
    assert_type(run.features(["7.png", path, image, tensor]), Tensor)
    assert_type(run.features(paths), Tensor)
    assert_type(run.predict([image]), list[Prediction])
    assert_type(run.predict(list(tensor)), list[Prediction])
