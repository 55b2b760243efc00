"""Weights that someone has trained before: where they come from, and what is done to make them fit.

``model.pretrained=NAME`` names weights in timm's hub, as ``vit_base_patch16_224.augreg_in21k``, which takes the extra
``pretrained``; ``model.pretrained=FILE`` is a state dict in a .safetensors, .pth, .pt or .bin file, or a
checkpoint of vitrine. Names of parameters are timm's.

Patches of another size are resized, positions interpolated, colour filters added up for grey images, and the head left
new where it has other classes. All else must agree with the configuration; what doesn't is told at once.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.config import ViTConfig
from vitrine.config.model import WEIGHT_FILES, missing_weights
from vitrine.errors import ConfigError, Fault, RunError, first_line
from vitrine.models import VisionTransformer
from vitrine.models.resize import resize_weights
from vitrine.text import did_you_mean, nearest
from vitrine.training.checkpoints import check_weights, load_weights, model_weights, read_checkpoint

# What may be other than where the weights were trained: sizes, which are made to fit, and what concerns training only.
SIZES = {"image_size", "patch_size", "patch_stride", "in_channels", "num_classes"}
NAMES = {field.name for field in fields(ViTConfig)}
TRAINING = {"attention_kernel", "zero_head", "pretrained", "drop_path", "drop_path_shape"} | {
    name for name in NAMES if name.endswith(("_dropout", "init"))
}
ARCHITECTURE = NAMES - SIZES - TRAINING
PATCHES, POSITIONS = "patch_embed.proj.weight", "pos_embed"
SECONDS_TO_ANSWER = 5.0


@dataclass(frozen=True)
class Pretrained:
    """Weights to start from, made to fit a model.

    Attributes:
        source: where they come from.
        weights: under the model's names; without a head where that is to be a new one.
        changes: what was done to make them fit, in words.
    """

    source: str
    weights: dict[str, Tensor]
    changes: list[str]

    @classmethod
    def prepare(cls, config: ViTConfig) -> "Pretrained | None":
        """Those that ``config.pretrained`` names, if it names any.

        Raises:
            RunError: they can't be read or downloaded.
            ConfigError: they are of another architecture; the settings that fit are in the message.
        """
        if config.pretrained is None:
            return None
        stored, weights = read_weights(config.pretrained)
        weights = under_our_names(weights)
        if stored is not None:
            facts = {name: value for name, value in stored.items() if name in ARCHITECTURE}
        elif PATCHES in weights:
            facts = described(weights)
        else:
            problem = f"holds no Vision Transformer under timm's names: it has no {PATCHES}"
            raise RunError(f"model.pretrained={config.pretrained} {problem}")
        if found := _differences(facts, config):
            raise ConfigError(found)
        start = cls(config.pretrained, *_fit(weights, config, stored))
        with torch.device("meta"):
            model = VisionTransformer(config)
        check_weights(model, start.with_head_of(model), start.source)
        return start

    def copy_to(self, model: nn.Module) -> None:
        """Set the weights of ``model``, whose head stays as it is where there is none among these.

        Raises:
            RunError: names or shapes differ.
        """
        load_weights(model, self.with_head_of(model), self.source)

    def with_head_of(self, model: nn.Module) -> dict[str, Tensor]:
        """These weights, and those of the head of ``model`` where there are none among these."""
        head = {name: value for name, value in model.state_dict().items() if name.startswith("head.")}
        return head | self.weights


def read_weights(source: str) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """What a name in timm's hub or a file holds; only tensors and plain values are read, no pickled objects.

    Returns:
        The model's configuration, where it is a checkpoint of vitrine, and the state dict.

    Raises:
        RunError: there is no such name or file, or it can't be read.
    """
    if problem := missing_weights(source):
        raise RunError(f"model.pretrained={source}: {problem}")
    path = Path(source)
    if path.suffix not in WEIGHT_FILES:
        return None, _from_hub(source)
    if path.suffix == ".ckpt":
        checkpoint = read_checkpoint(path)
        return checkpoint["config"]["model"], model_weights(checkpoint)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return None, load_file(path)
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError:
        raise RunError("reading .safetensors files takes: pip install -e '.[pretrained]'") from None
    except Exception as error:  # what is no state dict can fail in any way
        raise RunError(f"{path} is damaged, or holds more than tensors: {first_line(error)}") from None
    for key in ("state_dict", "model"):  # where training scripts put it
        if isinstance(weights, dict) and isinstance(weights.get(key), dict):
            weights = weights[key]
    if not isinstance(weights, dict):
        raise RunError(f"{path} holds no state dict")
    return None, {name: value for name, value in weights.items() if isinstance(value, Tensor)}


def under_our_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights without what wraps a model, and timm's RoPE models by the names of its VisionTransformer."""
    renamed: dict[str, Tensor] = {}
    for name, value in weights.items():
        name = re.sub(r"^((module|model|_orig_mod)\.)+", "", name)
        name = re.sub(r"\.gamma_([12])$", r".ls\1.gamma", name)
        if name == "rope.freqs":  # (2, depth, heads, D/heads/2)
            renamed |= {f"blocks.{i}.attn.relation.frequencies": one for i, one in enumerate(value.unbind(1))}
        else:
            renamed[name] = value
    return renamed


