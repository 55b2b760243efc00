"""The layers of a model, as Lightning's ModelSummary measures them, without memory for its weights."""

from dataclasses import dataclass

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.model_summary.model_summary import ModelSummary
from torch import Tensor, nn

from vitrine.config import ViTConfig
from vitrine.config.part_failures import failing_in_one_line
from vitrine.config.parts import names_of
from vitrine.models import build_model


@dataclass(frozen=True)
class Layer:
    """A layer, or a parameter that is in no layer.

    Attributes:
        name: as in the state dict: ``blocks.0.attn``.
        kind: its class.
        takes, gives: shapes of its input and output for one image; ``None`` if it is not called, or takes no tensor.
        parameters: how many, those of its parts included.
        flops: of a forward pass of one image.
    """

    name: str
    kind: str
    takes: tuple[int, ...] | None
    gives: tuple[int, ...] | None
    parameters: int
    flops: int


@dataclass(frozen=True)
class Layers:
    """The layers of a model, its parameters, and its FLOPs per image, as run.json has them."""

    layers: list[Layer]
    parameters: int
    flops: int


class _Alone(pl.LightningModule):
    """A model with an image to measure it on."""

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        super().__init__()
        self.model = model
        self.example_input_array = images

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, num_classes)."""
        return self.model(images)


def layers(config: ViTConfig, depth: int) -> Layers:
    """Return the layers of the model that ``config`` describes.

    Args:
        config: the model.
        depth: how deep to look into parts; at 1, ``blocks`` is one layer.
    """
    device = "cpu" if names_of(config) else "meta"  # a user's code may compute with values
    with failing_in_one_line(config), torch.device(device), torch.random.fork_rng(devices=[]):
        model = build_model(config).eval()
        images = torch.zeros(1, config.in_channels, *config.image_hw)
        summary = ModelSummary(_Alone(model, images), max_depth=depth + 1)
    counts = (sum(kinds.values()) for kinds in summary.flop_counts.values())
    measured = zip(
        summary.layer_names,
        summary.layer_types,
        summary.in_sizes,
        summary.out_sizes,
        summary.param_nums,
        counts,
        strict=True,
    )
    own = [
        Layer(name, "Parameter", None, tuple(values.shape), values.numel(), 0)
        for name, values in model.named_parameters(recurse=False)
    ]
    found = [
        Layer(name.removeprefix("model."), kind, _shape(takes), _shape(gives), parameters, flops)
        for name, kind, takes, gives, parameters, flops in measured
        if name != "model"
    ]
    return Layers([*own, *found], summary.total_parameters, summary.total_flops)


def _shape(size: object) -> tuple[int, ...] | None:
    """The shape of the only or the first tensor."""
    if not isinstance(size, list) or not size:
        return None
    return tuple(size) if isinstance(size[0], int) else _shape(size[0])
