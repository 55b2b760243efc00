import pytest
import torch
from helpers.published import PUBLISHED

from vitrine.config.model import ViTConfig
from vitrine.models import VisionTransformer

MNIST = {"image_size": 28, "in_channels": 1, "num_classes": 10}
T1 = MNIST | {
    "patch_size": 7,
    "dim": 64,
    "depth": 3,
    "heads": 8,
    "mlp_ratio": 32.0,
    "mlp": "relu",
    "norm_placement": "post",
    "norm_eps": 1e-5,
    "final_norm": False,
}
T2 = MNIST | {
    "patch_size": 4,
    "dim": 8,
    "depth": 2,
    "heads": 2,
    "position": "sincos1d",
    "attention": "headwise",
    "out_projection": False,
    "final_norm": False,
}
T3 = MNIST | {
    "image_size": 32,
    "patch_size": 16,
    "dim": 9,
    "depth": 3,
    "heads": 3,
    "position": "sincos1d",
    "final_norm": False,
}
T4 = {"image_size": 224, "patch_size": 16, "in_channels": 3, "num_classes": 1000, "dim": 768, "depth": 12, "heads": 12}
T5 = {
    "image_size": 64,
    "patch_size": 8,
    "in_channels": 3,
    "num_classes": 10,
    "dim": 256,
    "depth": 4,
    "heads": 4,
    "embed_norm": True,
    "final_norm": False,
}


@pytest.mark.parametrize(
    ("choices", "parameters"),
    [
        pytest.param(T1, 848_458, id="T1"),
        pytest.param(T1 | {"num_classes": 100}, 854_308, id="T1 with 100 classes"),
        pytest.param(T2, 1_642, id="T2"),
        pytest.param(T3, 5_689, id="T3"),
        pytest.param(T4, 86_567_656, id="T4, ViT-B/16"),
        pytest.param(T5, 3_228_426, id="T5"),
    ],
)
def test_each_tutorial_has_a_configuration_with_as_many_parameters(choices, parameters):
    with torch.device("meta"):
        model = VisionTransformer(ViTConfig(**(PUBLISHED | choices)))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
