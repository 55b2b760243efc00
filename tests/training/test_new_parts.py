"""Parts that start anew beside pretrained weights: those that are named, and no others."""

import dataclasses

import pytest
import torch
from helpers.published import PUBLISHED
from timm.models.vision_transformer import VisionTransformer as TimmViT

from vitrine import compose
from vitrine.config.finetune import FinetuneConfig
from vitrine.config.model import NEW_PARTS, ViTConfig
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
            assert torch.equal(value[:, -16:], old[name][:, -16:])
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
    ("finetune", "parts", "refused"),
    [
        ("full", ["position"], ""),
        ("last_blocks", ["pool", "final_norm"], ""),
        ("last_blocks", ["pool", "position"], "position would stay"),
        ("linear_probe", ["pool", "final_norm"], "pool and final_norm would stay"),
    ],
)
def test_what_starts_anew_is_trained(finetune, parts, refused):
    fresh = ["pos_embed", "attn_pool.latent", "norm.weight"]
    if not refused:
        check_trained(fresh, parts, FinetuneConfig(name=finetune))
        return
    with pytest.raises(ConfigError, match=f"{refused} as initialised, since finetune={finetune} freezes it"):
        check_trained(fresh, parts, FinetuneConfig(name=finetune))


def test_a_scheme_without_parameters_may_be_frozen():
    check_trained([], ["position"], FinetuneConfig(name="linear_probe"))


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
