"""Runs to export: a trained one of an older version, and untrained ones whose every weight matters."""

import shutil
from dataclasses import replace
from pathlib import Path

import torch

import vitrine
from helpers.running import ROOT
from vitrine.config.parts import code_of
from vitrine.config.serialize import to_plain
from vitrine.models import build_model
from vitrine.runs import RunRecord

TRAINED = ROOT / "tests" / "old_runs" / "runs" / "2026-11-22_19-27-16_single_9c9f"
STOPPED = ROOT / "tests" / "old_runs" / "runs" / "2026-11-22_19-27-26_stopped_5abd"

# One configuration after the other differs in as much as possible; together they have every choice of every part.
CONFIGURATIONS = [
    {"position": "none", "patch_embed": "linear", "mlp": "relu", "final_norm": False},
    {"position": "learned", "class_token": True, "pool": "cls", "registers": 2, "norm": "rmsnorm", "qk_norm": True},
    {"position": "learned2d", "attention": "headwise", "mlp": "swiglu", "mlp_ratio": 2.0, "layer_scale": 0.5},
    {"position": "sincos1d", "attention": "local", "patch_embed": "shifted", "pool": "map"},
    {"position": "sincos2d", "norm_placement": "post", "embed_norm": True, "out_projection": False},
    {
        "position": "relative",
        "residual": False,
        "drop_path": 0.0,
        "norm_placement": "sandwich",
        "class_token": True,
        "qkv_bias": False,
    },
    {"position": "rope", "attention": "local", "registers": 1, "mlp": "gelu_tanh"},
    {"position": "rope_mixed", "attention": "headwise", "class_token": True, "norm": "batchnorm", "qk_norm": True},
    {"position": "alibi2d", "patch_embed": "conv_stem", "pool": "map", "registers": 3, "in_channels": 3},
    {"position": "conv", "patch_stride": 1, "depth": 2, "attention": "local", "norm_eps": 1e-3, "in_channels": 3},
]


def trained_run(folder: Path) -> Path:
    """Copy the trained run, of the bundled digits, to ``folder``."""
    return Path(shutil.copytree(TRAINED, folder / "run"))


def untrained_run(folder: Path, **model) -> Path:
    """Make a finished run of the digits in ``folder`` whose model has these fields and large random weights."""
    config = vitrine.compose(["model=vit_nano", "depth=1", "patch=2", "name=untrained"])
    config.model = replace(config.model, **({"dim": 12, "heads": 3} | model))
    config.data.image_size = config.model.image_size
    channels = config.data.in_channels = config.model.in_channels
    config.data.mean, config.data.std = [0.4, 0.5, 0.3][:channels], [0.3, 0.2, 0.25][:channels]
    record = RunRecord.at(folder)
    classes = [str(index) for index in range(10)]
    record.update(id=record.name, status="finished", classes=classes, parameters=1, images={"train": 9, "val": 1})
    record.update(parts=code_of(config))
    record.write_config(to_plain(config))
    record.write_metrics({"val/acc": 0.5})
    weights = {f"model.{name}": value for name, value in randomised(build_model(config.model)).state_dict().items()}
    torch.save({"state_dict": weights, "config": to_plain(config)}, record.best)
    return folder


def randomised(model: torch.nn.Module) -> torch.nn.Module:
    """Give every parameter a value that shows where it is used: gains near 1, everything else away from 0."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_gain = "norm" in name and name.endswith("weight")
        parameter.data = 1 + 0.1 * noise if is_gain else 0.3 * noise
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.fill_(0.5)
    return model
