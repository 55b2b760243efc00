import math
from collections import Counter

import pytest
import timm.models.vision_transformer as timm_vit
import torch
import torchvision.models.vision_transformer as torchvision_vit
from torch import nn

from vitrine.config.vit import ViTConfig
from vitrine.errors import ConfigError
from vitrine.models import VisionTransformer

CLS = {"position": "learned", "class_token": True, "pool": "cls"}
MEAN = {"position": "learned", "class_token": False, "pool": "mean"}
DROPOUTS = ("embed_dropout", "attention_dropout", "projection_dropout", "mlp_dropout", "drop_path")


def timm_like(config):
    return timm_vit.VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,
        in_chans=config.in_channels,
        num_classes=config.num_classes,
        embed_dim=config.dim,
        depth=config.depth,
        num_heads=config.heads,
        mlp_ratio=config.mlp_ratio,
        class_token=config.class_token,
        global_pool="token" if config.pool == "cls" else "avg",
        fc_norm=False,
    ).double()


def torchvision_like(config):
    return torchvision_vit.VisionTransformer(
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_layers=config.depth,
        num_heads=config.heads,
        hidden_dim=config.dim,
        mlp_dim=round(config.dim * config.mlp_ratio),
        num_classes=config.num_classes,
    ).double()


TORCHVISION_WORDS = (
    ("cls_token", "class_token"),
    ("pos_embed", "encoder.pos_embedding"),
    ("patch_embed.proj", "conv_proj"),
    ("blocks.", "encoder.layers.encoder_layer_"),
    ("norm1", "ln_1"),
    ("norm2", "ln_2"),
    ("attn.qkv.", "self_attention.in_proj_"),
    ("attn.proj", "self_attention.out_proj"),
    ("mlp.fc1", "mlp.0"),
    ("mlp.fc2", "mlp.3"),
    ("head.", "heads.head."),
)


def torchvision_name(name):
    if name.startswith("norm."):
        return f"encoder.ln.{name.removeprefix('norm.')}"
    for ours, theirs in TORCHVISION_WORDS:
        name = name.replace(ours, theirs)
    return name


def images_for(config, count=3):
    shape = (count, config.in_channels, config.image_size, config.image_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def gradients(model, images):
    """Logits, and the gradients of a fixed weighted sum of them."""
    images = images.clone().requires_grad_()
    logits = model(images)
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(3), dtype=logits.dtype)
    model.zero_grad()
    (logits * weights).sum().backward()
    return logits.detach(), {"images": images.grad} | {name: one.grad for name, one in model.named_parameters()}


