"""A callback: logs the norm of all gradients, before they are clipped, in metrics.csv and wherever else metrics go.

python train.py -m model=vit_nano callbacks=[default,examples.gradient_norm.GradientNorm] seed=0,1,2
"""

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch.optim import Optimizer


class GradientNorm(Callback):
    """Logs ``train/gradient_norm``.

    Args:
        every: steps between two measurements.
    """

    def __init__(self, every: int = 20) -> None:
        self.every = every

    def on_before_optimizer_step(self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: Optimizer) -> None:
        """Measure, and log for rank 0."""
        if trainer.global_step % self.every == 0:
            gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients)
            for logger in trainer.loggers:
                row = {"epoch": trainer.current_epoch + 1, "train/gradient_norm": float(norm)}
                logger.log_metrics(row, step=trainer.global_step)
