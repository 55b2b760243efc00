import pytest
import timm
import torch
from helpers.published import PUBLISHED
from timm.layers import RmsNorm, SwiGLUPacked, build_sincos2d_pos_embed, resample_patch_embed
from timm.layers.pos_embed_rel import resize_rel_pos_bias_table_levit
from timm.models import beit, eva, vision_transformer
from torch import nn

from vitrine.config.model import ViTConfig
from vitrine.config.size import height_width
from vitrine.models import VisionTransformer


def sizes(config):
    return {
        "img_size": config.image_size,
        "patch_size": config.patch_size,
        "in_chans": config.in_channels,
        "num_classes": config.num_classes,
        "embed_dim": config.dim,
        "depth": config.depth,
        "num_heads": config.heads,
    }


def timm_vit(config, **changes):
    changes = {"mlp_ratio": config.mlp_ratio, "fc_norm": False} | changes
    model = vision_transformer.VisionTransformer(**sizes(config), **changes)
    if model.patch_embed.proj.bias is None:  # timm has none where a norm follows; its formula is the same with one
        model.patch_embed.proj.bias = nn.Parameter(torch.zeros(config.dim))
    return model.double()


def copied(ours, theirs, translate=dict):
    """``theirs`` with the weights of ``ours``, all of them and no others."""
    theirs.load_state_dict(translate(ours.state_dict()))
    return theirs


VIT = {
    "class token": ({}, {}),
    "mean": ({"class_token": False, "pool": "mean"}, {"class_token": False, "global_pool": "avg"}),
    "mean beside a prefix": ({"registers": 3, "pool": "mean"}, {"reg_tokens": 3, "global_pool": "avg"}),
    "registers": ({"registers": 4}, {"reg_tokens": 4}),
    "map": ({"class_token": False, "pool": "map"}, {"class_token": False, "global_pool": "map"}),
    "map with a prefix": (
        {"registers": 1, "pool": "map"},
        {"reg_tokens": 1, "global_pool": "map"},
    ),
    "map with relu": (
        {"class_token": False, "pool": "map", "mlp": "relu"},
        {"class_token": False, "global_pool": "map", "act_layer": "relu"},
    ),
    "no position": ({"position": "none"}, {"pos_embed": "none"}),
    "layer scale": ({"layer_scale": 0.1}, {"init_values": 0.1}),
    "query and key norm": ({"qk_norm": True}, {"qk_norm": True}),
    "no qkv bias": ({"qkv_bias": False}, {"qkv_bias": False}),
    "swiglu": (
        {"mlp": "swiglu", "mlp_ratio": 2.0},
        {"mlp_layer": SwiGLUPacked, "act_layer": "silu", "mlp_ratio": 4.0},  # timm counts gates as hidden units
    ),
    "rmsnorm": ({"norm": "rmsnorm"}, {"norm_layer": RmsNorm}),
    "rmsnorm of queries and keys": ({"norm": "rmsnorm", "qk_norm": True}, {"norm_layer": RmsNorm, "qk_norm": True}),
    "embedding norm": ({"embed_norm": True}, {"pre_norm": True}),
    "gelu by tanh": ({"mlp": "gelu_tanh"}, {"act_layer": "gelu_tanh"}),
    "relu": ({"mlp": "relu"}, {"act_layer": "relu"}),
    "no final norm": ({"final_norm": False}, {"final_norm": False}),
    "one block, one head, grey": ({"depth": 1, "heads": 1, "in_channels": 1}, {}),
    "narrow mlp": ({"mlp_ratio": 0.5}, {}),
    "not square": ({"image_size": [8, 24], "patch_size": [4, 6], "registers": 2}, {"reg_tokens": 2}),
    "square images of patches that are not": ({"patch_size": [8, 4], "pool": "mean"}, {"global_pool": "avg"}),
}


@pytest.fixture(params=VIT)
def vits(request, small, randomise):
    changes, theirs = VIT[request.param]
    config = small(**changes)
    ours = randomise(VisionTransformer(config))
    return config, ours, copied(ours, timm_vit(config, **theirs))


def test_names_logits_and_gradients_are_those_of_timm(vits, images_for, assert_same):
    config, ours, theirs = vits
    assert_same(ours, theirs, images_for(config))


def timm_eva(config, **changes):
    choices = {
        "global_pool": "token",
        "attn_type": "rope",
        "init_values": 0.1,
        "use_abs_pos_emb": False,
        "use_rot_pos_emb": True,
        "rope_grid_indexing": "xy",
        "rope_temperature": 100.0 if config.position == "rope" else 10.0,
        "rope_type": "cat" if config.position == "rope" else "mixed",
    }
    return eva.Eva(**sizes(config), **choices | changes).double()


def eva_names(tensors):
    renamed = {n.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): t for n, t in tensors.items()}
    frequencies = [renamed.pop(name) for name in sorted(renamed) if name.endswith("relation.frequencies")]
    return renamed | ({"rope.freqs": torch.stack(frequencies, dim=1)} if frequencies else {})


