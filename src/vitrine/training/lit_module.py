"""LightningModule of an image classifier: loss, metrics, optimiser step, and checkpoint contents."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import lightning.pytorch as pl
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from vitrine.config import TrainConfig
from vitrine.config.image_schedule import image_side
from vitrine.config.parts import PartError
from vitrine.config.serialize import to_plain
from vitrine.data.epoch_plan import derive_seed
from vitrine.data.image_dataset import Batch
from vitrine.data.preparation import normalised
from vitrine.errors import Diverged, RunError
from vitrine.models import VisionTransformer, build_model
from vitrine.training.distill import Distillation
from vitrine.training.finetune import freeze
from vitrine.training.losses import build_loss, mean_loss
from vitrine.training.metrics import all_labels_right, by_target
from vitrine.training.optim import build_optimizer
from vitrine.training.schedules import build_schedule
from vitrine.training.smaller_images import SmallerImages
from vitrine.training.stage_metrics import StageMetrics


class Classifier(pl.LightningModule):
    """A model with its loss. Takes images in [0, 255] and normalises them itself.

    Uses Lightning's manual optimisation, which costs less per step than automatic optimisation.

    Logs ``train/loss``, ``train/acc`` and ``lr`` when :meth:`log_training` is called, and ``val/loss`` and ``val/acc``
    after each validation, and the metrics of ``callbacks.measured``; with ``callbacks.test_curve`` also those of the
    test images. Losses are in nats, accuracies in [0, 1]. With ``data.multi_label``, accuracy is the share of images
    all of whose labels are right. Of several ``data.targets``, ``train/acc`` and ``val/acc`` are those of the first,
    ``val/acc/NAME`` those of the others, and losses are sums over all.

    Unless ``trainer.on_divergence`` is ``continue``, raises :class:`Diverged` at a non-finite training or validation
    loss, and before non-finite weights are saved. A single rank on a CPU checks the training loss in each step;
    elsewhere that would wait for the device, and it is checked when it is logged.

    Args:
        config: the run's configuration; stored in checkpoints as a plain dict.
        steps: optimiser steps of the whole training.
        images_per_step: images in a step, over all ranks.
        class_weights: of the classes' training losses, (num_classes,); ``None`` for equal ones.
        all_ranks: whether metrics are computed over all ranks; else over this process, while other ranks wait.
        model: maps normalised images (B, C, H, W) to logits (B, num_classes); by default, a new one that the
            configuration describes.
        distillation: the teacher, if there is one.
    """

    mean: Tensor
    std: Tensor
    optimizer: LightningOptimizer
    schedule: LambdaLR

    def __init__(
        self,
        config: TrainConfig,
        steps: int,
        images_per_step: int,
        *,
        class_weights: Tensor | None = None,
        all_ranks: bool = True,
        model: torch.nn.Module | None = None,
        distillation: Distillation | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.steps = steps
        self.images_per_step = images_per_step
        self.automatic_optimization = False
        self.model = build_model(config.model) if model is None else model
        if isinstance(self.model, VisionTransformer):  # for others, it is refused
            self.model.activation_checkpointing = config.trainer.activation_checkpointing
        self.distillation = distillation
        self.trained = freeze(self.model, config.finetune)
        self.train()
        self.training_criterion, self.criterion = build_loss(config.loss, class_weights, config.data.classes_per_target)
        for name in ("mean", "std"):
            value = torch.tensor(getattr(config.data, name)).reshape(1, -1, 1, 1)
            self.register_buffer(name, value, persistent=False)
        self.metrics = torch.nn.ModuleDict(
            {stage: StageMetrics(config, all_ranks=all_ranks) for stage in ("val", "test")}
        )
        self.batch_norms = [layer for layer in self.model.modules() if isinstance(layer, _BatchNorm)]
        self.unlogged: list[tuple[Tensor, Tensor]] = []  # (loss, accuracy) of steps
        self.smaller_images: SmallerImages | None = None  # trains while images are smaller than the model's
        self.lr = 0.0  # of the current step
        self.latest: dict[str, float] = {}  # last logged values
        self.last_finite_loss: float | None = None  # of the training losses checked so far
        self.test_outputs: list[tuple[Tensor, Tensor]] = []

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, upcast to float32 from half precision.

        The loss is then computed in float32 in mixed precision too; autocast does this on CPUs only.

        Args:
            images: (B, C, H, W) in [0, 255]; uint8, or float after MixUp or CutMix. Or their :meth:`features` (B, D).

        Returns:
            (B, num_classes), float32 or float64.
        """
        if images.dim() == 2:
            assert isinstance(self.model, VisionTransformer)
            logits: Tensor = self.model.head(images)
        elif self.training and self.smaller_images is not None:
            logits = self.smaller_images(self.normalised(images))
        else:
            logits = self.model(self.normalised(images))
        return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits

    def features(self, images: Tensor) -> Tensor:
        """Return what the head reads, (B, D), of images as :meth:`forward` takes them."""
        assert isinstance(self.model, VisionTransformer)
        return self.model.pooled(self.normalised(images))

    def train(self, mode: bool = True) -> Self:
        """Set training mode, in which frozen parts stay as in evaluation: no dropout, fixed statistics."""
        super().train(mode)
        if self.trained is not None:
            self.model.eval()
            for module in self.trained:
                module.train(mode)
        return self

    def normalised(self, images: Tensor) -> Tensor:
        """Normalise images, (B, C, H, W) in [0, 255], as the model expects them; float."""
        return normalised(images, self.mean, self.std)

    def on_train_start(self) -> None:
        """Keep the optimiser and its schedule at hand."""
        optimizer, schedule = self.optimizers(), self.lr_schedulers()
        assert isinstance(optimizer, LightningOptimizer)
        assert isinstance(schedule, LambdaLR)
        self.optimizer, self.schedule = optimizer, schedule
        if self.distillation is not None:
            self.distillation.teacher.to(self.mean)
        self.refuse_added_weights()
        # A resumed run may have more epochs than its checkpoint, and so another rate at this step.
        for group, lr, factor in zip(optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True):
            group["lr"] = lr * factor(schedule.last_epoch)
        # Restored from a checkpoint before the module was moved to its device.
        self.unlogged = [(loss.to(self.device), right.to(self.device)) for loss, right in self.unlogged]

    def refuse_added_weights(self) -> None:
        """Raise RunError where a callback has added a parameter group, for which the schedule has no rate."""
        if len(self.optimizer.param_groups) != len(self.schedule.lr_lambdas):
            problem = "a callback added weights to the optimiser, which has all of them, and a schedule for no others"
            raise RunError(f"{problem}; to freeze some, set requires_grad in on_train_batch_start")

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed dropout from (seed, step, rank), so that no random state has to be saved; choose the images' size."""
        self.use_scheduled_size()
        seed = derive_seed(self.config.seed, self.global_step, self.global_rank)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 1 ms: it formats the call stack
        if self.device.type != "cpu":
            torch.get_device_module(self.device).manual_seed(seed)
        self.lr = self.optimizer.param_groups[0]["lr"]

    def use_scheduled_size(self) -> None:
        """Train on images of the size that ``trainer.image_schedule`` has for the current epoch."""
        settings = self.config.trainer
        side = image_side(settings.image_schedule, self.current_epoch, settings.max_epochs)
        if side is None:
            self.smaller_images = None
        elif self.smaller_images is None or self.smaller_images.side != side:
            assert isinstance(self.model, VisionTransformer)  # the configuration is validated
            self.smaller_images = SmallerImages(self.model, side)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Make an optimiser step on a batch, with gradients accumulated over its parts; return the loss, a scalar."""
        count = len(batch[1])
        measured: list[tuple[Tensor, Tensor]] = []  # of each part, times its share of the images
        parts = min(self.config.trainer.accumulate_grad_batches, count)
        self.optimizer.zero_grad()
        for part in range(parts):
            images, targets = batch if parts == 1 else (one[part::parts] for one in batch)
            logits = self(images)
            loss, accuracy = self.training_loss(logits, targets)
            if self.distillation is not None:
                loss = self.distillation.loss(loss, logits, images)
            if self.device.type == "cpu" and self.trainer.world_size == 1:
                self.check_losses([loss.item()], self.global_step + 1)
            if parts > 1:
                share = len(targets) / count
                loss, accuracy = loss * share, accuracy * share
            with self.outside_autocast(), nullcontext() if part == parts - 1 else self.local_gradients():
                self.manual_backward(loss)
            measured.append((loss.detach(), accuracy))
        self.clipped = self.config.trainer.gradient_clip_val is None
        with self.outside_autocast():
            self.optimizer.step()
        if not self.clipped:
            problem = "ignores trainer.gradient_clip_val: its step must call closure(), as torch.optim.Optimizer's does"
            raise PartError(self.config.optimizer.name, problem)
        self.refuse_added_weights()
        self.schedule.step()
        self.broadcast_batch_norms()  # before a callback averages them
        if parts > 1:
            losses, accuracies = zip(*measured, strict=True)
            measured = [(torch.stack(losses).sum(), torch.stack(accuracies).sum())]
        self.unlogged += measured  # stays on the device until it is logged
        return measured[0][0]

    def training_loss(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss over images and their accuracy, scalars.

        With MixUp or CutMix, training accuracy uses the dominant label.
        """
        loss = mean_loss(self.training_criterion, self.config.loss.name, logits, targets)
        if self.config.data.multi_label:
            right = all_labels_right(logits.detach(), targets).float().mean()
        else:
            scores, labels = by_target(logits.detach(), targets, self.config.data.classes_per_target)[0]
            labels = labels if labels.dim() == 1 else labels.argmax(dim=1)
            right = (scores.argmax(dim=1) == labels).float().mean()
        return loss, right

    def outside_autocast(self) -> AbstractContextManager[None]:
        """Leave autocast: only the forward pass is in mixed precision."""
        device = self.device.type
        return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()

    def broadcast_batch_norms(self) -> None:
        """Broadcast rank 0's running statistics of batch normalisation.

        DDP broadcasts them before each forward pass, but not with manual optimisation.
        """
        if self.trainer.world_size > 1:
            for layer in self.batch_norms:
                for buffer in layer.buffers():
                    torch.distributed.broadcast(buffer, src=0)

    def local_gradients(self) -> AbstractContextManager[None]:
        """Accumulate gradients on this rank, without an all-reduce."""
        strategy = self.trainer.strategy
        return strategy.block_backward_sync() if isinstance(strategy, DDPStrategy) else nullcontext()

    def log_training(self) -> None:
        """Log the mean training metrics of the steps since the last call, over all ranks."""
        values = self.unlogged_steps().cpu()
        self.check_losses(values[:, 0].tolist(), self.global_step)
        loss, accuracy = values.mean(dim=0).tolist()
        self.unlogged.clear()
        self.log_now({"train/loss": loss, "train/acc": accuracy, "lr": self.lr})

    def unlogged_steps(self) -> Tensor:
        """Return loss and accuracy of each step not yet logged, averaged over ranks; (N, 2), float32 or float64."""
        values = torch.stack([value.to(self.mean.dtype) for step in self.unlogged for value in step]).view(-1, 2)
        return self.trainer.strategy.reduce(values, reduce_op="mean")

    def check_losses(self, losses: Sequence[float], step: int) -> None:
        """Raise :class:`Diverged` at the first of these training losses that is not finite.

        Args:
            losses: of successive steps.
            step: the step of the last one, counted from 1.
        """
        for number, loss in enumerate(losses, start=step - len(losses) + 1):
            if math.isfinite(loss):
                self.last_finite_loss = loss
            else:
                self._stop_unless_ignored(f"the training loss is {_name(loss)}", number)

    def _stop_unless_ignored(self, what: str, step: int) -> None:
        if self.config.trainer.on_divergence == "stop":
            raise Diverged(what, step, self.last_finite_loss)

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Add a batch to the validation metrics, or, from the second loader, to the test metrics."""
        self._measure(("val", "test")[dataloader_idx], batch)

    def on_validation_epoch_end(self) -> None:
        """Log the validation metrics over all ranks, also to ``trainer.callback_metrics``."""
        values: dict[str, float] = {}
        loaders = self.trainer.val_dataloaders
        assert isinstance(loaders, list)
        for stage in ("val", "test")[: len(loaders)]:  # the same loaders on every rank
            values |= self._measured(stage)
        if not math.isfinite(loss := values["val/loss"]):
            self._stop_unless_ignored(f"the validation loss is {_name(loss)}", self.global_step)
        self.log_dict(values, logger=False)
        self.log_now(values)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Add a batch to the test metrics and keep its logits."""
        if (logits := self._measure("test", batch)) is not None:
            self.test_outputs.append((logits.cpu(), batch[1].cpu()))

    def on_test_epoch_end(self) -> None:
        """Log the test metrics."""
        self.log_dict(self._measured("test"), logger=False)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Build the configured optimiser and its schedule."""
        fused = self.trainer.precision != "16-mixed"  # there, gradients are unscaled and clipped before the step
        optimizer = build_optimizer(self.config.optimizer, self.model, self.config.finetune, fused=fused)
        schedule = build_schedule(self.config.schedule, optimizer, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Clip the norm of all gradients together."""
        if (most := self.config.trainer.gradient_clip_val) is not None:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, most)
            self.clipped = True

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the configuration and the training metrics not yet logged, as plain values; refuse non-finite weights."""
        values = checkpoint["state_dict"].values()
        weights = [value for value in values if value.is_floating_point() or value.is_complex()]
        if not torch.stack([value.isfinite().all() for value in weights]).all():
            self._stop_unless_ignored("a weight is NaN or infinite", self.global_step)
        checkpoint["config"] = to_plain(self.config)
        checkpoint["recent"] = self.unlogged_steps().tolist() if self.unlogged else []

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the training metrics not yet logged."""
        recent = torch.tensor(checkpoint["recent"], dtype=self.mean.dtype)
        self.unlogged = [(loss, right) for loss, right in recent]

    def log_now(self, values: dict[str, float]) -> None:
        """Pass ``values`` to the loggers at the current step."""
        self.latest.update(values)
        for logger in self.trainer.loggers:
            logger.log_metrics({"epoch": self.current_epoch + 1, **values}, step=self.global_step)

    def _measure(self, stage: str, batch: Batch) -> Tensor | None:
        """Add a batch to the metrics of a stage, and return its logits; ``None`` where this rank has no image of it."""
        images, labels = batch
        if not len(labels):
            self._metrics(stage).update_without_images(labels, self.mean.dtype)
            return None
        logits: Tensor = self(images)
        loss = mean_loss(self.criterion, self.config.loss.name, logits, labels)
        self._metrics(stage).update(logits, labels, loss)
        return logits

    def _measured(self, stage: str) -> dict[str, float]:
        return {f"{stage}/{name}": value for name, value in self._metrics(stage).compute().items()}

    def _metrics(self, stage: str) -> StageMetrics:
        metrics = self.metrics[stage]
        assert isinstance(metrics, StageMetrics)
        return metrics


def _name(value: float) -> str:
    return "NaN" if math.isnan(value) else "infinite"