def _from_hub(name: str) -> dict[str, Tensor]:
    import timm

    try:
        found = timm.get_pretrained_cfg(name)
    except RuntimeError:  # the model is known, its tag is not
        found = None
    if found is None or found.hf_hub_id is None:
        known = timm.list_pretrained(["vit_*patch*", "deit*patch*", "flexivit*"])
        near = next((one for one in known if one.startswith(name)), "") or nearest(name, known)
        raise RunError(f"model.pretrained={name}: timm has no such weights{did_you_mean(near)}")
    try:
        model = timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"file": _download(found.hf_hub_id)})
    except Exception as error:  # the hub's client raises whatever its transport does
        hint = "without a network, name a file: model.pretrained=FILE.safetensors"
        raise RunError(f"model.pretrained={name} could not be downloaded: {first_line(error)}; {hint}") from None
    return model.state_dict()


def _download(repository: str) -> str:
    """Path of the weights in the hub's cache, downloaded if they are not in it yet."""
    from huggingface_hub import constants, get_session, hf_hub_download, try_to_load_from_cache

    file = "model.safetensors"
    cached = try_to_load_from_cache(repository, file)
    if isinstance(cached, str):
        return cached
    get_session().head(constants.ENDPOINT, timeout=SECONDS_TO_ANSWER)  # the download itself would try for a minute
    return str(hf_hub_download(repository, file))


def _differences(facts: Mapping[str, Any], config: ViTConfig) -> list[Fault]:
    """Settings of ``config`` that are not those of the model that has the weights, which ``facts`` describe."""
    found = []
    for key, theirs in facts.items():
        ours, several = getattr(config, key), isinstance(theirs, tuple)
        if isinstance(ours, float) and isinstance(theirs, float) and key != "layer_scale":
            agree = math.isclose(ours, theirs, rel_tol=1e-6)
        elif key == "layer_scale":  # its value is in the weights: only whether there is one matters
            agree = (ours is None) == (theirs is None)
        else:
            agree = ours in theirs if several else ours == theirs
        if not agree:
            words = [_word(one) for one in (theirs if several else (theirs,))]
            near = "" if several else f"model.{key}={words[0]}"
            found.append(Fault(f"model.{key}", _word(ours), f"the weights have {' or '.join(words)}", near))
    return found


