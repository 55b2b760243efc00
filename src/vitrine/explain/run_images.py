"""The images of a run that its page shows, and what the model predicts for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from vitrine.compare.load import RunResult
from vitrine.compare.predictions import Predictions
from vitrine.data.decode import ImageFile, ImageFiles
from vitrine.data.image_dataset import Split
from vitrine.errors import DataError
from vitrine.inference.load import LoadedRun
from vitrine.inference.predictor import Predictor
from vitrine.inference.run_data import DATA_ROOT, test_images, validation_images


@dataclass(frozen=True)
class RunImages:
    """The test images of a run, or, if its data has none, its validation images; read when they are first asked for.

    Attributes:
        result: the run with its stored predictions.
        run: the same run.
        data_root: folder of its data; ``None`` is where it was in training.
    """

    result: RunResult
    run: LoadedRun
    data_root: str | None = None

    @property
    def stage(self) -> str:
        """``test``, or ``val`` where the data has no test images."""
        images = self.result.facts.get("images") or {}
        return "val" if images.get("test") == 0 and images.get("val") else "test"

    @property
    def kind(self) -> str:
        """What one of them is called."""
        return {"test": "test image", "val": "validation image"}[self.stage]

    @property
    def outputs(self) -> int:
        """Number of the logits of :meth:`predictions`; raises as it does."""
        return int(self.result.logits.shape[1]) if self.stage == "test" else self.run.config.model.num_classes

    @cached_property
    def split(self) -> Split:
        """The images.

        Raises:
            DataError: they are missing or damaged, or their labels are not those of the stored predictions.
            ConfigError: :attr:`data_root` is given, but the data is read from no folder.
            RunError: they have changed since the training.
        """
        if self.stage == "val":
            return validation_images(self.run, self.data_root, advice=DATA_ROOT)[0]
        split = test_images(self.run, self.data_root)
        if self.result.labels_hash and not np.array_equal(split.first_labels.numpy(), self.result.labels):
            raise DataError("the data set has other test images than the run was tested on")
        return split

    def pixels(self, indices: Sequence[int]) -> np.ndarray:
        """Return images as the model sees them before normalisation, (B, C, H, W) uint8; raises as :attr:`split`."""
        ((images, _),) = self.split.batches([torch.tensor(list(indices))])
        return images.numpy()

    def files(self, indices: Sequence[int]) -> list[ImageFile]:
        """Return the files of images, from ``data.root`` where they are in it; of arrays, none.

        Raises as :attr:`split`.
        """
        stored = self.split.stored
        if not isinstance(stored, ImageFiles):
            return []
        root = Path(self.data_root or self.run.config.data.root)
        folder = root.parent if root.is_file() else root  # of a CSV file
        files = [stored.paths[index] for index in indices]
        return [
            file.relative_to(folder) if isinstance(file, Path) and file.is_relative_to(folder) else file
            for file in files
        ]

    def predictions(self) -> Predictions:
        """Return what the model predicts for the images: as stored for test images, else computed.

        Raises:
            RunError: the stored predictions or the checkpoint cannot be read, or the images have changed.
            DataError: as of :attr:`split`.
        """
        if self.stage == "test":
            return Predictions.of(self.result)
        predictor = Predictor(self.run.model, self.run.config, "auto", self.run.transform)
        with predictor.hardware.set_up():
            logits = predictor.logits_of(self.split)
        return Predictions.from_logits(logits.numpy(), self.split.first_labels.numpy(), self.run.record.path)
