"""Schedule-free optimisers (arXiv:2405.15682) train at other weights than they keep: the switch between the two."""

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback


class ScheduleFreeWeights(Callback):
    """Validates and saves the average x of the weights; between, training continues at y, as the optimiser wants it.

    A checkpoint has x as its ``state_dict``, from which models are loaded, and y as ``current_model_state``, as
    checkpoints of averaged weights have. A resumed run continues from y, to the last bit.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Switch to y."""
        self._optimizer(trainer).train()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Switch to x."""
        self._optimizer(trainer).eval()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Switch to y."""
        self._optimizer(trainer).train()

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Store x in place of y, and y beside it."""
        optimizer = self._optimizer(trainer)
        current = {name: value.clone() for name, value in checkpoint["state_dict"].items()}
        optimizer.eval()
        checkpoint["state_dict"] = {name: value.clone() for name, value in pl_module.state_dict().items()}
        optimizer.train()
        pl_module.load_state_dict(current)  # there and back, y would be rounded twice
        checkpoint["current_model_state"] = current

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore y."""
        pl_module.load_state_dict(checkpoint["current_model_state"])

    @staticmethod
    def _optimizer(trainer: pl.Trainer) -> Any:
        return trainer.optimizers[0]
