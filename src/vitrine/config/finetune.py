"""Fine-tuning: its configuration, and the checks that need no data and no torch."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from vitrine.config.fields import choice, number
from vitrine.config.model import ViTConfig
from vitrine.config.parts import is_dotted
from vitrine.errors import Fault
from vitrine.text import as_override

TRAINED = ("full", "linear_probe", "last_blocks")


@dataclass
class FinetuneConfig:
    """Which weights are trained, and at which learning rates. The rest is frozen, as it would be in evaluation.

    Layers are numbered as in timm (training/finetune.py): patches and positions, each block, the head with
    an attention pool.

    Attributes:
        name: the weights that are trained: all of them (``full``), those of the head (``linear_probe``), or of the last
            blocks, the final norm, the pool and the head (``last_blocks``).
        blocks: number of blocks that ``last_blocks`` trains.
        layer_decay: learning rate of a layer relative to that of the layer after it.
        head_lr: learning rate of the head's layer; null is that of the optimiser.
        warmup: fraction of all steps in which the learning rates of all other layers rise; null is
            ``schedule.warmup``. Longer than the head's, it lets a new head learn before it changes the features.
    """

    name: str = choice(TRAINED, "full")
    blocks: int | None = number(None, ge=1, le=1000)
    layer_decay: float = number(1.0, gt=0, le=1)
    head_lr: float | None = number(None, gt=0, le=100)
    warmup: float | None = number(None, ge=0, lt=1)

    @property
    def by_layer(self) -> bool:
        """Whether learning rates differ between layers."""
        return self.layer_decay < 1 or self.head_lr is not None or self.warmup is not None


def finetune_faults(config: FinetuneConfig, model: ViTConfig, optimizer: str, schedule: str) -> Iterator[Fault]:
    """Yield combinations that exclude each other.

    Args:
        config: how the model is trained.
        model: the model.
        optimizer: ``optimizer.name``.
        schedule: ``schedule.name``.
    """
    if is_dotted(model.name):
        problem = f"needs the layers of a Vision Transformer, which model={model.name} may lack"
        for field in fields(FinetuneConfig):
            value = getattr(config, field.name)
            if value != field.default:
                key = "finetune" if field.name == "name" else f"finetune.{field.name}"
                yield Fault(key, as_override(value), problem, f"{key}={as_override(field.default)}")
        return
    if config.name != "full" and model.pretrained is None:
        problem = "freezes pretrained weights, and there are none: set model.pretrained to a name, a file or a run"
        yield Fault("finetune", config.name, problem)
    for key in ("patch_dropout", "embed_dropout"):
        if config.name != "full" and (rate := getattr(model, key)) > 0:
            problem = f"acts on the embedded patches, which finetune={config.name} freezes: they stay as in evaluation"
            yield Fault(f"model.{key}", f"{rate:g}", problem, f"model.{key}=0.0")
    yield from _keys_of_other_choices(config, model)
    if config.name == "linear_probe" and optimizer == "muon":
        yield Fault(
            "optimizer", "muon", "trains the matrices of blocks, which finetune=linear_probe freezes", "optimizer=adamw"
        )
    if config.warmup is not None and is_dotted(schedule):
        yield Fault(
            "finetune.warmup", str(config.warmup), f"is not passed to schedule={schedule}", "finetune.warmup=null"
        )


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
