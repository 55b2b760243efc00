"""The test images of a run, for the pictures of its page."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from vitrine.compare.load import RunResult
from vitrine.data.image_dataset import Split
from vitrine.errors import DataError
from vitrine.inference.load import LoadedRun
from vitrine.inference.run_data import test_images


@dataclass(frozen=True)
class RunImages:
    """The test images of a run, read when they are first asked for.

    Attributes:
        result: the run with its stored predictions.
        run: the same run.
        data_root: folder of its data; ``None`` is where it was in training.
    """

    result: RunResult
    run: LoadedRun
    data_root: str | None = None

    @cached_property
    def split(self) -> Split:
        """The test images.

        Raises:
            DataError: they are missing or damaged, or their labels are not those of the stored predictions.
            ConfigError: :attr:`data_root` is given, but the data is read from no folder.
            RunError: they have changed since the training.
        """
        split = test_images(self.run, self.data_root)
        if self.result.labels_hash and not np.array_equal(split.first_labels.numpy(), self.result.labels):
            raise DataError("the data set has other test images than the run was tested on")
        return split

    def pixels(self, indices: Sequence[int]) -> np.ndarray:
        """Return images as the model sees them before normalisation, (B, C, H, W) uint8; raises as :attr:`split`."""
        ((images, _),) = self.split.batches([torch.tensor(list(indices))])
        return images.numpy()
