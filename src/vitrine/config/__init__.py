"""The schema of a configuration and its checks. Imports no torch, so that a mistake is reported within a second."""

from vitrine.config.model import ViTConfig, vit_config_from
from vitrine.config.model_faults import vit_faults
from vitrine.config.schema import EvalConfig, TrainConfig
from vitrine.config.validate import train_faults

__all__ = ["EvalConfig", "TrainConfig", "ViTConfig", "train_faults", "vit_config_from", "vit_faults"]
