"""The models: tensors and modules only. Knows no Lightning, no Hydra, no files."""

from vitrine.models.attention_rollout import looked_at, rollout
from vitrine.models.vit import VisionTransformer

__all__ = ["VisionTransformer", "looked_at", "rollout"]
