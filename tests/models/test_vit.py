import math
from collections import Counter

import pytest
import torch
from torch import nn

from vitrine.config.model import ATTENTIONS, INITS, POSITIONS
from vitrine.errors import ConfigError
from vitrine.models import VisionTransformer
from vitrine.models.layers import HeadwiseLinear

DROPOUTS = ("embed_dropout", "attention_dropout", "projection_dropout", "mlp_dropout", "drop_path")


def test_features_have_the_class_token_first_and_patches_in_raster_order(small, randomise, images_for):
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


def test_registers_stand_between_the_class_token_and_the_patches_at_random(small, images_for):
    torch.manual_seed(0)
    config = small(registers=100, dim=60)
    model = VisionTransformer(config).double()
    assert model.reg_token.shape == (1, 100, 60)
    assert model.reg_token.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.reg_token.mean().item() == pytest.approx(0, abs=1e-3)
    model.pos_embed = None
    found = model.intermediates(images_for(config))
    assert torch.equal(found["embedded"][:, :1], model.cls_token.expand(3, -1, -1))
    assert torch.equal(found["embedded"][:, 1:101], model.reg_token.expand(3, -1, -1))
    assert torch.equal(found["embedded"][:, 101:], found["patches"])


def shuffled_patches(images, size):
    height, width = images.shape[2:]
    patches = nn.functional.unfold(images, size, stride=size)
    order = torch.randperm(patches.shape[2], generator=torch.Generator().manual_seed(4))
    return nn.functional.fold(patches[:, :, order], (height, width), size, stride=size)


READERS = {
    "cls": {},
    "mean": {"class_token": False, "pool": "mean"},
    "map": {"class_token": False, "registers": 1, "pool": "map"},
    "cls beside registers": {"registers": 2, "patch_embed": "linear"},
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("position", POSITIONS)
def test_only_without_positions_the_order_of_patches_makes_no_difference(
    small, randomise, images_for, position, attention, reader
):
    config = small(position=position, attention=attention, **READERS[reader])
    model = randomise(VisionTransformer(config))
    images = images_for(config)
    shuffled = shuffled_patches(images, config.patch_size)
    assert not torch.equal(images, shuffled)
    change = (model(images) - model(shuffled)).abs().max()
    if position == "none":
        assert change < 1e-12
    else:
        assert change > 1e-4


@pytest.mark.parametrize("kernel", ["sdpa", "explicit"])
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("key", DROPOUTS)
def test_each_dropout_acts_in_training_and_never_in_evaluation(small, randomise, images_for, key, attention, kernel):
    kinds = {"attention": attention, "attention_kernel": kernel}
    images = images_for(small())
    plain = randomise(VisionTransformer(small(**kinds))).eval()
    model = randomise(VisionTransformer(small(**kinds, **{key: 0.5})))
    torch.manual_seed(0)
    assert not torch.equal(model(images), model(images))
    assert torch.equal(model.eval()(images), plain(images))


def test_activation_checkpointing_computes_trained_blocks_twice_and_changes_nothing(small, randomise, images_for):
    """Neither logits nor gradients nor what is drawn next."""
    model = randomise(VisionTransformer(small(**dict.fromkeys(DROPOUTS, 0.3), patch_dropout=0.3)))
    images, called = images_for(model.config), []
    for index, block in enumerate(model.blocks):
        block.register_forward_pre_hook(lambda *_, index=index: called.append(index))

    def step():
        called.clear()
        model.zero_grad()
        torch.manual_seed(0)
        logits = model(images)
        logits.square().sum().backward()
        return [logits, torch.rand(1), *(parameter.grad for parameter in model.parameters())]

    expected, names = step(), list(model.state_dict())
    assert called == [0, 1]
    model.activation_checkpointing = True
    assert all(map(torch.equal, step(), expected))
    assert (called, list(model.state_dict())) == ([0, 1, 1, 0], names)
    model.blocks[0].eval()  # as where it is frozen
    step()
    assert called == [0, 1, 1]
    assert model.intermediates(images, "blocks.1.attn.weights")["blocks.1.attn.weights"].requires_grad


@pytest.mark.parametrize(
    "changed",
    [lambda model: model.resized(image_size=20), lambda model: model.with_outputs(slice(0, 2))],
    ids=["resized", "with_outputs"],
)
@pytest.mark.parametrize("training", [False, True], ids=["evaluating", "training"])
def test_a_model_made_of_another_one_is_in_its_state_and_leaves_random_numbers_alone(small, changed, training):
    model = VisionTransformer(small()).double().train(training)
    model.activation_checkpointing = True
    before = torch.get_rng_state()
    other = changed(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert other.activation_checkpointing
    assert {module.training for module in other.modules()} == {training}
    assert other.head.weight.dtype is torch.float64


def test_every_dropout_is_where_the_configuration_says(small):
    rates = {"embed_dropout": 0.11, "projection_dropout": 0.13, "mlp_dropout": 0.14}
    model = VisionTransformer(small(**rates, attention_dropout=0.12))
    found = Counter(module.p for module in model.modules() if isinstance(module, nn.Dropout))
    assert found == {0.11: 1, 0.13: 2, 0.14: 4}
    assert [block.attn.dropout for block in model.blocks] == [0.12, 0.12]
    assert (model.pos_drop.p, model.blocks[0].attn.proj_drop.p) == (0.11, 0.13)


def test_a_configuration_that_cannot_be_built_is_refused_with_every_fault(small):
    with pytest.raises(ConfigError) as refusal:
        VisionTransformer(small(patch_size=5, heads=5))
    assert [fault.key for fault in refusal.value.faults] == ["patch_size", "heads"]


@pytest.mark.parametrize("size", [8, 15, 20])
def test_images_of_another_size_are_refused_with_the_way_to_take_them(small, size):
    with pytest.raises(ValueError, match="images are") as refusal:
        VisionTransformer(small())(torch.zeros(2, 3, size, size))
    assert str(refusal.value) == (
        f"images are 3x{size}x{size}, this model takes 3x16x16; model.resized(image_size={size}) takes other sizes"
    )


def test_images_that_are_not_square_are_refused_with_height_and_width(small):
    message = r"images are 3x16x24, this model takes 3x20x16; model.resized\(image_size=\[16, 24\]\) takes other sizes"
    with pytest.raises(ValueError, match=message):
        VisionTransformer(small(image_size=[20, 16]))(torch.zeros(2, 3, 16, 24))


@pytest.mark.parametrize("shape", [(1, 16, 16), (4, 16, 16), (4, 16, 20), (16, 16)])
def test_images_that_no_size_would_help_are_refused_without_such_advice(small, shape):
    with pytest.raises(ValueError, match="images are") as refusal:
        VisionTransformer(small())(torch.zeros(2, *shape))
    given = "x".join(map(str, shape))
    assert str(refusal.value) == f"images are {given}, this model takes 3x16x16"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"registers": 2, "position": "learned2d", "pool": "map", "mlp": "swiglu"},
        {"position": "relative", "attention": "headwise", "layer_scale": 0.1},
        {"position": "rope_mixed", "attention": "local", "norm_placement": "sandwich", "qk_norm": True},
        {"position": "conv", "patch_embed": "conv_stem", "norm": "rmsnorm", "embed_norm": True},
        {"position": "sincos1d", "patch_embed": "shifted", "qkv_bias": False},
        {"position": "alibi2d", "patch_embed": "linear", "out_projection": False},
    ],
)
def test_exempt_from_weight_decay_is_what_has_several_dimensions_but_is_no_linear_map_or_convolution(small, changes):
    model = VisionTransformer(small(**changes))
    maps = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d | HeadwiseLinear)]
    matrices = {id(module.weight) for module in maps}
    several = {name: one for name, one in model.named_parameters() if one.ndim > 1}
    assert model.no_weight_decay() == {name for name, one in several.items() if id(one) not in matrices}


