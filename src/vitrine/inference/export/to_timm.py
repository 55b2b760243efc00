"""``--format safetensors``: a folder that ``timm.create_model("local-dir:FOLDER", pretrained=True)`` reads.

timm's registered models take their sizes and parts as arguments, which ``config.json`` holds. Three of them cover what
timm can express: ``vit_tiny_patch16_224``, ``vit_giant_patch14_dinov2`` for its SwiGLU, and the Eva models with rotary
positions. What they have and this model lacks is stored as an identity: fixed positions as a learned table, a missing
layer scale as ones.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrine.config import ViTConfig
from vitrine.config.parts import names_of
from vitrine.config.size import height_width
from vitrine.data.preparation import Preparation
from vitrine.inference.export.checks import Runtime
from vitrine.inference.export.formats import ExportError
from vitrine.inference.export.source import ExportSource
from vitrine.models import VisionTransformer
from vitrine.text import listed

ROTARY = {"rope": "vit_small_patch16_rope_224", "rope_mixed": "vit_small_patch16_rope_mixed_224"}
POOLS = {"cls": "token", "mean": "avg", "map": "map"}
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "relu": "relu", "swiglu": "silu"}
CROP_MODES = {"crop": "center", "pad": "border", "squash": "squash"}  # by data.resize
EPS = 1e-6  # of the norms of these models, which config.json can't change
PATCH_BIAS = "patch_embed.proj.bias"


def inexpressible(config: ViTConfig) -> list[str]:
    """Return what of a model timm can't express, each with the reason; empty if timm can express it."""
    if own := names_of(config):
        return [f"{listed(own)} {'is' if len(own) == 1 else 'are'} code of your own"]
    rotary, swiglu = config.position in ROTARY, config.mlp == "swiglu"
    rules = [
        (config.position in ("relative", "alibi2d", "conv"), f"it has no position={config.position}"),
        (config.patch_embed in ("conv_stem", "shifted"), f"it has no patch_embed={config.patch_embed}"),
        (config.stride != config.patch_hw, f"its patches do not overlap, patch_stride={config.patch_stride} lets them"),
        (config.attention != "joint", f"it has no attention={config.attention}"),
        (config.mlp not in ACTIVATIONS, f"it has no mlp={config.mlp}"),
        (config.pool not in POOLS, f"it has no pool={config.pool}"),
        (not config.out_projection, "it always has an out_projection"),
        (config.norm_placement != "pre", f"it has no norm_placement={config.norm_placement}"),
        (not config.residual, "it has no model.residual=false"),
        (config.norm == "batchnorm", "it has no norm=batchnorm"),
        (config.norm_eps != EPS, f"its norm_eps is {EPS}, not {config.norm_eps}"),
        (swiglu and config.pool == "map", "its pool=map has no mlp=swiglu"),
        (rotary and config.norm == "rmsnorm", f"its position={config.position} has no norm={config.norm}"),
        (rotary and config.mlp != "gelu", f"its position={config.position} has no mlp={config.mlp}"),
    ]
    return [reason for applies, reason in rules if applies]