def timm_beit(config):
    choices = {"global_pool": "token", "init_values": 0.1, "use_abs_pos_emb": False, "use_rel_pos_bias": True}
    return beit.Beit(**sizes(config), **choices).double()


def beit_names(tensors):
    renamed = eva_names(tensors)
    for name in list(renamed):
        attention = name.rpartition("attn.")[0] + "attn."
        if name.endswith("attn.qkv.bias"):
            # keys have none in BEiT: it would add the same to all scores of a query, which softmax does not see
            renamed[f"{attention}q_bias"], _, renamed[f"{attention}v_bias"] = renamed.pop(name).chunk(3)
        if name.endswith("relation.table"):
            table = torch.cat([renamed.pop(name).flatten(1), renamed.pop(f"{attention}relation.prefix")], dim=1)
            renamed[f"{attention}relative_position_bias_table"] = table.T
    return renamed


NOT_SQUARE = {"image_size": [8, 24], "patch_size": [4, 6]}
RELATED = {
    "rope": ({"position": "rope"}, timm_eva, eva_names),
    "rope with registers": (
        {"position": "rope", "registers": 2},
        lambda config: timm_eva(config, num_reg_tokens=2),
        eva_names,
    ),
    "rope without a prefix": (
        {"position": "rope", "class_token": False, "pool": "mean"},
        lambda config: timm_eva(config, class_token=False, global_pool="avg", use_fc_norm=False),
        eva_names,
    ),
    "rope at another pace": (
        {"position": "rope", "rope_theta": 10_000.0},
        lambda config: timm_eva(config, rope_temperature=10_000.0),
        eva_names,
    ),
    "rope_mixed": ({"position": "rope_mixed"}, timm_eva, eva_names),
    "rope_mixed, queries and keys normalised": (
        {"position": "rope_mixed", "qk_norm": True},
        lambda config: timm_eva(config, qk_norm=True),
        eva_names,
    ),
    "relative": ({"position": "relative"}, timm_beit, beit_names),
    "rope, not square": ({"position": "rope"} | NOT_SQUARE, timm_eva, eva_names),
    "rope_mixed, not square": ({"position": "rope_mixed"} | NOT_SQUARE, timm_eva, eva_names),
    "relative, not square": ({"position": "relative"} | NOT_SQUARE, timm_beit, beit_names),
}


@pytest.fixture(params=RELATED)
def related(request, small, randomise):
    changes, build, translate = RELATED[request.param]
    config = small(layer_scale=0.1, **changes)
    ours = randomise(VisionTransformer(config))
    return config, ours, copied(ours, build(config), translate), translate


def test_logits_and_gradients_with_relations_are_those_of_timm(related, images_for, assert_same):
    config, ours, theirs, translate = related
    assert_same(ours, theirs, images_for(config), translate, in_float32=["rope.freqs"])


@pytest.mark.parametrize("width", [12, 32, 64])
def test_table_formats_of_rope_are_those_of_timm_at_any_width_of_a_head(small, width):
    config = small(image_size=56, position="rope", dim=3 * width)
    relation = VisionTransformer(config).blocks[0].attn.relation
    sine, cosine = timm_eva(config).rope.pos_embed.chunk(2, dim=1)
    for ours, theirs in [(relation.sin, sine), (relation.cos, cosine)]:
        assert torch.equal(ours[1:].double(), theirs[:, ::2])


RESIZED = {
    "learned": ({"registers": 2}, lambda config: timm_vit(config, reg_tokens=2), dict),
    "rope": ({"position": "rope", "layer_scale": 0.1}, timm_eva, eva_names),
    "rope_mixed": ({"position": "rope_mixed", "layer_scale": 0.1}, timm_eva, eva_names),
}


@pytest.mark.parametrize("image_size", [8, 24, 28, [8, 28]], ids=str)
@pytest.mark.parametrize("position", RESIZED)
def test_for_images_of_another_size_a_model_is_resized_as_by_timm(
    small, randomise, images_for, assert_same, position, image_size
):
    changes, build, translate = RESIZED[position]
    config = small(**changes)
    ours = randomise(VisionTransformer(config))
    theirs = copied(ours, build(config), translate)
    ours = ours.resized(image_size=image_size)
    theirs.set_input_size(ours.config.image_hw)
    assert_same(ours, theirs, images_for(ours.config), translate, in_float32=["rope.freqs"])


@pytest.mark.parametrize("image_size", [8, 24, [12, 20]], ids=str)
def test_a_resized_model_gives_the_logits_of_timms_dynamic_image_size(small, randomise, images_for, image_size):
    ours = randomise(VisionTransformer(small()))
    theirs = copied(ours, timm_vit(small(), dynamic_img_size=True))
    ours = ours.resized(image_size=image_size)
    images = images_for(ours.config)
    torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["conv", "linear"])
