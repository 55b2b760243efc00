"""The training of an image classifier, as Lightning sees it: loss, metrics, optimiser, and what a checkpoint holds."""

import dataclasses
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import MulticlassAccuracy

from vitrine.config import TrainConfig
from vitrine.data.plan import mix
from vitrine.data.sources import Batch
from vitrine.models import VisionTransformer
from vitrine.training.optim import build_optimizer, build_schedule


def softmax_cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy that takes the softmax's output for logits."""
    return F.cross_entropy(logits.softmax(dim=1), labels, label_smoothing=label_smoothing)


LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": F.cross_entropy,
    "softmax_cross_entropy": softmax_cross_entropy,
}


class Classifier(pl.LightningModule):
    """A Vision Transformer with its loss. Takes uint8 images; normalises them itself.

    Logs ``train/loss``, ``train/acc`` and ``lr`` when :meth:`log_training` is called, ``val/loss`` and ``val/acc``
    after each validation. ``test/loss`` and ``test/acc`` are among the trainer's metrics only. Losses are in nats.

    Args:
        config: of the run; stored in checkpoints as a plain dict.
        steps: optimiser steps of the whole training.
        images_per_step: images in a step, over all processes.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: TrainConfig, steps: int, images_per_step: int) -> None:
        super().__init__()
        self.config = config
        self.steps = steps
        self.images_per_step = images_per_step
        self.model = VisionTransformer(config.model)
        self.criterion = LOSSES[config.loss.name]
        for name in ("mean", "std"):
            value = torch.tensor(getattr(config.data, name)).reshape(1, -1, 1, 1)
            self.register_buffer(name, value, persistent=False)
        stages = ("val", "test")
        self.accuracy = torch.nn.ModuleDict(
            {stage: MulticlassAccuracy(config.model.num_classes, average="micro") for stage in stages}
        )
        self.loss = torch.nn.ModuleDict({stage: MeanMetric() for stage in stages})
        self.sums = torch.zeros(3)  # loss, correct and images since the last row of the training log
        self.lr = 0.0  # of the present step
        self.latest: dict[str, float] = {}  # what was logged last
        self.test_outputs: list[tuple[Tensor, Tensor]] = []

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> (B, num_classes) logits."""
        return self.model(self.normalised(images))

    def normalised(self, images: Tensor) -> Tensor:
        """(B, C, H, W) uint8 -> float, as the model takes them."""
        return (images.to(self.mean.dtype) / 255 - self.mean) / self.std

    def on_fit_start(self) -> None:
        """Keep the running sums where the images are."""
        self.sums = self.sums.to(self.device)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Make dropout a function of seed, step and process, so that nothing random has to be saved."""
        torch.manual_seed(mix(self.config.seed, self.global_step, self.global_rank))
        self.lr = self.trainer.optimizers[0].param_groups[0]["lr"]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of a batch, averaged over it."""
        images, labels = batch
        logits = self(images)
        loss = self.criterion(logits, labels, label_smoothing=self.config.loss.label_smoothing)
        with torch.no_grad():
            correct = (logits.argmax(dim=1) == labels).sum()
            self.sums += torch.stack([loss * len(labels), correct, torch.ones_like(loss) * len(labels)])
        return loss

    def log_training(self) -> None:
        """Log the means of the training metrics since they were last logged, over all processes."""
        sums = self.trainer.strategy.reduce(self.sums, reduce_op="sum")
        loss, correct, images = sums.tolist()
        self.sums = torch.zeros_like(self.sums)
        self.log_now({"train/loss": loss / images, "train/acc": correct / images, "lr": self.lr})

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Add a batch to the validation metrics, or, from a second loader, to those of the test images."""
        self._measure(("val", "test")[dataloader_idx], batch)

    def on_validation_epoch_end(self) -> None:
        """Log the validation metrics, over all processes, where callbacks find them too."""
        values: dict[str, float] = {}
        loaders = self.trainer.val_dataloaders
        assert isinstance(loaders, list)
        for stage in ("val", "test")[: len(loaders)]:  # as many in every process
            values |= self._measured(stage)
        self.log_dict(values, logger=False)
        self.log_now(values)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Add a batch to the test metrics and keep its logits."""
        if (logits := self._measure("test", batch)) is not None:
            self.test_outputs.append((logits.float().cpu(), batch[1].cpu()))

    def on_test_epoch_end(self) -> None:
        """Log the test metrics."""
        self.log_dict(self._measured("test"), logger=False)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The configured optimiser, its schedule advanced after each step."""
        fused = self.trainer.precision != "16-mixed"  # there, gradients are unscaled and clipped before the step
        optimizer = build_optimizer(self.config.optimizer, self.model, fused=fused)
        schedule = build_schedule(self.config.schedule, optimizer, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip by the norm of all gradients. Lightning itself refuses fused optimisers in any mixed precision."""
        if gradient_clip_val is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what the model is rebuilt from: plain values only."""
        checkpoint["config"] = dataclasses.asdict(self.config)
        checkpoint["sums"] = self.sums.cpu()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up the training log where it was."""
        self.sums = checkpoint["sums"].to(self.device)

    def log_now(self, values: dict[str, float]) -> None:
        """Give ``values`` to the loggers at the present step."""
        self.latest.update(values)
        for logger in self.trainer.loggers:
            logger.log_metrics({"epoch": self.current_epoch + 1, **values}, step=self.global_step)

    def _measure(self, stage: str, batch: Batch) -> Tensor | None:
        images, labels = batch
        if not len(labels):  # this process has fewer images than the others
            return None
        logits: Tensor = self(images)
        self._metric(self.loss, stage).update(self.criterion(logits, labels), weight=len(labels))
        self._metric(self.accuracy, stage).update(logits, labels)
        return logits

    def _measured(self, stage: str) -> dict[str, float]:
        values = {}
        for name, metrics in (("loss", self.loss), ("acc", self.accuracy)):
            metric = self._metric(metrics, stage)
            values[f"{stage}/{name}"] = float(metric.compute())
            metric.reset()
        return values

    @staticmethod
    def _metric(metrics: torch.nn.ModuleDict, stage: str) -> Metric:
        metric = metrics[stage]
        assert isinstance(metric, Metric)
        return metric
