"""A trained model on a device: prepared images to probabilities, in the precision of training."""

from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrine.config import TrainConfig
from vitrine.data.image_dataset import Split
from vitrine.data.placement import decoding_workers
from vitrine.data.preparation import Preparation
from vitrine.distributed.hardware import DTYPES, choose_hardware, gpus, on_one_device
from vitrine.distributed.launch import launched
from vitrine.errors import RunError
from vitrine.inference.reading import read_split
from vitrine.models import VisionTransformer


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model predicts for one picture.

    Attributes:
        classes: names of the classes.
        probabilities: (num_classes,) float64 in [0, 1], summing to 1; of a model of several labels per image, each by
            itself.
    """

    classes: list[str]
    probabilities: Tensor

    def __repr__(self) -> str:
        return f"Prediction(name={self.name!r}, probability={self.probability:.3f})"

    @property
    def name(self) -> str:
        """The likeliest class."""
        return self.top()[0][0]

    @property
    def probability(self) -> float:
        """Its probability, in [0, 1]."""
        return self.top()[0][1]

    def top(self, count: int = 1) -> list[tuple[str, float]]:
        """Return the ``count`` likeliest classes with their probabilities, the likeliest first."""
        values, indices = likeliest(self.probabilities, count)
        return [(self.classes[index], value) for index, value in zip(indices.tolist(), values.tolist(), strict=True)]

    def labels(self, threshold: float = 0.5) -> list[tuple[str, float]]:
        """Return the classes with at least this probability, the likeliest first; of a model of several labels."""
        return [(name, value) for name, value in self.top(len(self.classes)) if value >= threshold]


def likeliest(probabilities: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the ``count`` largest values of the last dimension, and their indices; of equal ones the first, as argmax.

    ``torch.topk`` orders equal values arbitrarily, and in bfloat16 many are equal.
    """
    values, indices = probabilities.sort(dim=-1, descending=True, stable=True)
    return values[..., :count], indices[..., :count]


class Predictor:
    """A run's model on one device; of several ranks of a program, on the GPU of each.

    Args:
        model: on the CPU, in evaluation mode; it is copied where the device or precision needs it.
        config: the run's configuration.
        accelerator: ``auto``, ``cpu`` or ``gpu``.
        preparation: of pictures, as in the run's training.

    Attributes:
        temperature: what logits are divided by before the softmax.
        workers: processes that decode the images of a split; 0 decodes in this one.
        multi_label: whether a picture has several labels: a sigmoid for each class in place of the softmax.

    Raises:
        ConfigError: there is no such device.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, accelerator: str, preparation: Preparation) -> None:
        self.hardware = choose_hardware(on_one_device(config, accelerator), alone=True)
        self.device = torch.device(self.hardware.accelerator)
        if self.device.type == "cuda" and (launch := launched()) is not None:
            self.device = torch.device("cuda", launch.local_rank % gpus())
        self.dtype = torch.float64 if self.hardware.precision == "64-true" else torch.float32
        moved = self.device.type != "cpu" or self.dtype is torch.float64
        self.model = deepcopy(model).to(self.device, self.dtype) if moved else model
        self.preparation = preparation
        self.temperature = 1.0
        self.workers = decoding_workers(config.data)
        self.multi_label = config.data.multi_label
        self._most: int | None = None  # images that fit in memory together

    def logits(self, images: Tensor) -> Tensor:
        """Return logits (B, num_classes) of images (B, C, H, W) uint8; float32 on the CPU.

        A batch that does not fit in the GPU's memory is computed in parts.

        Raises:
            RunError: a single image does not fit.
        """
        (logits,) = self._outputs(images, lambda normalised: [self.model(normalised)])
        return logits

    def logits_and_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return :meth:`logits` with the features (B, D) of the images: what the head reads; float32 on the CPU.

        Raises:
            RunError: a single image does not fit.
        """
        model = self.model
        assert isinstance(model, VisionTransformer)

        def both(normalised: Tensor) -> list[Tensor]:
            features = model.pooled(normalised)
            return [model.head(features), features]

        logits, features = self._outputs(images, both)
        return logits, features

    def features(self, images: Tensor) -> Tensor:
        """Return the features (B, D) alone; raises as :meth:`logits_and_features`."""
        return self.logits_and_features(images)[1]

    def logits_of(self, split: Split) -> Tensor:
        """Return logits (N, num_classes) of all images of a split; raises as :meth:`logits` and ``read_split``."""
        with closing(read_split(split, self.workers)) as batches:
            return torch.cat([self.logits(images) for images, _ in batches])

    def probabilities(self, images: Tensor) -> Tensor:
        """Return probabilities (B, num_classes) of images (B, C, H, W) uint8; float64 on the CPU.

        In float32, logits that differ could give equal probabilities.
        """
        return self.probabilities_of(self.logits(images))

    def probabilities_of(self, logits: Tensor) -> Tensor:
        """Return probabilities of logits, of the same shape, in float64."""
        logits = logits.double() / self.temperature
        return logits.sigmoid() if self.multi_label else logits.softmax(dim=1)

    @torch.inference_mode()
    def _outputs(self, images: Tensor, model: Callable[[Tensor], list[Tensor]]) -> list[Tensor]:
        """Return each output of ``model``, (B, ...) float32 on the CPU, computed in parts that fit in memory."""
        parts = images.split(self._most or max(1, len(images)))
        try:
            return [torch.cat(output) for output in zip(*(self._computed(part, model) for part in parts), strict=True)]
        except torch.OutOfMemoryError:
            if (tried := len(parts[0])) == 1:
                raise RunError(f"a single image does not fit in the memory of {self.hardware.name}") from None
        torch.cuda.empty_cache()
        self._most = tried // 2
        return self._outputs(images, model)

    def _computed(self, images: Tensor, model: Callable[[Tensor], list[Tensor]]) -> list[Tensor]:
        normalised = self.preparation.normalised(images.to(self.device, non_blocking=True), self.dtype)
        mixed = self.hardware.precision.endswith("-mixed")
        with torch.autocast(self.device.type, DTYPES[self.hardware.precision], enabled=mixed):
            return [output.float().cpu() for output in model(normalised)]
