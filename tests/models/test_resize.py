from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from vitrine.config.model import PATCH_EMBEDS, POSITIONS
from vitrine.errors import ConfigError
from vitrine.models import VisionTransformer
from vitrine.models.resize import resize_grid, resize_patches, resize_positions, resize_weights

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.fixture
def trained(small, randomise):
    """A model of 3 by 3 patches, 4 pixels wide, with random weights and statistics; float64."""

    def make(**changes):
        model = randomise(VisionTransformer(small(**({"image_size": 12} | changes))))
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer.copy_(torch.rand(buffer.shape, generator=torch.Generator().manual_seed(4)))
        return model.eval()

    return make


def shapes(model):
    return {name: value.shape for name, value in model.state_dict().items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("position", POSITIONS)
def test_a_model_resized_to_its_own_size_is_the_same_to_the_last_bit(trained, images_for, position, dtype):
    model = trained(position=position, registers=2).to(dtype)
    same = model.resized(image_size=12, patch_size=4, patch_stride=4)
    for (name, value), other in zip(model.state_dict().items(), same.state_dict().values(), strict=True):
        assert value.dtype is other.dtype is dtype
        assert torch.equal(value, other), name
    images = images_for(model.config).to(dtype)
    assert torch.equal(model(images), same(images))


@pytest.mark.parametrize("grid", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("position", POSITIONS)
def test_a_resized_model_has_the_shapes_of_a_new_one_of_that_size(trained, images_for, position, grid):
    model = trained(position=position, registers=1)
    config = replace(model.config, image_size=4 * grid)
    resized = model.resized(image_size=4 * grid)
    assert resized.config == config
    assert shapes(resized) == shapes(VisionTransformer(config))
    assert resized(images_for(config)).isfinite().all()


def test_a_table_that_no_rule_resizes_is_refused_by_the_name_of_its_scheme(small):
    config = small(position="new")
    with pytest.raises(ConfigError, match=r"position=new\n +can't be resized"):
        resize_weights({"pos_embed": torch.zeros(1, 16, 24)}, config, replace(config, image_size=32))


@pytest.mark.parametrize("patch_embed", PATCH_EMBEDS)
def test_images_of_another_size_need_no_other_patches(trained, patch_embed):
    model = trained(patch_embed=patch_embed)
    embed, other = model.patch_embed, model.resized(image_size=20).patch_embed
    image = torch.randn(1, 3, 20, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tokens = other(image).unflatten(1, (5, 5))
    middle = embed(image[:, :, 4:16, 4:16])[:, 4]  # far enough from the edge, whose zeros some embeddings see
    torch.testing.assert_close(tokens[:, 2, 2], middle, rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", POSITIONS)
def test_what_has_no_size_is_kept_to_the_last_bit(trained, position):
    model = trained(position=position, patch_embed="conv_stem", registers=2, pool="map")
    resized = model.resized(image_size=20).state_dict()
    sized = ("pos_embed", "relation.table")
    for name, value in model.state_dict().items():
        assert name.endswith(sized) or torch.equal(resized[name], value), name


@pytest.mark.parametrize("prefix", [{}, {"registers": 2}, {"class_token": False, "registers": 2, "pool": "mean"}])
@pytest.mark.parametrize("grid", [2, 5])
def test_places_of_the_prefix_are_kept_to_the_last_bit(trained, prefix, grid):
    model = trained(**prefix)
    before = model.config.prefix
    assert before
    assert torch.equal(model.resized(image_size=4 * grid).pos_embed[:, :before], model.pos_embed[:, :before])


@pytest.mark.parametrize("position", ["sincos1d", "sincos2d", "rope", "alibi2d", "rope_mixed", "none"])
@pytest.mark.parametrize("grid", [2, 5])
def test_fixed_positions_are_those_of_a_new_model(small, position, grid):
    config = small(image_size=12, position=position)
    resized = VisionTransformer(config).resized(image_size=4 * grid)
    new = VisionTransformer(replace(config, image_size=4 * grid))
    assert [name for name, _ in resized.named_buffers()] == [name for name, _ in new.named_buffers()]
    for (name, value), other in zip(resized.named_buffers(), new.buffers(), strict=True):
        assert torch.equal(value, other), name


@pytest.mark.parametrize("grid", [2, 4, 5, 7])
def test_learned2d_is_resized_to_what_its_sums_are_resized_to(trained, grid):
    model = trained(position="learned2d")
    resized = model.resized(image_size=4 * grid)
    expected = resize_positions(model.position_table(), 1, model.config.grid, (grid, grid))
    torch.testing.assert_close(resized.position_table(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("grid", [4, 5, 8])
def test_relative_keeps_the_bias_of_no_offset_in_the_middle_as_it_grows(trained, grid):
    model = trained(position="relative")
    resized = model.resized(image_size=4 * grid)
    for before, after in zip(model.blocks, resized.blocks, strict=True):
        middle = after.attn.relation.table[:, grid - 1, grid - 1]
        torch.testing.assert_close(middle, before.attn.relation.table[:, 2, 2], rtol=0, atol=1e-6)


@pytest.mark.parametrize("grid", [2, 5])
def test_relative_stays_a_mirror_image_where_it_was_one(trained, grid):
    model = trained(position="relative")
    for block in model.blocks:
        table = block.attn.relation.table.data
        table += table.flip(1, 2)
    for block in model.resized(image_size=4 * grid).blocks:
        table = block.attn.relation.table
        torch.testing.assert_close(table, table.flip(1, 2), rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_a_table_that_is_the_same_everywhere_stays_so(size):
    table = torch.tensor([0.5, -2.0]).reshape(1, 2, 1, 1)
    torch.testing.assert_close(resize_grid(table.expand(1, 2, 3, 3), size, size), table.expand(1, 2, size, size))


def test_a_resized_table_does_not_mix_rows_with_columns_or_channels():
    table = torch.zeros(1, 1 + 9, 2)
    table[0, 0] = 7.0
    table[0, 1:, 0] = torch.arange(3.0).repeat_interleave(3)  # channel 0 tells the row, channel 1 the column
    table[0, 1:, 1] = 10 * torch.arange(3.0).repeat(3)
    resized = resize_positions(table, 1, (3, 3), (5, 5))
    assert (resized[0, 0] == 7).all()
    rows, columns = resized[0, 1:].unflatten(0, (5, 5)).unbind(2)
    torch.testing.assert_close(rows, rows[:, :1].expand(5, 5))
    torch.testing.assert_close(columns, columns[:1].expand(5, 5))
    torch.testing.assert_close(10 * rows[:, 0], columns[0])
    assert (rows[:, 0].diff() > 0).all()


def enlarged(images, old, new):
    """Each patch of the images resized by itself."""
    count, channels, side = images.shape[:3]
    grid = side // old
    patches = images.reshape(count, channels, grid, old, grid, old).permute(0, 2, 4, 1, 3, 5)
    patches = F.interpolate(patches.flatten(0, 2), size=(new, new), mode="bicubic", antialias=True)
    patches = patches.unflatten(0, (count, grid, grid)).permute(0, 3, 1, 4, 2, 5)
    return patches.reshape(count, channels, grid * new, grid * new)


@pytest.mark.parametrize("kind", ["conv", "linear"])
@pytest.mark.parametrize(("old", "new"), [(4, 5), (4, 8), (3, 7), (5, 6), (1, 4)])
def test_a_patch_and_its_weights_enlarged_give_the_same_token(small, randomise, images_for, kind, old, new):
    config = small(patch_size=old, image_size=3 * old, patch_embed=kind)
    model = randomise(VisionTransformer(config))
    resized = model.resized(patch_size=new, image_size=3 * new)
    images = images_for(config)
    tokens = resized.patch_embed(enlarged(images, old, new))
    torch.testing.assert_close(tokens, model.patch_embed(images), rtol=0, atol=1e-9)
    torch.testing.assert_close(resized(enlarged(images, old, new)), model(images), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("old", "new"), [(8, 4), (7, 3), (5, 4)])
def test_shrunk_weights_come_as_near_to_the_old_ones_as_any(noise, old, new):
    weight = noise(2, 3, old, old)
    shrunk = resize_patches(weight, new)
    pixels = torch.eye(old**2, dtype=torch.float64).reshape(-1, 1, old, old)
    shrinking = F.interpolate(pixels, size=(new, new), mode="bicubic", antialias=True).flatten(1)

    def miss(candidate):
        return (candidate.flatten(2) @ shrinking.T - weight.flatten(2)).square().sum()

    assert shrunk.shape == (2, 3, new, new)
    for seed in range(10):
        assert miss(shrunk) < miss(shrunk + 1e-3 * noise(2, 3, new, new, seed=seed))


@pytest.mark.parametrize("new", [2, 3, 8])
def test_linear_is_still_conv_after_both_are_resized(trained, images_for, new):
    conv, linear = trained(), trained(patch_embed="linear")
    weights = conv.state_dict()
    linear.load_state_dict(weights | {"patch_embed.proj.weight": weights["patch_embed.proj.weight"].flatten(1)})
    conv, linear = (model.resized(patch_size=new, image_size=5 * new) for model in (conv, linear))
    images = images_for(conv.config)
    torch.testing.assert_close(linear(images), conv(images), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("patch_embed", "patch_size"), [("shifted", 6), ("conv_stem", 2)])
def test_patches_that_cannot_be_resized_are_refused_with_those_that_can(trained, patch_embed, patch_size):
    with pytest.raises(ConfigError) as refusal:
        trained(patch_embed=patch_embed).resized(patch_size=patch_size)
    (fault,) = refusal.value.faults
    assert (fault.key, fault.given, fault.nearest) == ("patch_size", str(patch_size), "patch_size=4")
    assert patch_embed in fault.problem
    assert "conv and linear" in fault.problem


@pytest.mark.parametrize(
    ("sizes", "key"),
    [
        ({"image_size": 13}, "patch_size"),
        ({"patch_size": 5}, "patch_size"),
        ({"patch_stride": 3}, "patch_stride"),
        ({"image_size": 0}, "image_size"),
        ({"patch_size": 0}, "patch_size"),
        ({"patch_stride": 0}, "patch_stride"),
    ],
)
def test_sizes_of_which_there_can_be_no_model_are_refused(trained, sizes, key):
    with pytest.raises(ConfigError) as refusal:
        trained().resized(**sizes)
    assert [fault.key for fault in refusal.value.faults] == [key]


def test_sizes_that_are_not_named_stay_as_they_are(trained):
    model = trained(patch_stride=2)
    assert model.resized(image_size=16).config == replace(model.config, image_size=16)
    assert model.resized(patch_size=2).config == replace(model.config, patch_size=2)
    assert model.resized(patch_stride=1).config == replace(model.config, patch_stride=1)
    assert model.resized().config == model.config


def test_other_strides_take_another_number_of_patches(trained, images_for):
    model = trained()
    resized = model.resized(patch_stride=2)
    images = images_for(model.config)
    tokens = resized.patch_embed(images)
    assert tokens.shape == (3, 25, 24)
    there = tokens.unflatten(1, (5, 5))[:, ::2, ::2].flatten(1, 2)
    torch.testing.assert_close(there, model.patch_embed(images), rtol=0, atol=1e-12)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
def test_device_precision_and_mode_stay_as_they_are(trained, device, dtype, training):
    model = trained(position="relative", patch_embed="conv_stem").to(device, dtype).train(training)
    resized = model.resized(image_size=20)
    for value in [*resized.parameters(), *resized.buffers()]:
        assert value.device.type == device
        assert value.dtype in (dtype, torch.int64)
    assert all(module.training == training for module in resized.modules())


def test_the_model_that_is_resized_stays_as_it_is(trained):
    model = trained(position="relative")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    resized = model.resized(image_size=20)
    for parameter in resized.parameters():
        parameter.data += 1
    assert model.config.image_size == 12
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_nothing_but_sizes_can_be_changed_by_resizing(trained):
    model = trained()
    with pytest.raises(ValueError, match="only image_size, patch_size and patch_stride can be resized"):
        resize_weights(model.state_dict(), model.config, replace(model.config, image_size=20, registers=1))
