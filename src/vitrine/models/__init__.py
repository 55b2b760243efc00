"""The models: tensors and modules only. Knows no Lightning, no Hydra, no files."""

from torch import nn

from vitrine.config import ViTConfig
from vitrine.models.attention_rollout import attended_patches, rollout, rollout_problem
from vitrine.models.user_parts import user_model
from vitrine.models.vit import VisionTransformer

__all__ = ["VisionTransformer", "attended_patches", "build_model", "rollout", "rollout_problem"]


def build_model(config: ViTConfig) -> nn.Module:
    """Return the model that ``config`` describes: a Vision Transformer, or a whole model of the user's.

    It maps normalised images (B, C, H, W) to logits (B, num_classes).

    Raises:
        ConfigError: no Vision Transformer can be built from ``config``.
        PartError: a user's part or model cannot be used.
    """
    own = user_model(config)
    return VisionTransformer(config) if own is None else own
