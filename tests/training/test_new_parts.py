"""Parts that start anew beside pretrained weights: those that are named, and no others."""

import dataclasses
from contextlib import nullcontext

import pytest
import torch
import yaml
from helpers.published import PUBLISHED
from timm.models.vision_transformer import VisionTransformer as TimmViT

from vitrine import compose
from vitrine.config.finetune import FinetuneConfig
from vitrine.config.model import NEW_PARTS, ViTConfig
from vitrine.config.serialize import to_plain
from vitrine.errors import ConfigError
from vitrine.models import VisionTransformer
from vitrine.training.new_parts import PARAMETERS, check_trained, is_of
from vitrine.training.pretrained import Pretrained
from vitrine.training.stored_weights import StoredWeights

SIZES = {"image_size": 16, "patch_size": 4, "in_channels": 3, "num_classes": 7, "dim": 24, "depth": 2, "heads": 3}
SIZES |= PUBLISHED


def published(**changes):
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 4, "num_classes": 7, "embed_dim": 24, "depth": 2, "num_heads": 3}
    return TimmViT(**(sizes | changes)).eval()


@pytest.fixture
def source(tmp_path):
    def save(model, config=None):
        weights = model.state_dict()
        if config is None:
            torch.save(weights, tmp_path / "weights.pth")
            return str(tmp_path / "weights.pth")
        named = {f"model.{name}": value for name, value in weights.items()}
        torch.save({"state_dict": named, "config": {"model": dataclasses.asdict(config)}}, tmp_path / "best.ckpt")
        return str(tmp_path / "best.ckpt")

    return save


