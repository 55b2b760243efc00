"""What a model does with an image, as the page of a run shows it."""

import pytest
import torch

from vitrine.explain.observed import observe
from vitrine.models import VisionTransformer, ViTConfig, attended_patches, rollout


@pytest.mark.parametrize("pool", ["cls", "mean", "map"])
@pytest.mark.parametrize("residual", [True, False])
def test_the_first_row_of_the_rollout_is_what_the_head_reads(pool, residual):
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch_size": 4, "in_channels": 1, "dim": 16, "heads": 2, "depth": 3, "num_classes": 4}
    model = VisionTransformer(
        ViTConfig(**sizes, pool=pool, class_token=pool == "cls", residual=residual, drop_path=0.0)
    ).eval()
    image = torch.randn(1, 8, 8)
    rolled = rollout(model.attention_maps(image[None]), residual=residual)[0].detach()
    patches = rolled[-4:]
    queries = model.intermediates(image[None])["pool.weights"][0, :, 0].detach() if pool == "map" else None
    read = rolled[0] if pool == "cls" else patches.mean(dim=0) if queries is None else queries.mean(dim=0) @ patches
    expected = torch.stack([read, *patches])[:, -4:]
    observed = observe(model, image).rollout
    torch.testing.assert_close(observed, expected / expected.sum(dim=1, keepdim=True))
    torch.testing.assert_close(attended_patches(model, image[None]).flatten(), observed[0])
