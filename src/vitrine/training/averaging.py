"""An average over the weights of the steps, kept beside the model and validated, tested and saved in its place."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor


class ExponentialMovingAverage(WeightAveraging):
    """Lightning's average over weights, exponential, and of no wait for the device.

    Lightning makes its copy of the model before the model is moved to its device, and would bring every weight back to
    the CPU after every step. Here the copy is where the training is, and only the count of steps is on the CPU.

    Args:
        decay: what the average keeps of itself in a step, in (0, 1). It rises to that as (1 + n) / (10 + n) with the
            steps n before, as in TensorFlow's ExponentialMovingAverage, so that a short run's average is not mostly
            its initial weights.
    """

    def __init__(self, decay: float) -> None:
        super().__init__(multi_avg_fn=self._take_in)
        self.decay = decay

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Copy the model to where it will be trained."""
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)
        if (average := self._average_model) is not None:
            average.n_averaged = torch.zeros_like(average.n_averaged, device="cpu")

    @torch.no_grad()
    def _take_in(self, averages: list[Tensor], currents: list[Tensor], _: Tensor | int) -> None:
        """Change ``averages``, all of one dtype, by a step; counts, as batch normalisation has one, are copied."""
        if not averages[0].is_floating_point():
            torch._foreach_copy_(averages, currents)
            return
        assert self._average_model is not None
        before = int(self._average_model.n_averaged)
        torch._foreach_lerp_(averages, currents, 1 - min(self.decay, (1 + before) / (10 + before)))
