"""What a W&B run has of its run folder: configuration, name and facts, without those that a private run keeps back."""

import hashlib
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrine.config.loggers import LONGEST_WANDB_NAME, WANDB_VARIABLES, WandbConfig
from vitrine.config.schema import TrainConfig
from vitrine.config.serialize import to_plain
from vitrine.runs import RunRecord

# Facts of run.json that are sent, so that runs can be compared from W&B's pages alone.
FACTS = ("epochs", "validation", "images", "parameters", "flops_per_image", "device", "command")


def completed(settings: WandbConfig, record: RunRecord) -> WandbConfig:
    """Set what has its default as W&B's variables say; a resumed run keeps its project and labels."""
    entity, project = record.facts.get("wandb_project") or (None, None)
    known = {"entity": entity, "project": project, **(record.facts.get("wandb_labels") or {})}
    values: dict[str, Any] = {
        name: known.get(name) or os.environ.get(variable) for name, variable in WANDB_VARIABLES.items()
    }
    if isinstance(values["tags"], str):
        values["tags"] = [tag for tag in values["tags"].split(",") if tag]
    default = WandbConfig()
    unset = [name for name, value in values.items() if value and getattr(settings, name) == getattr(default, name)]
    return replace(settings, **{name: values[name] for name in unset})


def config_values(config: TrainConfig, settings: WandbConfig) -> dict[str, Any]:
    """Return the configuration as plain values; a private run's has no paths in it."""
    values = to_plain(config)
    if settings.private:
        del values["paths"], values["data"]["root"]
        for section, key in (("model", "pretrained"), ("distill", "teacher")):
            if source := values[section][key]:  # a file, a run folder, or a name, which has no folders
                values[section][key] = Path(source).name
        return {name: _without_folders(value) for name, value in values.items()}
    return values


def _without_folders(value: Any, *, of_part: bool = False) -> Any:
    """Return plain values in which each text in the options of a part ends as a path does: ``masks.npz``."""
    if isinstance(value, dict):
        return {
            name: _without_folders(inner, of_part=of_part or str(name).endswith("options"))
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_without_folders(inner, of_part=of_part) for inner in value]
    return re.split(r"[/\\]", value.rstrip("/\\"))[-1] if of_part and isinstance(value, str) else value


def run_title(record: RunRecord, settings: WandbConfig, varies: str) -> str | None:
    """Return the run's display name; ``None`` lets W&B choose, as overrides of a private sweep may contain paths."""
    if settings.private and "/" in varies and not settings.name:
        return None
    return settings.name or shortened(varies or record.name)


def shortened(name: str) -> str:
    """Return a name of a run or group that W&B accepts: one that is too long ends with a hash of it."""
    if len(name) <= LONGEST_WANDB_NAME:
        return name
    return f"{name[: LONGEST_WANDB_NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def run_facts(record: RunRecord, settings: WandbConfig) -> dict[str, Any]:
    """Return what run.json has about code, data and machine; nothing for a private run."""
    if settings.private:
        return {}
    facts = record.facts
    values = {name: facts.get(name) for name in FACTS}
    values["commit"] = (facts.get("code") or {}).get("commit")
    values["images_per_second"] = (facts.get("speed") or {}).get("images_per_second")
    return {name: value for name, value in values.items() if value is not None}
