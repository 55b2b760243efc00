"""Fine-tuning: its configuration."""

from dataclasses import dataclass

from vitrine.config.fields import choice, number

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