def _word(value: object) -> str:
    """As it would be typed."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def described(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """What names and shapes say of the model they belong to, as fields of a ``ViTConfig``.

    A tuple holds several values, any of which they may belong to.
    """
    dim = weights[PATCHES].shape[0]
    depth = 1 + max((int(name.split(".")[1]) for name in weights if name.startswith("blocks.")), default=-1)
    first = {name.removeprefix("blocks.0."): value for name, value in weights.items() if name.startswith("blocks.0.")}
    facts = {
        "patch_embed": ("conv", "linear"),
        "dim": dim,
        "depth": depth,
        "class_token": "cls_token" in weights,
        "registers": weights["reg_token"].shape[1] if "reg_token" in weights else 0,
        "embed_norm": "norm_pre.weight" in weights,
        "final_norm": "norm.weight" in weights,
        "qkv_bias": "attn.qkv.bias" in first,
        "qk_norm": "attn.q_norm.weight" in first,
        "out_projection": "attn.proj.weight" in first,
        "layer_scale": 1e-5 if "ls1.gamma" in first else None,
        "norm": "layernorm" if "norm1.bias" in first else "rmsnorm",
        "pool": "map" if "attn_pool.latent" in weights else ("cls", "mean") if "cls_token" in weights else "mean",
        "position": _position(weights, first),
    }
    if "mlp.fc1.weight" in first:
        (inner, _), hidden = first["mlp.fc1.weight"].shape, first["mlp.fc2.weight"].shape[1]
        facts["mlp_ratio"] = hidden / dim
        facts["mlp"] = "swiglu" if inner == 2 * hidden else ("gelu", "gelu_tanh", "relu")
    return facts


def _position(weights: Mapping[str, Tensor], first: Mapping[str, Tensor]) -> str | tuple[str, ...]:
    if POSITIONS in weights:
        return "learned" if len(weights[POSITIONS]) == 1 else "learned2d"
    if "attn.relation.table" in first:
        return "relative"
    if "attn.relation.frequencies" in first:
        return "rope_mixed"
    if "pos_conv.proj.weight" in weights:
        return "conv"
    return ("rope", "sincos2d", "sincos1d", "alibi2d", "none")  # nothing in the weights tells them apart


def _fit(
    weights: dict[str, Tensor], config: ViTConfig, stored: Mapping[str, Any] | None
) -> tuple[dict[str, Tensor], list[str]]:
    """The weights resized for ``config``, without a head of other classes; and what was done."""
    weights, changes = dict(weights), []
    patches = weights.get(PATCHES)
    if patches is not None:
        weights.setdefault("patch_embed.proj.bias", torch.zeros(config.dim))  # timm has none where a norm follows
        if patches.ndim == 4 and config.in_channels == 1 and patches.shape[1] > 1:
            changes.append(f"filters of {patches.shape[1]} colours added up for grey images")
            patches = patches.sum(dim=1, keepdim=True)
        weights[PATCHES] = patches.flatten(1) if config.patch_embed == "linear" else patches
    if config.position == "learned" and _side(weights[POSITIONS].shape[1] - config.prefix) is None:
        weights[POSITIONS] = F.pad(
            weights[POSITIONS], (0, 0, config.prefix, 0)
        )  # published without the prefix's places
    old = _sizes(weights, config, patches, stored)
    if old.patch_size != config.patch_size:
        size = config.patch_size
        changes.append(f"patches resized from {old.patch_size}x{old.patch_size} to {size}x{size}")
    if old.grid != config.grid and config.position in ("learned", "learned2d", "relative"):
        changes.append(f"positions resized from {old.grid}x{old.grid} to {config.grid}x{config.grid}")
    weights = resize_weights(weights, old, config)
    if "head.weight" not in weights or len(weights["head.weight"]) != config.num_classes:
        changes.append(f"new head for {config.num_classes} classes")
        weights.pop("head.weight", None)
        weights.pop("head.bias", None)
    return weights, changes


def _sizes(
    weights: Mapping[str, Tensor], config: ViTConfig, patches: Tensor | None, stored: Mapping[str, Any] | None
) -> ViTConfig:
    """``config`` at the sizes that the weights are for: as stored, or as the patches and positions have them."""
    if stored is not None:
        stride = stored.get("patch_stride")  # there was none once
        return replace(config, image_size=stored["image_size"], patch_size=stored["patch_size"], patch_stride=stride)
    patch_size = config.patch_size if patches is None or patches.ndim != 4 else patches.shape[-1]
    side = _side(weights[POSITIONS].shape[1] - config.prefix) if config.position == "learned" else config.grid
    return replace(config, image_size=(side or config.grid) * patch_size, patch_size=patch_size, patch_stride=None)


def _side(patches: int) -> int | None:
    """Length of the side of a square grid of so many patches; ``None`` if there is no such."""
    side = math.isqrt(max(0, patches))
    return side if side * side == patches else None
