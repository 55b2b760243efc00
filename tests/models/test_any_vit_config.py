import ast
import dataclasses
import re
from collections import defaultdict

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vitrine.config.model import ROTARY_THETA, ViTConfig, vit_faults
from vitrine.errors import ConfigError
from vitrine.models import VisionTransformer

# Options belong to a user's own parts (tests/models/test_user_parts.py); the configurations here have built-in ones.
FIELDS = {field.name: field for field in dataclasses.fields(ViTConfig) if not field.name.endswith("options")}
WORDS = {name: field.metadata["options"] for name, field in FIELDS.items() if "options" in field.metadata}
RATE = st.sampled_from([0.0, 0.1, 0.5])
UNTIED = {name: st.sampled_from(words) for name, words in WORDS.items()} | {
    "in_channels": st.integers(1, 4),
    "num_classes": st.integers(2, 5),
    "depth": st.integers(1, 2),
    "class_token": st.booleans(),
    "registers": st.integers(0, 3),
    "embed_norm": st.booleans(),
    "norm_eps": st.sampled_from([1e-6, 1e-3, 1.0]),
    "final_norm": st.booleans(),
    "qkv_bias": st.booleans(),
    "qk_norm": st.booleans(),
    "out_projection": st.booleans(),
    "layer_scale": st.none() | st.sampled_from([1e-5, 0.1, 1.0]),
    "embed_dropout": RATE,
    "attention_dropout": RATE,
    "projection_dropout": RATE,
    "mlp_dropout": RATE,
    "mlp_hidden_dropout": st.none() | RATE,
    "drop_path": RATE,
    "zero_head": st.booleans(),
}
SETTINGS = settings(deadline=None, derandomize=True, database=None)
SIZES = {
    "image_size": st.integers(0, 9),
    "patch_size": st.integers(0, 9),
    "patch_stride": st.none() | st.integers(0, 4),
    "dim": st.integers(0, 12),
    "heads": st.integers(0, 4),
    "mlp_ratio": st.floats(0, 3),
    "rope_theta": st.none() | st.floats(0, 1e3),
}
ANY = st.builds(ViTConfig, **SIZES, **UNTIED)


@st.composite
def fitting(draw):
    """Sizes that go together; the rest does, most of the time."""
    untied = {name: draw(values) for name, values in UNTIED.items()}
    stem, position = untied["patch_embed"] == "conv_stem", untied["position"]
    patch = draw(st.sampled_from([2, 4, 8] if stem else [2, 3, 4, 5]))
    stride = None if stem else draw(st.none() | st.integers(1, patch))
    heads = draw(st.integers(1, 3))
    dim = heads * draw(st.sampled_from([4, 8] if stem or "rope" in position or "2d" in position else [1, 3, 4]))
    return ViTConfig(
        image_size=patch + (stride or patch) * draw(st.integers(stem, 2)),
        patch_size=patch,
        patch_stride=stride,
        dim=dim,
        heads=heads,
        mlp_ratio=draw(st.integers(1, 3 * dim)) / dim,
        rope_theta=draw(st.none() | st.floats(1.1, 1e9)) if position in ROTARY_THETA else None,
        **untied,
    )


@st.composite
def spoiled(draw):
    """Sizes that went together before some were changed."""
    changes = draw(st.sets(st.sampled_from(list(SIZES)), min_size=1, max_size=2))
    return dataclasses.replace(draw(fitting()), **{name: draw(SIZES[name]) for name in sorted(changes)})


def test_these_tests_draw_every_field():
    assert SIZES.keys() | UNTIED.keys() == FIELDS.keys() - {"pretrained"}


def test_whatever_passes_the_checks_builds_and_gives_every_parameter_a_finite_gradient():
    seen = defaultdict(set)

    @settings(SETTINGS, max_examples=400)
    @given(config=fitting(), count=st.integers(1, 3))
    def check(config, count):
        assume(not vit_faults(config))
        for name in FIELDS:
            seen[name].add(getattr(config, name))
        torch.manual_seed(0)
        model = VisionTransformer(config)
        logits = model(torch.randn(count, config.in_channels, config.image_size, config.image_size))
        assert logits.shape == (count, config.num_classes)
        assert logits.isfinite().all()
        torch.nn.functional.cross_entropy(logits, torch.zeros(count, dtype=torch.long)).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name

    check()
    assert {name: seen[name] for name in WORDS} == {name: set(words) for name, words in WORDS.items()}
    assert all(len(values) > 1 for name, values in seen.items() if name not in ("name", "pretrained"))


@settings(SETTINGS, max_examples=200)
@given(config=spoiled() | ANY)
def test_whatever_has_faults_is_refused_with_just_these(config):
    faults = vit_faults(config)
    assume(faults)
    with pytest.raises(ConfigError) as refusal:
        VisionTransformer(config)
    assert refusal.value.faults == faults


def followed(config, suggestion):
    """``config`` with what a fault suggests."""
    name, word = suggestion.split("=")
    value = ast.literal_eval(word) if word[0].isdigit() else None if word == "null" else word
    return dataclasses.replace(config, **{name: value})


def kinds(faults):
    """What is wrong, whatever the numbers."""
    return [(fault.key, re.sub(r"[\d., -]+(e-?\d+)?", " ", fault.problem)) for fault in faults]


@settings(SETTINGS, max_examples=500)
@given(config=spoiled() | ANY)
def test_a_fault_is_gone_once_its_suggestion_is_followed(config):
    faults = vit_faults(config)
    assume(any(fault.nearest for fault in faults))
    for fault in faults:
        if fault.nearest:
            (kind,) = kinds([fault])
            assert kind not in kinds(vit_faults(followed(config, fault.nearest))), fault


@settings(SETTINGS, max_examples=500)
@given(config=spoiled() | ANY)
def test_following_one_suggestion_after_the_other_ends(config):
    assume(vit_faults(config))
    for _ in range(12):
        suggestions = [fault.nearest for fault in vit_faults(config) if fault.nearest]
        if not suggestions:
            break
        config = followed(config, suggestions[0])
    assert not suggestions
