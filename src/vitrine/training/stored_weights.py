"""Read weights to start from: of a name in timm's hub, of a file, or of a run. Pickled objects are refused."""

import pickle
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrine.config.model import IN_TIMMS_HUB, WEIGHT_FILES, missing_weights, weights_file
from vitrine.errors import RunError, first_line
from vitrine.text import did_you_mean, nearest
from vitrine.training.weights import model_weights, read_checkpoint
from vitrine.untrusted import refuse_inflating

UNKNOWN = {"fc_norm": "a norm after the pool", "dist_token": "a distillation token"}  # by timm's names
OTHER_NAMES = {"patch_embeddings.projection.weight": "transformers", "patch_embed.projection.weight": "MMPretrain"}
SECONDS_TO_ANSWER = 5.0


@dataclass(frozen=True)
class StoredWeights:
    """Weights as they were found.

    Attributes:
        weights: the state dict, under the model's parameter names.
        config: the model's configuration, of a checkpoint of vitrine; else ``None``.
        statistics: ``mean`` and ``std`` of the channels with which their images were normalised; empty if unknown.
        timm: timm's model with these weights, an ``nn.Module``, of a name in its hub; else ``None``.
        crop_pct: share of a picture's shorter side with which timm evaluates weights of its hub; else ``None``.
    """

    weights: dict[str, Tensor]
    config: dict[str, Any] | None = None
    statistics: dict[str, list[float]] = field(default_factory=dict)
    timm: Any = None
    crop_pct: float | None = None


def read_weights(source: str) -> StoredWeights:
    """Read the weights that ``model.pretrained=source`` names.

    Raises:
        RunError: there is no such name or file, it can't be read, or it has weights of what no model of vitrine has.
    """
    if problem := missing_weights(source):
        raise RunError(f"model.pretrained={source}: {problem}")
    path = weights_file(source)
    if path.suffix not in WEIGHT_FILES:
        found = _from_hub(source)
    elif path.suffix == ".ckpt":
        checkpoint = read_checkpoint(path)
        config = checkpoint["config"]
        found = StoredWeights(model_weights(checkpoint), config["model"], _statistics(config.get("data")))
    else:
        found = StoredWeights(_from_file(path))
    if problem := _not_stored(found.weights):
        raise RunError(f"model.pretrained={source}: {problem}")
    weights = under_our_names(found.weights)
    for part, what in UNKNOWN.items():
        if any(name.startswith(part) for name in weights):
            raise RunError(f"model.pretrained={source} has {what}, {part}, which no model of vitrine has")
    return replace(found, weights=weights)


def _from_file(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                refuse_inflating(archive)
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError:
        raise RunError("reading .safetensors files needs: pip install -e '.[pretrained]'") from None
    except pickle.UnpicklingError:  # PyTorch's message advises to load it all the same
        problem = "pickled objects could run any code, and are refused"
        raise RunError(f"{path} is damaged, or holds more than tensors: {problem}") from None
    except Exception as error:  # reading an arbitrary file can fail in any way
        raise RunError(f"{path} is damaged, or holds more than tensors: {first_line(error)}") from None
    for key in ("state_dict", "model"):  # common keys of training scripts
        if isinstance(weights, dict) and isinstance(weights.get(key), dict):
            weights = weights[key]
    if not isinstance(weights, dict):
        raise RunError(f"{path} holds no state dict")
    return {name: value for name, value in weights.items() if isinstance(value, Tensor)}


def _statistics(data: Any) -> dict[str, list[float]]:
    """Return mean and standard deviation of the channels that a checkpoint's section ``data`` has."""
    found = {name: data.get(name) for name in ("mean", "std")} if isinstance(data, Mapping) else {}
    return {key: value for key, value in found.items() if isinstance(value, list) and set(map(type, value)) == {float}}


def under_our_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename weights to the model's parameter names: strip wrappers' prefixes, map timm's RoPE and layer scale."""
    renamed: dict[str, Tensor] = {}
    for name, value in weights.items():
        name = re.sub(r"^((module|model|_orig_mod)\.)+", "", name)
        name = re.sub(r"\.gamma_([12])$", r".ls\1.gamma", name)
        # (2, depth, heads, D/heads/2); no real file has more blocks than weights, of which each block has several
        if name == "rope.freqs" and value.ndim > 1 and value.shape[1] <= len(weights):
            renamed |= {f"blocks.{i}.attn.relation.frequencies": block for i, block in enumerate(value.unbind(1))}
        else:
            renamed[name] = value
    return renamed


def other_names(weights: Mapping[str, Tensor], expected: str) -> str:
    """Return what weights without the one that is ``expected`` are, and which ones to take, if that is known."""
    problem = f"holds no Vision Transformer under timm's names: it has no {expected}"
    for end, library in OTHER_NAMES.items():
        if any(name.endswith(end) for name in weights):
            return f"{problem}; its names are those of {library}; {IN_TIMMS_HUB}"
    return problem


def _not_stored(weights: Mapping[str, Tensor]) -> str:
    """Return what is wrong with the first weight whose values are not all in its file; nothing if there is none.

    A file of bytes can describe such a weight of any shape.
    """
    for name, value in weights.items():
        dense = value.device.type == "cpu" and value.layout == torch.strided
        if not dense or not value.numel() or value.nbytes > value.untyped_storage().nbytes():
            shape = "x".join(map(str, value.shape)) or "a scalar"
            return f"the file does not hold all values of {name}, {shape}; it must have dense weights with values"
    return ""


def _from_hub(name: str) -> StoredWeights:
    import timm

    try:
        found = timm.get_pretrained_cfg(name)
    except RuntimeError:  # the model is known, its tag is not
        found = None
    if found is None or found.hf_hub_id is None:
        known = timm.list_pretrained(["vit_*patch*", "deit*patch*", "flexivit*"])
        near = next((other for other in known if other.startswith(name)), "") or nearest(name, known)
        raise RunError(f"model.pretrained={name}: timm has no such weights{did_you_mean(near)}")
    try:
        model = timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"file": _download(found.hf_hub_id)})
    except Exception as error:  # the hub's client raises errors of its transport
        hint = "without a network, name a file: model.pretrained=FILE.safetensors"
        raise RunError(f"model.pretrained={name} could not be downloaded: {first_line(error)}; {hint}") from None
    statistics = {"mean": list(found.mean), "std": list(found.std)}
    return StoredWeights(model.state_dict(), None, statistics, model.eval(), found.crop_pct)


def _download(repository: str) -> str:
    """Return the path of the weights in the hub's cache; download them first if needed."""
    from huggingface_hub import constants, get_session, hf_hub_download, try_to_load_from_cache

    file = "model.safetensors"
    cached = try_to_load_from_cache(repository, file)
    if isinstance(cached, str):
        return cached
    get_session().head(constants.ENDPOINT, timeout=SECONDS_TO_ANSWER)  # the download would retry for a minute
    return str(hf_hub_download(repository, file))