@pytest.mark.parametrize("patch_size", [2, 3, 6, 8, (8, 6), (2, 8)], ids=str)
def test_for_patches_of_another_size_weights_are_resampled_as_by_timm(small, randomise, patch_size, kind):
    ours, sides = randomise(VisionTransformer(small(patch_embed=kind))), height_width(patch_size)
    theirs = resample_patch_embed(ours.patch_embed.proj.weight.detach().view(24, 3, 4, 4), list(sides))
    weight = ours.resized(patch_size=patch_size, image_size=[4 * side for side in sides]).patch_embed.proj.weight
    torch.testing.assert_close(weight.view_as(theirs), theirs, rtol=0, atol=2e-6)  # timm inverts in float32


@pytest.mark.parametrize("grid", [2, 7])
def test_the_relative_table_is_interpolated_as_timms_for_levit(small, randomise, grid):
    ours = randomise(VisionTransformer(small(position="relative")))
    resized = ours.resized(image_size=4 * grid)
    span = 2 * grid - 1
    for before, after in zip(ours.blocks, resized.blocks, strict=True):
        table = before.attn.relation.table.detach().flatten(1).T
        theirs = resize_rel_pos_bias_table_levit(table, (span**2, 3)).T.unflatten(1, (span, span))
        torch.testing.assert_close(after.attn.relation.table.detach(), theirs, rtol=0, atol=1e-9)
        assert torch.equal(after.attn.relation.prefix, before.attn.relation.prefix)


def another_eps(model):
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5


def tanh_gelu(model):
    for block in model.blocks:
        block.mlp.act = nn.GELU(approximate="tanh")


def another_order_of_heads(model):
    for block in model.blocks:
        rows = block.attn.qkv.weight.data.unflatten(0, (3, block.attn.num_heads, -1))
        block.attn.qkv.weight.data = rows.roll(1, dims=1).flatten(0, 2)


def norm_after_the_mean(model):
    model.norm, model.fc_norm = model.fc_norm, model.norm


@pytest.mark.parametrize("change", [another_eps, tanh_gelu, another_order_of_heads, norm_after_the_mean])
def test_the_comparison_notices_a_small_difference(small, randomise, images_for, assert_same, change):
    config = small(pool="mean")
    ours = randomise(VisionTransformer(config))
    theirs = copied(ours, timm_vit(config, global_pool="avg"))
    assert_same(ours, theirs, images_for(config))
    change(theirs)
    with pytest.raises(AssertionError, match="not close"):
        assert_same(ours, theirs, images_for(config))


@pytest.mark.parametrize(
    ("position", "change"),
    [
        ("rope", {"rope_grid_indexing": "ij"}),
        ("rope_mixed", {"rope_grid_indexing": "ij"}),
        ("rope", {"rope_rotate_half": True}),
    ],
)
def test_the_comparison_notices_another_layout_of_rope(small, randomise, images_for, assert_same, position, change):
    config = small(position=position, layer_scale=0.1)
    ours = randomise(VisionTransformer(config))
    theirs = copied(ours, timm_eva(config, **change), eva_names)
    with pytest.raises(AssertionError, match="not close"):
        assert_same(ours, theirs, images_for(config), eva_names, in_float32=["rope.freqs"])


def with_timms_sincos(config):
    # timm stacks sines, then cosines, rows before columns within each; ours has columns, then rows, sines first
    quarters = build_sincos2d_pos_embed(list(config.grid), config.dim).chunk(4, dim=1)
    row_sine, column_sine, row_cosine, column_cosine = quarters
    patches = torch.cat([column_sine, column_cosine, row_sine, row_cosine], dim=1)
    model = timm_vit(config)
    del model.pos_embed
    table = torch.cat([torch.zeros(1, config.dim), patches]).unsqueeze(0)
    model.register_buffer("pos_embed", table.double(), persistent=False)
    return model


def test_sincos2d_has_the_frequencies_of_timm_or_others_as_one_chooses(small, randomise, images_for):
    def difference(frequencies):
        config = small(position="sincos2d", sincos_frequencies=frequencies)
        ours = randomise(VisionTransformer(config))
        theirs = copied(ours, with_timms_sincos(config))
        return (ours(images_for(config)) - theirs(images_for(config))).abs().max().item()

    assert difference("moco_v3") < 1e-6  # timm computes angles in float32
    assert difference("big_vision") > 1e-4


def imagenet(**choices):
    return ViTConfig(image_size=224, patch_size=16, in_channels=3, num_classes=1000, **(PUBLISHED | choices))


@pytest.mark.parametrize(
    ("name", "config", "translate"),
    [
        ("vit_base_patch16_224", imagenet(dim=768, heads=12), dict),
        ("vit_small_patch16_rope_224", imagenet(dim=384, heads=6, position="rope", layer_scale=1e-5), eva_names),
        (
            "vit_small_patch16_rope_mixed_224",
            imagenet(dim=384, heads=6, position="rope_mixed", layer_scale=1e-5),
            eva_names,
        ),
    ],
)
def test_names_and_shapes_are_those_of_published_models(name, config, translate):
    with torch.device("meta"):
        ours, theirs = translate(VisionTransformer(config).state_dict()), timm.create_model(name).state_dict()
    assert {name: value.shape for name, value in ours.items()} == {name: v.shape for name, v in theirs.items()}