@pytest.mark.parametrize("position", POSITIONS)
def test_in_mixed_precision_tokens_are_in_float32_under_every_positional_scheme(small, images_for, position):
    model = VisionTransformer(small(position=position, class_token=False, pool="mean"))
    with torch.autocast("cpu", torch.bfloat16):
        found = model.intermediates(images_for(model.config).float(), "patches", "embedded", "blocks.1")
    assert [tokens.dtype for tokens in found.values()] == [torch.bfloat16, torch.float32, torch.float32]


@pytest.mark.parametrize("init", INITS)
def test_with_a_zero_head_all_classes_begin_with_equal_chances(small, images_for, init):
    model = VisionTransformer(small(init=init, zero_head=True))
    logits = model(images_for(small()).float())
    assert logits.softmax(dim=-1).detach().numpy() == pytest.approx(1 / 7)
    assert math.isclose(nn.functional.cross_entropy(logits, torch.tensor([0, 3, 6])).item(), math.log(7), rel_tol=1e-6)


@pytest.mark.parametrize("init", INITS)
def test_without_a_zero_head_no_scheme_gives_equal_chances(small, images_for, init):
    torch.manual_seed(0)
    logits = VisionTransformer(small(init=init))(images_for(small()).float())
    assert (logits.softmax(dim=-1) - 1 / 7).abs().max() > 1e-3


def test_a_zero_head_changes_no_other_weight(small):
    states = []
    for zero_head in (False, True):
        torch.manual_seed(0)
        states.append(VisionTransformer(small(zero_head=zero_head)).state_dict())
    changed = [name for name, value in states[0].items() if not torch.equal(value, states[1][name])]
    assert changed == ["head.weight"]
