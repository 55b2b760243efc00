"""Checks of fine-tuning: keys that exclude each other."""

from collections.abc import Iterator
from dataclasses import fields

from vitrine.config.finetune import FinetuneConfig
from vitrine.config.model import ViTConfig
from vitrine.config.parts import is_dotted
from vitrine.config.schema import TrainConfig
from vitrine.errors import Fault
from vitrine.text import as_override


def finetune_faults(config: TrainConfig) -> Iterator[Fault]:
    """Yield combinations that exclude each other."""
    given, model = config.finetune, config.model
    if is_dotted(model.name):
        problem = f"needs the layers of a Vision Transformer, which model={model.name} may lack"
        for field in fields(FinetuneConfig):
            value = getattr(given, field.name)
            if value != field.default:
                key = "finetune" if field.name == "name" else f"finetune.{field.name}"
                yield Fault(key, as_override(value), problem, f"{key}={as_override(field.default)}")
        return
    if given.name != "full" and model.pretrained is None:
        problem = "freezes pretrained weights, and there are none: set model.pretrained to a name, a file or a run"
        yield Fault("finetune", given.name, problem)
    for key in ("patch_dropout", "embed_dropout"):
        if given.name != "full" and (rate := getattr(model, key)) > 0:
            problem = f"acts on the embedded patches, which finetune={given.name} freezes: they stay as in evaluation"
            yield Fault(f"model.{key}", f"{rate:g}", problem, f"model.{key}=0.0")
    yield from _keys_of_other_choices(given, model)
    if given.name == "linear_probe" and config.optimizer.name == "muon":
        problem = "trains the matrices of blocks, which finetune=linear_probe freezes"
        yield Fault("optimizer", "muon", problem, "optimizer=adamw")
    if given.warmup is not None and is_dotted(config.schedule.name):
        problem = f"is not passed to schedule={config.schedule.name}"
        yield Fault("finetune.warmup", str(given.warmup), problem, "finetune.warmup=null")


def _keys_of_other_choices(config: FinetuneConfig, model: ViTConfig) -> Iterator[Fault]:
    if config.name == "last_blocks" and config.blocks is None:
        yield Fault("finetune.blocks", "null", "is required by finetune=last_blocks", "finetune.blocks=2")
    elif config.blocks is not None and config.name != "last_blocks":
        problem = f"belongs to last_blocks, not to finetune={config.name}"
        yield Fault("finetune.blocks", str(config.blocks), problem, "finetune=last_blocks")
    elif config.blocks is not None and config.blocks > model.depth:
        problem = f"must be <= {model.depth}, the number of blocks"
        yield Fault("finetune.blocks", str(config.blocks), problem, f"finetune.blocks={model.depth}")
    if config.name == "linear_probe":
        if config.layer_decay < 1:
            problem = "needs several layers, and finetune=linear_probe trains the head alone"
            yield Fault("finetune.layer_decay", f"{config.layer_decay:g}", problem, "finetune.layer_decay=1.0")
        if config.warmup is not None:
            problem = "is that of the layers before the head, which finetune=linear_probe freezes"
            warmup = f"{config.warmup:g}"
            yield Fault("finetune.warmup", warmup, problem, f"finetune.warmup=null schedule.warmup={warmup}")
