from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from vitrine.models import VisionTransformer
from vitrine.models.patch_embed import (
    ConvPatchEmbed,
    ConvStemPatchEmbed,
    LinearPatchEmbed,
    ShiftedPatchEmbed,
    build_patch_embed,
)

# (image, patch, stride, patches along a side): side by side, overlapping, odd, a single one
SIZES = [(16, 4, None, 4), (13, 4, 3, 4), (9, 5, 2, 3), (11, 5, 1, 7), (6, 6, None, 1)]


def crop(image, row, column, size, stride):
    """The patch of one image at a place of the grid."""
    return image[:, row * stride : row * stride + size, column * stride : column * stride + size]


def moved(image, down, right):
    """The image, moved by so many pixels, zeros coming in from the edge."""
    _, height, width = image.shape
    result = torch.zeros_like(image)
    for y in range(max(0, down), min(height, height + down)):
        for x in range(max(0, right), min(width, width + right)):
            result[:, y, x] = image[:, y - down, x - right]
    return result


@pytest.mark.parametrize("kind", ["conv", "linear"])
@pytest.mark.parametrize(("image", "patch", "stride", "grid"), SIZES)
def test_each_token_is_a_linear_map_of_its_own_patch_in_raster_order(
    small, images_for, kind, image, patch, stride, grid
):
    config = small(
        image_size=image, patch_size=patch, patch_stride=stride, in_channels=2, dim=6, patch_embed=kind, heads=1
    )
    embed = build_patch_embed(config).double()
    images = images_for(config, 2)
    tokens = embed(images)
    assert tokens.shape == (2, grid**2, 6)
    assert config.grid == (grid, grid)
    weight = embed.proj.weight.flatten(1)
    for index in range(grid**2):
        pixels = crop(images[1], *divmod(index, grid), patch, stride or patch).flatten()
        torch.testing.assert_close(tokens[1, index], weight @ pixels + embed.proj.bias, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("image", "patch", "stride", "grid"), SIZES)
def test_linear_is_conv_with_its_weights_reshaped(small, images_for, image, patch, stride, grid):
    config = small(image_size=image, patch_size=patch, patch_stride=stride)
    sizes = (config.in_channels, config.dim, patch, stride)
    conv, linear = ConvPatchEmbed(*sizes).double(), LinearPatchEmbed(*sizes).double()
    linear.load_state_dict({"proj.weight": conv.proj.weight.flatten(1), "proj.bias": conv.proj.bias})
    images = images_for(config)
    torch.testing.assert_close(linear(images), conv(images), rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize(("image", "patch", "stride", "grid"), SIZES)
def test_shifted_sees_each_patch_and_four_moved_by_half_of_it(
    small, randomise, images_for, norm, image, patch, stride, grid
):
    config = small(image_size=image, patch_size=patch, patch_stride=stride, in_channels=2, norm=norm, norm_eps=0.01)
    embed = randomise(build_patch_embed(replace(config, patch_embed="shifted")))
    images = images_for(config, 2)
    tokens = embed(images)
    assert tokens.shape == (2, grid**2, 24)
    half = patch // 2
    diagonals = [(half, half), (half, -half), (-half, half), (-half, -half)]
    views = [images[1], *(moved(images[1], down, right) for down, right in diagonals)]
    for index in range(grid**2):
        place = divmod(index, grid)
        seen = torch.cat([crop(view, *place, patch, stride or patch).flatten() for view in views])
        if norm == "layernorm":
            seen = seen - seen.mean()
        seen = seen / (seen.square().mean() + 0.01).sqrt() * embed.norm.weight
        if norm == "layernorm":
            seen = seen + embed.norm.bias
        expected = embed.proj.weight @ seen + embed.proj.bias
        torch.testing.assert_close(tokens[1, index], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("patch", "channels"),
    [(2, [3, 24]), (4, [3, 12, 24]), (8, [3, 6, 12, 24])],
)
def test_conv_stem_halves_the_image_and_doubles_the_channels_at_each_step(small, images_for, patch, channels):
    config = small(image_size=3 * patch, patch_size=patch, patch_embed="conv_stem")
    embed = build_patch_embed(config).double()
    *steps, last = embed.proj
    x = images_for(config, 2)
    for step, (inputs, outputs) in zip(steps, pairwise(channels), strict=True):
        conv, batch_norm, relu = step
        assert (conv.kernel_size, conv.stride, conv.bias) == ((3, 3), (2, 2), None)
        assert isinstance(batch_norm, nn.BatchNorm2d)
        assert isinstance(relu, nn.ReLU)
        assert conv.weight.shape == (outputs, inputs, 3, 3)
        side = x.shape[2]
        x = step(x)
        assert x.shape == (2, outputs, side // 2, side // 2)
    assert (last.kernel_size, last.weight.shape[:2]) == ((1, 1), (24, 24))
    assert last.bias is not None
    torch.testing.assert_close(embed(images_for(config, 2)), last(x).flatten(2).transpose(1, 2))


@pytest.mark.parametrize("patch", [2, 4, 8])
def test_a_token_of_conv_stem_sees_its_patch_and_the_pixels_before_it(small, images_for, patch):
    config = small(image_size=3 * patch, patch_size=patch, patch_embed="conv_stem")
    embed = build_patch_embed(config).double().eval()
    images = images_for(config, 1).requires_grad_()
    tokens = embed(images)
    assert tokens.shape == (1, 9, 24)
    for index in range(9):
        row, column = (patch * place for place in divmod(index, 3))
        (seen,) = torch.autograd.grad(tokens[0, index].square().sum(), images, retain_graph=True)
        rows, columns = seen[0].abs().sum(dim=0).nonzero().unbind(1)
        assert row - patch < rows.min() <= row <= rows.max() < row + patch
        assert column - patch < columns.min() <= column <= columns.max() < column + patch


@pytest.mark.parametrize(
    ("kind", "embed"),
    [
        ("conv", ConvPatchEmbed),
        ("linear", LinearPatchEmbed),
        ("conv_stem", ConvStemPatchEmbed),
        ("shifted", ShiftedPatchEmbed),
    ],
)
def test_the_model_embeds_patches_as_its_configuration_says(small, images_for, kind, embed):
    config = small(patch_embed=kind)
    model = VisionTransformer(config).double().eval()
    assert type(model.patch_embed) is embed
    images = images_for(config)
    assert torch.equal(model.intermediates(images, "patches")["patches"], model.patch_embed(images))
