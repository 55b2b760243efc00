"""Data of the interactive maps: attention and similarity of some images as bytes, as large as a page should carry."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from vitrine.explain.observed import Observed
from vitrine.figure_style import ATTENTION, LIKENESS, hex_colours

BUDGET = 2_400_000  # bytes of all images, before base64
WANTED = 3  # images with every detail; for fewer, details are left out


def details(depth: int, heads: int, patches: int) -> tuple[str, int]:
    """Return how much of an image's attention fits into the page, and the number of images.

    Returns:
        ``heads``: each head, for each patch; ``mean``: of patches, the mean over heads; ``image``: no patches, that is,
        only what the model's head reads. And how many images of it fit, at most 8.
    """
    square = patches**2
    sizes = {
        "heads": depth * heads * (patches + square) + (2 + depth) * square,
        "mean": depth * (heads * patches + square) + (2 + depth) * square,
        "image": (depth * heads + 1) * patches,
    }
    for name, wanted in (("heads", WANTED), ("mean", 1), ("image", 1)):
        if (count := BUDGET // sizes[name]) >= wanted:
            return name, min(8, count)
    return "image", 1


def packed(
    observed: Sequence[Observed], sources: Sequence[str], captions: Sequence[str], detail: str
) -> dict[str, Any]:
    """Return what templates/explorer.js reads.

    Args:
        observed: of each image.
        sources: the images as data URLs.
        captions: what each image is, and what it was taken for.
        detail: as of :func:`details`.
    """
    depth, heads, _, patches = observed[0].attention.shape
    images = []
    for one, source, caption in zip(observed, sources, captions, strict=True):
        arrays = {"image": _shares(one.attention[:, :, 0]), "rollout": _shares(one.rollout)}
        if detail == "heads":
            arrays["patches"] = _shares(one.attention[:, :, 1:])
        elif detail == "mean":
            arrays["patches"] = _shares(one.attention[:, :, 1:].mean(dim=1, keepdim=True))
        if detail == "image":
            arrays["rollout"] = _shares(one.rollout[:1])
        else:
            arrays["similarity"] = _text(((one.similarity.numpy() + 1) / 2).clip(0, 1) * 255)
        if one.pool is not None:
            arrays["pool"] = _shares(one.pool)
        images.append({"source": source, "caption": caption, **arrays})
    scales = {"attention": ATTENTION, "similarity": LIKENESS}
    return {
        "depth": depth,
        "heads": heads,
        "patches": patches,
        "detail": detail,
        "images": images,
        "colours": {name: hex_colours(scale, 16) for name, scale in scales.items()},
    }


def _shares(values: Tensor) -> str:
    """Encode shares in [0, 1]: square roots in a byte each, since most shares are small."""
    return _text(np.sqrt(values.float().numpy().clip(0, 1)) * 255)


def _text(values: np.ndarray) -> str:
    return base64.b64encode(np.rint(values).astype(np.uint8).tobytes()).decode()
