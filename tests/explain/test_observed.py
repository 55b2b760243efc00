"""What a model does with an image, as the page of a run shows it."""

import pytest
import torch

from vitrine.explain.observed import observe
from vitrine.models import VisionTransformer, ViTConfig, attended_patches


@pytest.mark.parametrize("pool", ["cls", "mean", "map"])
@pytest.mark.parametrize("residual", [True, False])
def test_the_first_row_of_the_rollout_is_what_the_head_reads(pool, residual):
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch_size": 4, "in_channels": 1, "dim": 16, "heads": 2, "depth": 3, "num_classes": 4}
    model = VisionTransformer(
        ViTConfig(**sizes, pool=pool, class_token=pool == "cls", residual=residual, drop_path=0.0)
    ).eval()
    image = torch.randn(1, 8, 8)
    shares = attended_patches(model, image[None]).flatten()
    torch.testing.assert_close(observe(model, image).rollout[0], shares / shares.sum())