def started(source, *parts, **changes):
    """The weights of a model before and after it has started from ``source``, and what was adapted."""
    config = ViTConfig(**(SIZES | changes), pretrained=source, pretrained_new=list(parts))
    torch.manual_seed(1)
    model = VisionTransformer(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    start = Pretrained.prepare(config)
    start.copy_to(model)
    return before, model.state_dict(), start.changes


@pytest.mark.parametrize(
    ("theirs", "parts", "ours"),
    [
        ({}, ["position"], {"position": "rope"}),
        ({}, ["position"], {"position": "learned"}),
        ({}, ["position"], {"position": "relative", "image_size": 32}),
        ({}, ["pool"], {"pool": "map"}),
        ({}, ["registers"], {"registers": 4}),
        ({"reg_tokens": 2}, ["registers"], {"registers": 4}),
        ({"reg_tokens": 2}, ["registers"], {}),
        ({}, ["class_token"], {"class_token": False, "pool": "mean"}),
        ({"class_token": False, "global_pool": "avg", "fc_norm": False}, ["class_token", "pool"], {}),
        ({"init_values": 0.1}, ["layer_scale"], {}),
        ({}, ["layer_scale", "qk_norm", "embed_norm"], {"layer_scale": 0.1, "qk_norm": True, "embed_norm": True}),
        ({}, ["final_norm"], {"final_norm": False}),
        ({"img_size": (8, 16), "no_embed_class": True}, ["registers"], {"image_size": [8, 16], "registers": 2}),
        (
            {"img_size": (4, 8), "no_embed_class": True, "reg_tokens": 4},
            ["registers"],
            {"image_size": [4, 8], "registers": 5},
        ),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, list) else None,
)
def test_what_is_named_starts_anew_and_the_rest_from_the_weights(source, theirs, parts, ours):
    model = published(**theirs)
    given = source(model)
    before, after, changes = started(given, *parts, **ours)
    old = model.state_dict()
    assert changes[-1].startswith(f"new {parts[0]}")
    for name, value in after.items():
        if is_of(name, parts):
            assert torch.equal(value, before[name])
        elif name == "pos_embed" and value.shape != old[name].shape:
            patches = model.patch_embed.num_patches
            assert torch.equal(value[:, -patches:], old[name][:, -patches:])
        else:
            assert torch.equal(value, old[name])
    if ours and ours != {"position": "learned"}:  # as the weights have it
        with pytest.raises(ConfigError, match=rf"model\.pretrained_new=\[{parts[0]}\] it starts anew"):
            started(given, **ours)


def test_a_position_table_has_no_values_for_tokens_that_are_new(source):
    model = published(reg_tokens=2)
    _, after, _ = started(source(model), "registers", registers=3)
    old, new = model.state_dict()["pos_embed"], after["pos_embed"]
    assert torch.equal(new[:, :1], old[:, :1])
    assert not new[:, 1:4].any()
    _, after, _ = started(source(model), "class_token", class_token=False, pool="mean", registers=2)
    assert torch.equal(after["pos_embed"], old[:, 1:])


def test_a_table_without_rows_for_prefix_tokens_gets_them(source):
    model = published(no_embed_class=True)
    _, after, _ = started(source(model), "registers", registers=3)
    assert not after["pos_embed"][:, :4].any()
    assert torch.equal(after["pos_embed"][:, 4:], model.state_dict()["pos_embed"])


def test_parts_of_a_run_start_anew_at_another_size(source):
    old = ViTConfig(**SIZES, init="torch")
    model = VisionTransformer(old)
    ours = {"position": "rope", "rope_theta": 50.0, "pool": "map", "image_size": 32, "patch_size": 8}
    before, after, changes = started(source(model, old), "position", "pool", **ours)
    assert changes == ["patches resized from 4x4 to 8x8", "new position and pool"]
    assert torch.equal(after["blocks.1.attn.qkv.weight"], model.state_dict()["blocks.1.attn.qkv.weight"])
    assert torch.equal(after["attn_pool.latent"], before["attn_pool.latent"])


def test_the_other_parts_of_published_weights_still_have_to_compute_the_same(monkeypatch):
    def prepare(theirs, *parts, **changes):
        found = StoredWeights(theirs.state_dict(), timm=theirs)
        monkeypatch.setattr("vitrine.training.pretrained.read_weights", lambda name: found)
        config = ViTConfig(**(SIZES | changes), pretrained="timm_name", pretrained_new=list(parts))
        return Pretrained.prepare(config)

    assert prepare(published(), "position", "registers", position="rope", rope_theta=50.0, registers=4)
    with pytest.raises(ConfigError, match="computes something else"):
        prepare(published(act_layer="quick_gelu"), "position", position="rope")


def test_each_part_that_may_start_anew_has_its_parameters():
    assert tuple(PARAMETERS) == NEW_PARTS
    everything = ViTConfig(
        **(SIZES | {"pool": "map", "registers": 2, "embed_norm": True, "qk_norm": True, "layer_scale": 0.1})
    )
    names = list(VisionTransformer(everything).state_dict())
    assert all(any(is_of(name, [part]) for name in names) for part in NEW_PARTS)
    kept = {name.split(".")[0] for name in names if not is_of(name, NEW_PARTS)}
    assert kept == {"patch_embed", "blocks", "head"}


@pytest.mark.parametrize(
    ("tokens", "new", "has_bias"),
    [(0, 2, "fresh"), (2, 0, "gone"), (2, 3, "kept")],
)
def test_the_bias_of_relative_positions_for_prefix_tokens_goes_with_these(source, tokens, new, has_bias):
    shape = {"position": "relative", "class_token": False, "pool": "mean"}
    old = ViTConfig(**(SIZES | shape), registers=tokens)
    model = VisionTransformer(old)
    before, after, _ = started(source(model, old), "registers", **shape, registers=new)
    name = "blocks.1.attn.relation.prefix"
    assert torch.equal(after["blocks.1.attn.relation.table"], model.state_dict()["blocks.1.attn.relation.table"])
    assert (name in after) == (has_bias != "gone")
    if name in after:
        assert torch.equal(after[name], {"fresh": before, "kept": model.state_dict()}[has_bias][name])


@pytest.mark.parametrize(
    ("finetune", "fresh", "refused"),
    [
        ({"name": "full"}, ["pos_embed"], ""),
        ({"name": "last_blocks", "blocks": 1}, ["attn_pool.latent", "norm.weight", "blocks.1.ls1.gamma"], ""),
        ({"name": "last_blocks", "blocks": 2}, ["blocks.0.ls1.gamma", "blocks.1.ls1.gamma"], ""),
        ({"name": "last_blocks", "blocks": 1}, ["blocks.0.ls1.gamma"], "blocks.0.ls1.gamma would stay .* freezes it"),
        ({"name": "last_blocks", "blocks": 2}, ["reg_token"], "reg_token would stay"),
        ({"name": "linear_probe"}, ["attn_pool.latent", "norm.bias"], "attn_pool.latent and norm.bias .* freezes them"),
        ({"name": "linear_probe"}, [], ""),
    ],
)
def test_what_starts_anew_is_trained(finetune, fresh, refused):
    with pytest.raises(ConfigError, match=refused) if refused else nullcontext():
        check_trained(fresh, ViTConfig(**SIZES), FinetuneConfig(**finetune))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["registers"], "names registers, of which neither the weights nor the model have any parameters"),
        (["pool", "pool"], "names pool twice"),
    ],
)
def test_a_part_is_named_once_and_there(source, parts, message):
    with pytest.raises(ConfigError, match=message):
        started(source(published()), *parts)


def test_like_keeps_the_new_parts_of_a_run_but_not_for_other_weights(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "best.ckpt").touch()
    weights = f"model.pretrained={tmp_path}"
    first = compose(["model=vit_nano", weights, "model.pretrained_new=[position]"])
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_plain(first)))
    (tmp_path / "run.json").write_text("{}")
    given = ["pool=map"], [weights], [weights, "model.pretrained_new=[pool]"]
    found = [compose([f"like={tmp_path}", *overrides]).model.pretrained_new for overrides in given]
    assert found == [["position"], [], ["pool"]]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.pretrained_new=[pol]", f"model.pretrained={__file__}"], r"did you mean .*pool"),
        (["model.pretrained_new=[pool]"], r"is for model\.pretrained, which is null"),
    ],
)
def test_a_wrong_word_and_a_key_without_use_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        compose(["model=vit_nano", *overrides])
