"""Averages of the weights, validated, tested and saved in the model's place: an exponential one, and the user's own."""

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, WeightAveraging
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor


class ExponentialMovingAverage(WeightAveraging):
    """Lightning's weight averaging as an EMA that never waits for the device.

    Lightning copies the model before it is moved to its device, and would then move every weight to the CPU after
    every step. Here the copy is on the training device; only the number of steps is on the CPU.

    Averages what a checkpoint contains: weights and running statistics, but no constant buffers. Integer counters, such
    as batch normalisation's, are copied.

    Args:
        decay: weight of the old average in a step, in (0, 1). Starts lower and rises as (1 + n) / (10 + n) with the
            number of steps n, as in TensorFlow's ExponentialMovingAverage, so that the average of a short run is not
            mostly its initial weights.
    """

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Copy the model to the training device."""
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)
        if (average := self._average_model) is not None:
            average.n_averaged = torch.zeros_like(average.n_averaged, device="cpu")

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Collect the tensors to average: they stay in place during training, but a loss may replace its own."""
        self._collect_pairs(pl_module)

    def _collect_pairs(self, pl_module: pl.LightningModule) -> None:
        """Pair the tensors of the average and of the model; those with several names, as tied weights, are one pair."""
        assert self._average_model is not None
        modules = (self._average_model.module, pl_module)
        states = [module.state_dict(keep_vars=True) for module in modules]
        pairs = {id(one): (one.detach(), other.detach()) for one, other in zip(*map(dict.values, states), strict=True)}
        self._of_loss = _buffers_of_loss(pl_module)
        self._floats: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._integers: tuple[list[Tensor], list[Tensor]] = ([], [])
        for pair in pairs.values():
            kind = self._floats if pair[0].is_floating_point() or pair[0].is_complex() else self._integers
            for tensors, tensor in zip(kind, pair, strict=True):
                tensors.append(tensor)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: STEP_OUTPUT, batch: Any, batch_idx: int
    ) -> None:
        """Update the average after a step; the first step is copied."""
        average = self._average_model
        assert average is not None
        if [*map(id, self._of_loss)] != [*map(id, _buffers_of_loss(pl_module))]:
            self._collect_pairs(pl_module)
        before = int(average.n_averaged)
        rate = 1 - min(self.decay, (1 + before) / (10 + before)) if before else 1.0
        torch._foreach_lerp_(*self._floats, rate)
        if self._integers[0]:
            torch._foreach_copy_(*self._integers)
        average.n_averaged += 1


def _buffers_of_loss(pl_module: pl.LightningModule) -> list[Tensor]:
    """Return the buffers of the training loss, which a loss of the user's may replace by others."""
    loss = getattr(pl_module, "training_criterion", None)
    return list(loss.buffers()) if isinstance(loss, torch.nn.Module) else []


class AverageBeforeValidation(Callback):
    """Lets validation measure what the epoch's checkpoint holds, with a user's subclass of Lightning's WeightAveraging.

    Lightning updates an average of epochs after their validation. Here it is updated before; and until the first update
    it is the current weights, not the initial ones.
    """

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Update the averages that are due at the end of the epoch, when Lightning will not do so again."""
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, WeightAveraging):
                WeightAveraging.on_train_epoch_end(callback, trainer, pl_module)
                callback._latest_update_epoch = trainer.current_epoch  # or Lightning would ask again after a no
                average = callback._average_model
                if average is not None and average.n_averaged == 0:
                    average.module.load_state_dict(pl_module.state_dict())
