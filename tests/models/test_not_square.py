"""Images and patches that are not square: what turning an image on its side must not change."""

from dataclasses import replace

import pytest
import torch

from vitrine.models import VisionTransformer, attended_patches
from vitrine.models.pos_embed import Rope, sincos2d


def turned_weights(model):
    """The weights with which a model of images on their side computes what ``model`` computes."""
    (rows, columns), weights = model.config.grid, dict(model.state_dict())
    for name, values in weights.items():
        if name == "patch_embed.proj.weight":
            filters = values.reshape(model.config.dim, model.config.in_channels, *model.config.patch_hw).mT
            weights[name] = filters.flatten(1) if values.ndim == 2 else filters
        elif name == "pos_embed" and model.config.position == "learned":
            weights[name] = values.unflatten(1, (rows, columns)).transpose(1, 2).flatten(1, 2)
        elif name == "pos_embed":  # learned2d
            weights[name] = torch.cat([values[rows:], values[:rows]])
        elif name.endswith("relation.table") or name == "pos_conv.proj.weight":
            weights[name] = values.mT
        elif name.endswith("relation.frequencies"):
            weights[name] = values.flip(0)
    return weights


@pytest.mark.parametrize("patch_embed", ["conv", "linear"])
@pytest.mark.parametrize("position", ["none", "learned", "learned2d", "relative", "rope_mixed", "alibi2d", "conv"])
def test_a_turned_model_gives_of_turned_images_what_the_model_gives(
    small, randomise, images_for, position, patch_embed
):
    sizes = {"image_size": [8, 24], "patch_size": [4, 6], "class_token": False, "pool": "mean"}
    config = small(position=position, patch_embed=patch_embed, **sizes)
    model = randomise(VisionTransformer(config)).eval()
    on_its_side = VisionTransformer(replace(config, image_size=[24, 8], patch_size=[6, 4])).double().eval()
    on_its_side.load_state_dict(turned_weights(model))
    images = images_for(config)
    assert model.config.grid == (2, 4)
    assert on_its_side.config.grid == (4, 2)
    torch.testing.assert_close(on_its_side(images.mT), model(images), rtol=0, atol=1e-12)


@pytest.mark.parametrize("frequencies", ["moco_v3", "big_vision"])
def test_sincos2d_of_a_turned_grid_has_rows_and_columns_exchanged(small, frequencies):
    config = small(class_token=False, pool="mean", position="sincos2d", sincos_frequencies=frequencies)
    table, turned = (sincos2d(replace(config, image_size=size)) for size in ([8, 20], [20, 8]))
    columns, rows = table.unflatten(1, (2, 5)).transpose(1, 2).flatten(1, 2).chunk(2, dim=2)
    assert torch.equal(turned, torch.cat([rows, columns], dim=2))


def test_rope_of_a_turned_grid_has_rows_and_columns_exchanged():
    upright, turned = Rope(8, (2, 5)), Rope(8, (5, 2))
    columns, rows = upright.cos.unflatten(0, (2, 5)).transpose(0, 1).flatten(0, 1).chunk(2, dim=1)
    assert torch.equal(turned.cos, torch.cat([rows, columns], dim=1))


@pytest.mark.parametrize("position", ["learned", "learned2d", "relative"])
def test_a_model_is_resized_to_another_ratio_and_back(small, images_for, position):
    model = VisionTransformer(small(position=position, image_size=[12, 20], registers=1)).double()
    other = model.resized(image_size=[24, 20], patch_size=[4, 2])
    assert other.config.grid == (6, 10)
    assert other(images_for(other.config)).shape == (3, 7)
    again = other.resized(image_size=[12, 20], patch_size=4)
    assert again.config == model.config
    for name, values in model.state_dict().items():
        assert again.state_dict()[name].shape == values.shape, name


def test_rows_of_learned2d_are_resized_as_rows_and_columns_as_columns(small, randomise, images_for):
    """Its table has another shape where the grid is not square."""
    model = randomise(VisionTransformer(small(position="learned2d")))
    wide = model.resized(image_size=[16, 28])
    rows, columns = wide.pos_embed.split((4, 7))
    assert torch.equal(rows, model.pos_embed[0])
    assert torch.equal(model.resized(image_size=28).pos_embed[1], columns)
    assert torch.equal(wide.resized(image_size=16).pos_embed[0], model.pos_embed[0])
    assert wide(images_for(wide.config)).isfinite().all()


def test_the_attention_of_patches_is_read_in_rows(small, randomise, images_for):
    model = randomise(VisionTransformer(small(image_size=[8, 24], patch_size=[4, 6]))).eval()
    maps = attended_patches(model, images_for(model.config))
    assert maps.shape == (3, 2, 4)
    torch.testing.assert_close(maps.sum(dim=(1, 2)), torch.ones(3, dtype=torch.float64))
