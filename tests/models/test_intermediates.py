import math
from dataclasses import replace

import pytest
import torch

from vitrine.config.model import ATTENTION_KERNELS, ATTENTIONS, NORM_PLACEMENTS, POSITIONS
from vitrine.models import VisionTransformer
from vitrine.models.intermediates import NO_RECORDER, Recorder

NAMES = [
    "patches",
    "embedded",
    "blocks.0.attn.weights",
    "blocks.0.attn",
    "blocks.0.mlp",
    "blocks.0",
    "blocks.1.attn.weights",
    "blocks.1.attn",
    "blocks.1.mlp",
    "blocks.1",
    "features",
    "pooled",
    "logits",
]


def test_recorder_are_kept_under_their_full_names_and_given_back():
    kept = {}
    one, other = torch.zeros(1), torch.ones(1)
    recorder = Recorder(kept)
    assert recorder("a", one) is one
    assert recorder.scope("b").scope("c")("d", other) is other
    assert kept == {"a": one, "b.c.d": other}
    assert recorder.active


def test_what_is_ignored_is_given_back_and_kept_nowhere():
    x = torch.zeros(1)
    assert NO_RECORDER("a", x) is x
    assert NO_RECORDER.scope("b")("c", x) is x
    assert NO_RECORDER.stored is None
    assert not NO_RECORDER.active
    assert not NO_RECORDER.scope("b").active


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("placement", NORM_PLACEMENTS)
def test_every_result_on_the_way_has_its_name_and_shape(small, images_for, attention, placement):
    config = small(attention=attention, norm_placement=placement, registers=2)
    found = VisionTransformer(config).double().intermediates(images_for(config))
    assert list(found) == NAMES
    shapes = {"patches": (3, 16, 24), "pooled": (3, 24), "logits": (3, 7)}
    for name, x in found.items():
        assert x.shape == ((3, 3, 19, 19) if name.endswith("weights") else shapes.get(name, (3, 19, 24))), name


def test_a_pool_that_attends_shows_its_weights(small, images_for):
    config = small(pool="map")
    model = VisionTransformer(config).double()
    found = model.intermediates(images_for(config))
    assert sorted(found) == sorted([*NAMES, "pool.weights"])
    assert found["pool.weights"].shape == (3, 3, 1, 16)
    torch.testing.assert_close(found["pool.weights"].sum(dim=3), torch.ones(3, 3, 1, dtype=torch.float64))
    values = model.attn_pool.kv(found["features"][:, 1:])[..., 24:].unflatten(2, (3, 8)).transpose(1, 2)
    read = model.attn_pool.proj((found["pool.weights"] @ values).flatten(1))
    expected = read + model.attn_pool.mlp(model.attn_pool.norm(read))
    torch.testing.assert_close(found["pooled"], expected, rtol=0, atol=1e-12)


def test_results_are_what_their_names_say(small, randomise, images_for):
    config = small(layer_scale=0.5, drop_path=0.5)
    model = randomise(VisionTransformer(config)).eval()
    images = images_for(config)
    found = model.intermediates(images)
    assert torch.equal(found["patches"], model.patch_embed(images))
    for index, before in enumerate(["embedded", "blocks.0"]):
        # with norms in front, what a block gives is what it was given and what its branches add
        added = found[f"blocks.{index}.attn"] + found[f"blocks.{index}.mlp"]
        torch.testing.assert_close(found[f"blocks.{index}"], found[before] + added, rtol=0, atol=1e-12)
    assert torch.equal(found["features"], model.norm(found["blocks.1"]))
    assert torch.equal(found["features"], model.forward_features(images))
    assert torch.equal(found["pooled"], found["features"][:, 0])
    torch.testing.assert_close(found["logits"], model(images), rtol=0, atol=1e-12)  # of which the class token is read


