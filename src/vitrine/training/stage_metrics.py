"""Loss, accuracies and further metrics of validation or test images, accumulated over batches and ranks."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification.accuracy import MulticlassAccuracy
from torchmetrics.classification.exact_match import MultilabelExactMatch

from vitrine.config import TrainConfig
from vitrine.training.losses import MeanLoss
from vitrine.training.metrics import LogitsAndLabels, by_target, own_metrics


class StageMetrics(torch.nn.Module):
    """The metrics of a split: ``loss``, ``acc``, ``acc/NAME`` of each further target, and ``callbacks.measured``.

    Args:
        config: the run's configuration.
        all_ranks: whether they are computed over all ranks; else over this process, while other ranks wait.
    """

    def __init__(self, config: TrainConfig, *, all_ranks: bool) -> None:
        super().__init__()
        data, classes, measured = config.data, config.model.num_classes, config.callbacks.measured
        self.classes = classes
        self.multi_label = data.multi_label
        self.targets = data.classes_per_target if len(data.classes_per_target) > 1 else [classes]
        self.names = ["acc", *(f"acc/{target}" for target in data.targets[1:])]
        dtype = torch.float64 if config.trainer.precision == "64-true" else torch.float32
        self.loss = MeanLoss(dtype, sync_on_compute=all_ranks)
        if data.multi_label:
            parts: list[Metric] = [MultilabelExactMatch(classes, validate_args=False, sync_on_compute=all_ranks)]
        else:
            parts = [
                MulticlassAccuracy(count, average="micro", validate_args=False, sync_on_compute=all_ranks)
                for count in self.targets
            ]
        self.accuracies = cast(Sequence[Metric], torch.nn.ModuleList(parts))
        own = own_metrics(config.callbacks)
        self.logits_and_labels = LogitsAndLabels(measured, own, sync_on_compute=all_ranks) if measured else None

    def update(self, logits: Tensor, labels: Tensor, loss: Tensor) -> None:
        """Add a batch.

        Args:
            logits: (B, num_classes), float32 or float64.
            labels: (B,) int64, (B, targets) int64 or (B, num_classes) of 0 and 1.
            loss: mean over the batch, a scalar.
        """
        self.loss.update(loss, len(labels))
        parts = by_target(logits, labels, self.targets)
        for accuracy, (scores, of_target) in zip(self.accuracies, parts, strict=True):
            # Given logits, MultilabelExactMatch would take those of a batch that are all in [0, 1] for probabilities.
            accuracy.update(scores.sigmoid() if self.multi_label else scores, of_target)
        if self.logits_and_labels is not None:
            self.logits_and_labels.update(*parts[0])

    def update_without_images(self, labels: Tensor, dtype: torch.dtype) -> None:
        """Take part in a batch of which this rank has no image: outputs are gathered as tensors of equal dimensions.

        Args:
            labels: of no images.
            dtype: of logits.
        """
        if self.logits_and_labels is not None:
            none = torch.zeros(0, self.classes, dtype=dtype, device=labels.device)
            self.logits_and_labels.update(*by_target(none, labels, self.targets)[0])

    def compute(self) -> dict[str, float]:
        """Return the metrics by name, over all batches since the last call."""
        values = {"loss": float(self.loss.compute())}
        values |= {name: float(one.compute()) for name, one in zip(self.names, self.accuracies, strict=True)}
        if self.logits_and_labels is not None:
            values |= self.logits_and_labels.compute()
            self.logits_and_labels.reset()
        for metric in (self.loss, *self.accuracies):
            metric.reset()
        return values
