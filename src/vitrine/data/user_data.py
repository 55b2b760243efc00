"""A user's own data set: a callable that returns uint8 images and labels (docs/own_parts.md)."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vitrine.config.parts import Part, as_part_error, function, reason
from vitrine.config.schema import DataConfig
from vitrine.data.image_dataset import ImageDataset, Split
from vitrine.errors import DataError
from vitrine.runs.data_changes import SPLITS
from vitrine.text import listed, plural, shape_and_dtype


def user_dataset(part: Part, config: DataConfig) -> ImageDataset:
    """Call the user's part and check what it returns.

    Raises:
        PartError: the call fails.
        DataError: its result has the wrong form, shapes, types or labels.
    """
    load_data = function(part)
    with as_part_error(part.name, "failed"):
        given = load_data(root=Path(config.root))
    known = {"classes", *SPLITS}
    if not isinstance(given, Mapping) or given.get("train") is None or not set(given) <= known:
        has_keys = isinstance(given, Mapping)
        keys = sorted(str(key) for key in given if given[key] is not None) if has_keys else type(given).__name__
        raise DataError(
            f"data={part.name} must return a dict with train and optionally val, test and classes, not {keys}"
        )
    splits = {name: _split(part.name, name, given[name], config) for name in SPLITS if given.get(name) is not None}
    names = given.get("classes")
    with as_part_error(part.name, "classes are not a list of names"):
        classes = [str(name) for name in (range(config.num_classes) if names is None else names)]
    if repeated := [name for name, count in Counter(classes).items() if count > 1]:
        raise DataError(
            f"data={part.name} names {plural(len(repeated), 'class', 'classes')} more than once: {listed(repeated, 3)}"
        )
    return ImageDataset(classes, splits["train"], splits.get("val"), splits.get("test"))


def _split(source: str, name: str, given: Any, config: DataConfig) -> Split:
    where = f"data={source}: {name}"
    try:
        images, labels = (torch.as_tensor(values) for values in given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where} must be a pair of arrays, images and labels: {reason(error)}") from None
    if images.dtype is not torch.uint8 or images.dim() != 4 or 0 in images.shape[1:]:
        raise DataError(f"{where} has images {shape_and_dtype(images)}; they must be (N, C, H, W) uint8, no side 0")
    if labels.is_floating_point() or labels.is_complex() or labels.shape != images.shape[:1] or not len(labels):
        needed = f"({len(images)},) int64, one per image"
        raise DataError(f"{where} has labels {shape_and_dtype(labels)}; they must be {needed}")
    labels = labels.long()
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= config.num_classes:
        limit = f"data.num_classes={config.num_classes}"
        raise DataError(f"{where} has labels from {lowest} to {highest}; they must be >= 0 and < {limit}")
    return Split(images.contiguous(), labels)