def test_only_what_is_named_comes_back_in_the_order_of_its_naming(small, images_for):
    model = VisionTransformer(small()).double()
    images = images_for(small())
    everything = model.intermediates(images)
    found = model.intermediates(images, "logits", "blocks.0.mlp")
    assert list(found) == ["logits", "blocks.0.mlp"]
    assert all(torch.equal(found[name], everything[name]) for name in found)


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("block.1.attn", "; did you mean blocks.1.attn?"),
        ("feature", "; did you mean features?"),
        ("xyz", ""),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(small, images_for, name, end):
    model = VisionTransformer(small()).double()
    with pytest.raises(ValueError, match="no intermediate") as refusal:
        model.intermediates(images_for(small()), "logits", name)
    assert str(refusal.value) == f"no intermediate is called {name}{end}"


@pytest.mark.parametrize("kernel", ATTENTION_KERNELS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_asking_for_results_changes_none_of_them_not_even_in_training(small, randomise, images_for, attention, kernel):
    rates = {"embed_dropout": 0.2, "attention_dropout": 0.2, "projection_dropout": 0.2, "mlp_dropout": 0.2}
    config = small(attention=attention, attention_kernel=kernel, drop_path=0.2, pool="map", **rates)
    model = randomise(VisionTransformer(config)).train()
    images = images_for(config)
    torch.manual_seed(0)
    plain = model(images)
    torch.manual_seed(0)
    assert torch.equal(model.intermediates(images)["logits"], plain)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attention_maps_are_how_tokens_are_mixed_whichever_kernel_mixes_them(
    small, randomise, images_for, attention, position
):
    config = small(attention=attention, position=position, registers=1, norm_placement="post", qk_norm=True)
    images = images_for(config)
    tokens = config.tokens
    seen = {}
    for kernel in ATTENTION_KERNELS:
        model = randomise(VisionTransformer(replace(config, attention_kernel=kernel))).eval()
        seen[kernel] = maps = model.attention_maps(images)
        assert maps.shape == (3, 2, 3, tokens, tokens)
        torch.testing.assert_close(maps.sum(dim=4), torch.ones(3, 2, 3, tokens, dtype=torch.float64))
        assert (maps.diagonal(dim1=3, dim2=4) == 0).all() == (attention == "local")
        found = model.intermediates(images)
        for index, given in enumerate([found["embedded"], found["blocks.0"]]):
            attn = model.blocks[index].attn
            if attention == "headwise":
                own = given.unflatten(2, (3, 8))
                values = torch.einsum("bnhi,hoi->bhno", own, attn.qkv.weight[2]) + attn.qkv.bias[2][:, None]
            else:
                values = given @ attn.qkv.weight[48:].T + attn.qkv.bias[48:]
                values = values.unflatten(2, (3, 8)).transpose(1, 2)
            mixed = attn.proj((maps[:, index] @ values).transpose(1, 2).flatten(2))
            torch.testing.assert_close(found[f"blocks.{index}.attn"], mixed, rtol=0, atol=1e-12)
    for kernel in ("auto", "sdpa"):
        torch.testing.assert_close(seen[kernel], seen["explicit"], rtol=0, atol=1e-12)


def test_attention_maps_leave_dropout_aside(small, randomise, images_for):
    model = randomise(VisionTransformer(small(attention_dropout=0.5)))
    images = images_for(small())
    first = "blocks.0.attn.weights"
    in_training = model.train().intermediates(images, first)[first]
    assert torch.equal(in_training, model.eval().intermediates(images, first)[first])


def test_without_relations_attention_maps_are_the_softmax_of_scaled_products(small, randomise, images_for):
    model = randomise(VisionTransformer(small()))
    found = model.intermediates(images_for(small()))
    q, k, _ = model.blocks[0].attn.qkv(model.blocks[0].norm1(found["embedded"])).chunk(3, dim=2)
    for head in range(3):
        own = slice(8 * head, 8 * head + 8)
        shares = (q[..., own] @ k[..., own].transpose(1, 2) / math.sqrt(8)).exp()
        expected = shares / shares.sum(dim=2, keepdim=True)
        torch.testing.assert_close(found["blocks.0.attn.weights"][:, head], expected, rtol=0, atol=1e-12)