def assert_same(ours, theirs, images, rename=lambda name: name):
    logits, grads = gradients(ours, images)
    other_logits, other_grads = gradients(theirs, images)
    assert logits.abs().max() > 0.1
    torch.testing.assert_close(logits, other_logits, rtol=0, atol=1e-9)
    assert {rename(name) for name in grads} == set(other_grads)
    for name, grad in grads.items():
        assert grad.abs().max() > 0, name
        torch.testing.assert_close(
            grad, other_grads[rename(name)], rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("choice", [CLS, MEAN], ids=["cls", "mean"])
def test_names_logits_and_gradients_are_those_of_timm(small, randomise, choice):
    config = small(**choice)
    ours, theirs = randomise(VisionTransformer(config)), timm_like(config)
    theirs.load_state_dict(ours.state_dict())  # strict: the same names and shapes
    assert_same(ours, theirs, images_for(config))


def test_logits_and_gradients_are_those_of_torchvision(small, randomise):
    config = small(**CLS)
    ours, theirs = randomise(VisionTransformer(config)), torchvision_like(config)
    theirs.load_state_dict({torchvision_name(name): value for name, value in ours.state_dict().items()})
    assert_same(ours, theirs, images_for(config), lambda name: name if name == "images" else torchvision_name(name))


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


@pytest.mark.parametrize("change", [another_eps, tanh_gelu, another_order_of_heads])
def test_the_comparison_with_timm_notices_a_small_difference(small, randomise, change):
    config = small(**CLS)
    ours, theirs = randomise(VisionTransformer(config)), timm_like(config)
    theirs.load_state_dict(ours.state_dict())
    change(theirs)
    images = images_for(config)
    assert (ours(images) - theirs(images)).abs().max() > 1e-7
    with pytest.raises(AssertionError):
        assert_same(ours, theirs, images)


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_pool_reads_what_its_name_says(small, pool):
    model = VisionTransformer(small(pool=pool, class_token=True))
    tokens = torch.randn(2, 17, 24)
    expected = tokens[:, 0] if pool == "cls" else tokens[:, 1:].sum(dim=1) / 16
    torch.testing.assert_close(model.pool(tokens), expected)


def test_features_have_the_class_token_first_and_patches_in_raster_order(small, randomise):
    config = small(depth=1, position="none")
    model = randomise(VisionTransformer(config))
    model.blocks = nn.ModuleList()
    image = images_for(config, 1)
    features = model.forward_features(image)
    assert features.shape == (1, 17, 24)
    torch.testing.assert_close(features[:, 0], model.norm(model.cls_token[:, 0]))
    row, column = 1, 2
    patch = image[0, :, row * 4 : row * 4 + 4, column * 4 : column * 4 + 4]
    projection = model.patch_embed.proj
    expected = projection.weight.flatten(1) @ patch.flatten() + projection.bias
    torch.testing.assert_close(features[0, 1 + row * 4 + column], model.norm(expected))


def test_vit_b_16_has_the_parameters_of_the_paper():
    config = ViTConfig(
        image_size=224, patch_size=16, in_channels=3, num_classes=1000, dim=768, depth=12, heads=12, **CLS
    )
    with torch.device("meta"):
        model = VisionTransformer(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == 86_567_656


def shuffled_patches(images, size):
    height, width = images.shape[2:]
    patches = nn.functional.unfold(images, size, stride=size)
    order = torch.randperm(patches.shape[2], generator=torch.Generator().manual_seed(4))
    return nn.functional.fold(patches[:, :, order], (height, width), size, stride=size)


@pytest.mark.parametrize("token", [False, True], ids=["mean", "cls"])
@pytest.mark.parametrize("position", ["none", "learned", "sincos1d", "sincos2d"])
def test_only_without_positions_the_order_of_patches_makes_no_difference(small, randomise, position, token):
    config = small(position=position, class_token=token, pool="cls" if token else "mean")
    model = randomise(VisionTransformer(config))
    images = images_for(config)
    shuffled = shuffled_patches(images, config.patch_size)
    assert not torch.equal(images, shuffled)
    change = (model(images) - model(shuffled)).abs().max()
    if position == "none":
        assert change < 1e-12
    else:
        assert change > 1e-4


@pytest.mark.parametrize("key", DROPOUTS)
def test_each_dropout_acts_in_training_and_never_in_evaluation(small, randomise, key):
    images = images_for(small())
    plain = randomise(VisionTransformer(small())).eval()
    model = randomise(VisionTransformer(small(**{key: 0.5})))
    torch.manual_seed(0)
    assert not torch.equal(model(images), model(images))
    assert torch.equal(model.eval()(images), plain(images))


def test_every_dropout_is_where_the_configuration_says(small):
    rates = {"embed_dropout": 0.11, "projection_dropout": 0.13, "mlp_dropout": 0.14}
    model = VisionTransformer(small(**rates, attention_dropout=0.12))
    found = Counter(module.p for module in model.modules() if isinstance(module, nn.Dropout))
    assert found == {0.11: 1, 0.13: 2, 0.14: 4}
    assert [block.attn.dropout for block in model.blocks] == [0.12, 0.12]
    assert (model.pos_drop.p, model.blocks[0].attn.proj_drop.p) == (0.11, 0.13)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_drop_path_grows_linearly_from_the_first_block_to_the_last(small, depth):
    model = VisionTransformer(small(depth=depth, drop_path=0.4))
    expected = [0.4 * index / (depth - 1) for index in range(depth)] if depth > 1 else [0.0]
    assert [block.drop_path.rate for block in model.blocks] == pytest.approx(expected)


def test_a_configuration_that_cannot_be_built_is_refused_with_every_fault(small):
    with pytest.raises(ConfigError) as refusal:
        VisionTransformer(small(patch_size=5, heads=5))
    assert [fault.key for fault in refusal.value.faults] == ["patch_size", "heads"]


def test_what_is_exempt_from_weight_decay_are_the_parameters_that_are_tables(small):
    model = VisionTransformer(small())
    tables = {name for name, one in model.named_parameters() if one.ndim > 1 and not name.endswith(".weight")}
    assert model.no_weight_decay() == tables


def test_fresh_logits_of_the_paper_scheme_give_equal_chances(small):
    logits = VisionTransformer(small(init="paper"))(images_for(small()).float())
    assert logits.softmax(dim=-1).detach().numpy() == pytest.approx(1 / 7)
    assert math.isclose(nn.functional.cross_entropy(logits, torch.tensor([0, 3, 6])).item(), math.log(7), rel_tol=1e-6)
