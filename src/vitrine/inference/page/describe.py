"""What engine.js takes: a model's sizes and choices as plain values, and its weights as base64 texts."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrine.errors import RunError
from vitrine.models import VisionTransformer
from vitrine.models.pos_embed import alibi_slopes, rope_frequencies

DTYPES = {"float32": "<f4", "float16": "<f2"}  # little-endian, as every browser's processor
CHUNK = 3 * 2**23  # bytes of a base64 text: 32 MB of characters, where browsers take at most 512
FIELDS = (
    "in_channels",
    "dim",
    "depth",
    "heads",
    "prefix",
    "patch_embed",
    "position",
    "norm",
    "norm_eps",
    "norm_placement",
    "residual",
    "attention",
    "mlp",
    "pool",
)


def describe(model: VisionTransformer, mean: list[float], std: list[float]) -> dict[str, Any]:
    """Return the fields of the model's configuration that engine.js reads, and the shapes of :func:`weights_of`.

    Args:
        model: of built-in parts.
        mean: of the channels of images in [0, 1]; one value or one per channel.
        std: likewise.
    """
    config = model.config
    description: dict[str, Any] = {name: getattr(config, name) for name in FIELDS} | {"mean": mean, "std": std}
    description |= {"image_size": config.image_hw, "patch_size": config.patch_hw}  # pairs, also of squares
    description |= {"stride": config.stride, "grid": config.grid}
    if config.position == "alibi2d":
        description["slopes"] = alibi_slopes(config.heads)
    if config.position == "rope":
        frequencies = rope_frequencies(config.head_dim, config.theta).tolist()
        still = [0.0] * len(frequencies)
        description["frequencies"] = [[*frequencies, *still], [*still, *frequencies]]  # along columns, along rows
    description["shapes"] = {name: list(values.shape) for name, values in weights_of(model).items()}
    return description


def weights_of(model: VisionTransformer) -> dict[str, Tensor]:
    """Return the model's weights and statistics by name; positions that are added to the tokens as one table (N, D)."""
    weights = {name: values for name, values in model.state_dict().items() if values.is_floating_point()}
    if model.pos_embed is not None:
        weights["pos_embed"] = model.position_table().detach()[0]
    return weights


def encode(weights: Mapping[str, Tensor], dtype: str = "float32") -> list[str]:
    """Return the bytes of all weights, in order, as base64 texts.

    Args:
        weights: tensors of any floating type, by name.
        dtype: a key of ``DTYPES``.

    Raises:
        RunError: a weight is NaN or infinite, or becomes infinite in ``dtype``.
    """
    arrays = []
    for name, values in weights.items():
        with np.errstate(over="ignore"):
            array = values.detach().cpu().float().numpy().astype(DTYPES[dtype])
        if not np.isfinite(array).all():
            if not torch.isfinite(values).all():
                raise RunError(f"{name} has weights that are NaN or infinite: the run has diverged")
            largest, limit = float(values.abs().max()), float(np.finfo(array.dtype).max)
            raise RunError(f"{name} has values up to {largest:.3g}, {dtype} up to {limit:g}; use --dtype float32")
        arrays.append(array.tobytes())
    data = b"".join(arrays)
    return [base64.b64encode(data[start : start + CHUNK]).decode() for start in range(0, len(data), CHUNK)]
