"""An average over the weights of the steps, kept beside the model and validated, tested and saved in its place."""

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor


class ExponentialMovingAverage(WeightAveraging):
    """Lightning's average over weights, exponential, and of no wait for the device.

    Lightning makes its copy of the model before the model is moved to its device, and would bring every weight back to
    the CPU after every step. Here the copy is where the training is, and only the count of steps is on the CPU.

    Averaged is what a checkpoint holds: weights and running statistics, not tables that never change. Counts, as batch
    normalisation has one, are copied.

    Args:
        decay: what the average keeps of itself in a step, in (0, 1). It rises to that as (1 + n) / (10 + n) with the
            steps n before, as in TensorFlow's ExponentialMovingAverage, so that a short run's average is not mostly
            its initial weights.
    """

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Copy the model to where it will be trained."""
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)
        if (average := self._average_model) is not None:
            average.n_averaged = torch.zeros_like(average.n_averaged, device="cpu")

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find, once, what is averaged and from what: tensors that stay where they are."""
        assert self._average_model is not None
        pairs = zip(self._average_model.module.state_dict().values(), pl_module.state_dict().values(), strict=True)
        self._fractional: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._whole: tuple[list[Tensor], list[Tensor]] = ([], [])
        for pair in pairs:
            kind = self._fractional if pair[0].is_floating_point() else self._whole
            for tensors, tensor in zip(kind, pair, strict=True):
                tensors.append(tensor)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: STEP_OUTPUT, batch: Any, batch_idx: int
    ) -> None:
        """Change the average by a step; the first one is copied."""
        average = self._average_model
        assert average is not None
        before = int(average.n_averaged)
        rate = 1 - min(self.decay, (1 + before) / (10 + before)) if before else 1.0
        torch._foreach_lerp_(*self._fractional, rate)
        if self._whole[0]:
            torch._foreach_copy_(*self._whole)
        average.n_averaged += 1