def architecture(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """Return timm's name of the model, and the arguments with which it is the one that ``config`` describes."""
    arguments: dict[str, Any] = {
        "img_size": config.image_size,
        "patch_size": config.patch_size,
        "in_chans": config.in_channels,
        "embed_dim": config.dim,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": config.mlp_dim * (2 if config.mlp == "swiglu" else 1) / config.dim,  # timm counts gates, too
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "class_token": config.class_token,
        "global_pool": POOLS[config.pool],
    }
    if config.position in ROTARY:
        arguments |= {
            "num_reg_tokens": config.registers,
            "use_abs_pos_emb": config.embed_norm,  # for the bias of the patches, see weights_for
            "use_pre_transformer_norm": config.embed_norm,
            "use_post_transformer_norm": config.final_norm,
            "use_fc_norm": False,
            "rope_temperature": config.theta,
        }
        return ROTARY[config.position], arguments
    arguments |= {
        "reg_tokens": config.registers,
        "pos_embed": "none" if config.position == "none" and not config.embed_norm else "learn",
        "pre_norm": config.embed_norm,
        "final_norm": config.final_norm,
        "fc_norm": False,
        "act_layer": ACTIVATIONS[config.mlp],
    }
    if config.norm == "rmsnorm":
        arguments["norm_layer"] = "rmsnorm"
    if config.mlp == "swiglu":
        return "vit_giant_patch14_dinov2", arguments
    if config.layer_scale is not None:
        arguments["init_values"] = config.layer_scale
    return "vit_tiny_patch16_224", arguments


def weights_for(model: VisionTransformer) -> dict[str, Tensor]:
    """Return the weights of ``model`` under the names and in the shapes of its :func:`architecture`."""
    config, weights = model.config, {name: value.clone() for name, value in model.state_dict().items()}
    rotary = config.position in ROTARY
    shape = (config.dim, config.in_channels, *config.patch_hw)
    weights["patch_embed.proj.weight"] = weights["patch_embed.proj.weight"].reshape(shape)
    if model.pos_embed is not None:
        weights["pos_embed"] = model.position_table().detach().clone()
    if config.embed_norm:  # timm's patches then have no bias: add it with the positions
        table = weights.get("pos_embed", torch.zeros(1, config.tokens, config.dim))
        table[:, config.prefix :] += weights.pop(PATCH_BIAS)
        weights["pos_embed"] = table
    if (rotary or config.mlp == "swiglu") and config.layer_scale is None:
        ones = torch.ones(config.dim)
        weights |= {f"blocks.{i}.{scale}.gamma": ones.clone() for i in range(config.depth) for scale in ("ls1", "ls2")}
    if rotary:
        weights = _as_eva(weights)
    return weights


def _as_eva(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename layer scales, and stack the rotary frequencies of the blocks: (2, depth, heads, D/heads/2)."""
    renamed = {
        name.replace(".ls1.gamma", ".gamma_1").replace(".ls2.gamma", ".gamma_2"): weights[name] for name in weights
    }
    blocks = [renamed.pop(name) for name in list(renamed) if name.endswith("relation.frequencies")]
    return renamed | ({"rope.freqs": torch.stack(blocks, dim=1)} if blocks else {})


def write(source: ExportSource, path: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` into the new folder ``path``.

    Raises:
        ExportError: timm can't express the model; with all reasons.
    """
    model = source.classifier.model
    config = source.run.config.model
    if reasons := inexpressible(config):
        other = "--format onnx, torch_export and aoti take any model"
        raise ExportError(f"timm can't express this model: {listed(reasons, separator='; ')}. {other}")
    from safetensors.torch import save_file

    assert isinstance(model, VisionTransformer)
    path.mkdir()
    weights = {name: value.contiguous() for name, value in weights_for(model).items()}
    for name in ("head.weight", "head.bias"):  # their product is the logits
        weights[name] /= source.temperature
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(timm_config(source), indent=2) + "\n", encoding="utf-8")


def timm_config(source: ExportSource) -> dict[str, Any]:
    """Return timm's ``config.json``: architecture, classes, and the preparation of pictures."""
    data, (channels, height, width) = source.run.config.data, source.picture_shape
    name, arguments = architecture(source.run.config.model)

    def each(values: list[float]) -> list[float]:
        return list(values) * (channels if len(values) == 1 else 1)

    labels = "multi_label" if data.multi_label else "single_label"
    return source.extra_facts | {
        "problem_type": f"{labels}_classification",  # by which transformers takes a sigmoid or a softmax
        "architecture": name,
        "num_classes": len(source.run.classes),
        "label_names": source.run.classes,
        "model_args": arguments,
        "pretrained_cfg": {
            "num_classes": len(source.run.classes),
            "input_size": [channels, height, width],
            "fixed_input_size": True,
            "interpolation": "bicubic" if source.run.transform.from_files else "bilinear",
            "crop_pct": source.run.transform.crop_pct,
            "crop_mode": crop_mode(source.run.transform),
            "mean": each(data.mean),
            "std": each(data.std),
            "first_conv": "patch_embed.proj",
            "classifier": "head",
            "license": source.request.license,
        },
    }


def crop_mode(preparation: Preparation) -> str:
    """Return how timm gives a picture the size of the model; of a data set of arrays, one that has their ratio."""
    if preparation.from_files:
        return CROP_MODES[preparation.resize]
    (height, width), (high, wide) = height_width(preparation.size), preparation.ratio
    return "center" if height * wide == width * high else "squash"


def load(path: Path) -> Runtime:
    """Build the model by timm, from the folder alone, with the normalisation that its configuration names."""
    import timm

    model: Any = timm.create_model(f"local-dir:{path}", pretrained=True).eval()
    mean, std = (torch.tensor(model.pretrained_cfg[name]).reshape(1, -1, 1, 1) for name in ("mean", "std"))

    def run(pictures: Tensor) -> Tensor:
        return model((pictures / 255 - mean) / std)

    return Runtime(f"timm {timm.__version__}", run)
